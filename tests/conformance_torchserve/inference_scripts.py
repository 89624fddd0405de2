"""Calls of inference, over both protocols: bodies, answers, failures, streams and wrong paths."""

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from tests.conformance_torchserve.clients import Answer, Clients

REST, GRPC = "REST", "gRPC"
ROW = {"x": [1.0, 2.0, 3.0]}
BODY = json.dumps(ROW).encode()
MULTIPART = {"content-type": "multipart/form-data; boundary=cut"}
FORM = {"content-type": "application/x-www-form-urlencoded"}
JSON = {"content-type": "application/json"}
TEXT = {"content-type": "text/plain"}


class Script(NamedTuple):
    """Calls whose answers are compared."""

    name: str
    protocol: str
    ask: Callable[[Clients], Answer | Sequence[Answer]]


def rest(
    name: str,
    method: str,
    path: str,
    body: bytes | None = None,
    headers: dict[str, str] | None = None,
    port: str = "inference",
) -> Script:
    """Returns a script of one request over HTTP."""
    return Script(name, REST, lambda server: server.rest(method, path, body, headers, port))


def grpc(name: str, service: str, call: str, **fields: Any) -> Script:
    """Returns a script of one call over gRPC."""
    return Script(name, GRPC, lambda server: server.grpc(service, call, **fields))


def predict(
    name: str, model: str, body: bytes | None, headers: dict[str, str] | None = None
) -> Script:
    """Returns a script of one prediction over HTTP."""
    return rest(name, "POST", f"/predictions/{model}", body, headers)


def _part(name: str, data: bytes, *, file: str = "", kind: str = "") -> bytes:
    named = f'; filename="{file}"' if file else ""
    typed = f"content-type: {kind}\r\n" if kind else ""
    head = f'--cut\r\ncontent-disposition: form-data; name="{name}"{named}\r\n{typed}\r\n'
    return head.encode() + data + b"\r\n"


def _grpc_predict(name: str, model: str, call: str = "Predictions", **fields: Any) -> Script:
    fields.setdefault("input", {"data": b"abc"})
    return grpc(name, "inference", call, model_name=model, **fields)


BODIES: Sequence[Script] = [
    predict("raw body", "tell", b"\x00\xffabc"),
    predict("raw body, octets", "tell", b"\x00\xff", {"content-type": "application/octet-stream"}),
    predict("raw body, text", "tell", "grüße".encode(), TEXT),
    predict("raw body, text with a charset", "tell", b"abc", {"content-type": "text/plain; a=b"}),
    predict("raw body, JSON", "tell", b'{"a": [1, null]}', JSON),
    predict("raw body, JSON with a charset", "tell", b'{"a": 1}',
            {"content-type": "application/json; charset=utf-8"}),
    predict("raw body, broken JSON", "tell", b"{", JSON),
    predict("raw body, image", "tell", b"\x89PNG", {"content-type": "image/png"}),
    predict("no body", "tell", b""),
    predict("no body, JSON", "tell", b"", JSON),
    predict("query and body", "tell?a=1&b=two", b"abc"),
    predict("query alone", "tell?a=1&data=two", None),
    predict("form", "tell", b"a=1&data=two+words%21", FORM),
    predict("form, empty", "tell", b"", FORM),
    predict("multipart, one part", "tell", _part("data", b"abc") + b"--cut--\r\n", MULTIPART),
    predict("multipart, a file", "tell",
            _part("data", b"\x00\xff", file="a.bin", kind="application/octet-stream")
            + b"--cut--\r\n", MULTIPART),
    predict("multipart, several parts", "tell",
            _part("img1", b"\x01", file="1") + _part("img2", b"\x02", file="2")
            + _part("note", b"hello", kind="text/plain") + b"--cut--\r\n", MULTIPART),
    predict("multipart, JSON part", "tell",
            _part("data", b'{"a": 1}', file="a", kind="application/json") + b"--cut--\r\n",
            MULTIPART),
    predict("multipart, no parts", "tell", b"--cut--\r\n", MULTIPART),
    predict("explicit version", "tell/1.0", b"abc"),
    predict("unknown version", "tell/9.9", b"abc"),
    predict("unknown model", "nope", b"abc"),
    predict("no model", "", b"abc"),
    predict("too many segments", "tell/1.0/x", b"abc"),
    predict("a name of spaces", "%20", b"abc"),
    rest("prediction by GET", "GET", "/predictions/tell?data=x"),
    rest("prediction by PUT", "PUT", "/predictions/tell", b"abc"),
    rest("prediction by DELETE", "DELETE", "/predictions/tell"),
    rest("prediction by OPTIONS", "OPTIONS", "/predictions/tell"),
    predict("module handler", "module", b"abc"),
    predict("eager network", "eager", BODY, JSON),
    predict("TorchScript network", "script", BODY, JSON),
    predict("network, wrong body", "eager", b'{"y": 1}', JSON),
    predict("network, wrong shape", "script", b'{"x": [1.0]}', JSON),
    rest("explanation", "POST", "/explanations/tell", b"abc"),
    rest("explanation, version", "POST", "/explanations/tell/1.0", b"abc"),
    rest("explanation, unknown model", "POST", "/explanations/nope", b"abc"),
    rest("explanation by GET", "GET", "/explanations/tell"),
]  # fmt: skip
INVOCATIONS: Sequence[Script] = [
    rest("invocation", "POST", "/invocations", b"abc"),
    rest("invocation by GET", "GET", "/invocations"),
    rest("invocation, a slash behind", "POST", "/invocations/", b"abc"),
    rest("invocation, JSON", "POST", "/invocations", b'{"a": 1}', JSON),
    rest("invocation, form", "POST", "/invocations", b"a=1", FORM),
    rest("invocation, query", "POST", "/invocations?a=1", b"abc"),
    rest("invocation, model", "POST", "/invocations?model_name=module", b"abc"),
    rest("invocation, model in a form", "POST", "/invocations", b"model_name=module&a=1", FORM),
    rest("invocation, model in a part", "POST", "/invocations",
         _part("model_name", b"module") + b"--cut--\r\n", MULTIPART),
    rest("invocation, empty model", "POST", "/invocations?model_name=", b"abc"),
    rest("invocation, unknown model", "POST", "/invocations?model_name=nope", b"abc"),
    rest("invocation, model behind", "POST", "/invocations/tell", b"abc"),
    rest("invocation of a model", "POST", "/models/module/invoke", b"abc"),
    rest("invocation of a model and another", "POST", "/models/tell/invoke?model_name=module",
         b"abc"),
    rest("invocation of no model", "POST", "/models//invoke", b"abc"),
    rest("invocation of models", "POST", "/models/invoke", b"abc"),
    rest("invocation of an unknown model", "POST", "/models/nope/invoke", b"abc"),
    rest("prediction, model in the query", "POST", "/predictions?model_name=tell", b"abc"),
    rest("prediction, model in a part", "POST", "/predictions",
         _part("model_name", b"tell") + b"--cut--\r\n", MULTIPART),
    rest("prediction, a slash behind", "POST", "/predictions/", b"abc"),
    rest("predict, no model", "POST", "/predict", b"abc"),
    rest("predict, empty model", "POST", "//predict", b"abc"),
    rest("predict, a model and another", "POST", "/tell/predict?model_name=module", b"abc"),
]  # fmt: skip
VALUES: Sequence[Script] = [
    predict(f"value: {kind}", "kinds", kind.encode())
    for kind in ("bytes", "bytearray", "text", "empty", "list", "dict", "int", "none", "tensor",
                 "nested", "set", "object", "unknown")
]  # fmt: skip


def _responding(name: str, **asked: Any) -> Script:
    return predict(f"responding: {name}", "responding", json.dumps(asked).encode())


RESPONSES: Sequence[Script] = [
    _responding("status", status=202),
    _responding("status and phrase", status=404, phrase="Nothing Here", body="gone"),
    _responding("error status", status=500, body="own error"),
    _responding("unusual status", status=299),
    _responding("headers", headers={"x-own": "1", "X-Other": "two"}),
    _responding("content type", type="text/csv", body="a,b"),
    _responding("content type of JSON", type="application/json", body={"a": 1}),
    _responding("content type by header", headers={"content-type": "image/png"}, body="x"),
    _responding("a list", body=[1, 2]),
    predict("fault: raise", "faults", b"raise"),
    predict("fault: memory", "faults", b"memory"),
    predict("fault: too few rows", "faults", b"few"),
    predict("fault: too many rows", "faults", b"many"),
    predict("fault: no list", "faults", b"no list"),
    predict("fault: None", "faults", b"none"),
    predict("fault: prints much", "faults", b"print"),
    predict("fault: named", "faults", b"named"),
    predict("after faults", "faults", b"fine"),
]
STREAMS: Sequence[Script] = [
    *(predict(f"stream: {n} parts", "stream", str(n).encode()) for n in (0, 1, 5)),
    predict("stream: no number", "stream", b"x"),
    *(
        _grpc_predict(f"stream: {n} parts", "stream", "StreamPredictions",
                      input={"data": str(n).encode()})
        for n in (1, 5)
    ),
    _grpc_predict("stream: no number", "stream", "StreamPredictions"),
    _grpc_predict("stream: by Predictions", "stream", input={"data": b"3"}),
    _grpc_predict("stream: unknown model", "nope", "StreamPredictions"),
    _grpc_predict("stream: no model", "", "StreamPredictions"),
]  # fmt: skip
GRPC_CALLS: Sequence[Script] = [
    grpc("ping", "inference", "Ping"),
    _grpc_predict("prediction", "tell"),
    _grpc_predict("prediction, several inputs", "tell", input={"a": b"1", "b": b"\x00\xff"}),
    _grpc_predict("prediction, no input", "tell", input={}),
    _grpc_predict("prediction, version", "tell", model_version="1.0"),
    _grpc_predict("prediction, unknown version", "tell", model_version="9.9"),
    _grpc_predict("prediction, unknown model", "nope"),
    _grpc_predict("prediction, no model", ""),
    _grpc_predict("prediction, a sequence", "tell", sequence_id="s"),
    *(_grpc_predict(f"value: {kind}", "kinds", input={"data": kind.encode()})
      for kind in ("bytes", "text", "dict", "none", "empty", "set")),
    *(_grpc_predict(f"fault: {kind}", "faults", input={"data": kind.encode()})
      for kind in ("raise", "memory", "few", "no list", "named", "fine")),
    _grpc_predict("responding: status", "responding", input={"data": b'{"status": 404}'}),
    _grpc_predict("responding: headers", "responding",
                  input={"data": b'{"headers": {"x-own": "1"}}'}),
]  # fmt: skip
OTHERS: Sequence[Script] = [
    rest("ping", "GET", "/ping"),
    rest("ping by POST", "POST", "/ping"),
    rest("ping by PUT", "PUT", "/ping"),
    rest("unknown path", "GET", "/nowhere"),
    rest("root by GET", "GET", "/"),
    rest("management on the port of inference", "GET", "/models"),
    rest("metrics on the port of inference", "GET", "/metrics"),
    rest("inference on the port of management", "POST", "/predictions/tell", b"x",
         port="management"),
    rest("ping on the port of management", "GET", "/ping", port="management"),
    rest("unknown path of management", "GET", "/nowhere", port="management"),
    rest("KServe 1", "POST", "/v1/models/tell:predict", b'{"instances": [1]}', JSON),
    rest("KServe 1, model", "GET", "/v1/models/tell"),
    rest("KServe 2, health", "GET", "/v2/health/ready"),
    rest("KServe 2", "POST", "/v2/models/tell/infer", b"{}", JSON),
    Script("description of inference", REST, lambda server: _paths(server, "inference")),
    Script("description of management", REST, lambda server: _paths(server, "management")),
]  # fmt: skip


def _paths(server: Clients, port: str) -> Answer:
    """Returns the status of a description, and the paths and methods in it."""
    found = server.rest("OPTIONS", "/", port=port)
    paths = {
        path: sorted(methods)
        for path, methods in found.body["paths"].items()
        if not any(name in path for name in ("/tell", "/eager", "workflow"))
    }
    return Answer(found.code, paths)


def _at_once(server: Clients, count: int) -> list[Answer]:
    """Returns the answers to requests at once, which come into batches."""
    with ThreadPoolExecutor(count) as threads:
        bodies = [f"row {number}".encode() for number in range(count)]
        return list(
            threads.map(lambda body: server.rest("POST", "/predictions/slow", body), bodies)
        )


def _grpc_at_once(server: Clients, count: int) -> list[Answer]:
    with ThreadPoolExecutor(count) as threads:
        inputs = [{"data": f"row {number}".encode()} for number in range(count)]
        return list(
            threads.map(
                lambda row: server.grpc("inference", "Predictions", model_name="slow", input=row),
                inputs,
            )
        )


def _step(name: str, sequence: str | None, body: bytes) -> Script:
    headers = {} if sequence is None else {"ts_request_sequence_id": sequence}
    return predict(f"sequence: {name}", "stateful", body, headers)


SEQUENCES: Sequence[Script] = [
    rest("describe, sequences", "GET", "/models/stateful", port="management"),
    _step("first", "a", b"1"),
    _step("second", "a", b"2"),
    _step("another", "b", b"3"),
    _step("third", "a", b"4"),
    _step("a third one", "c", b"5"),
    _step("none named", None, b"5"),
    _step("one too many", "d", b"7"),
    _step("one too many, unnamed", "", b"6"),
    _step("one that goes on", "b", b"8"),
]
BATCHES: Sequence[Script] = [
    Script("batch: 1 request", REST, lambda server: _at_once(server, 1)),
    Script("batch: 20 requests", REST, lambda server: _at_once(server, 20)),
    Script("batch: 20 requests", GRPC, lambda server: _grpc_at_once(server, 20)),
]
INFERENCE: Sequence[Script] = [
    *BODIES, *INVOCATIONS, *VALUES, *RESPONSES, *STREAMS, *GRPC_CALLS, *OTHERS, *BATCHES,
    *SEQUENCES,
]  # fmt: skip
