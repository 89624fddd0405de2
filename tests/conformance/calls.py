"""The calls of each protocol, each with a check against a running server.

Rule: a new call is a line of `CALLS`, with a function that raises on a wrong answer.
"""

import gzip
import http.client
import json
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import grpc

from tests.conformance.fuzzer import HEALTHY
from tests.conformance.generated import Asked
from tests.fixtures.servers import ServerProcess
from tests.fixtures.triton_messages import GRPCInferenceServiceStub, pb

TIMEOUT_S = 30.0
LIVE, READY, READY_MODEL = "/v2/health/live", "/v2/health/ready", "/v2/models/linear/ready"


class Row(NamedTuple):
    """One line of the table."""

    call: str
    protocol: str
    fault: str
    """Empty for a pass."""


class Call(NamedTuple):
    """One call over one protocol."""

    name: str
    protocol: str
    check: Callable[[ServerProcess], None]


def rest(
    server: ServerProcess, method: str, path: str, body: bytes = b"", headers: Any = None
) -> tuple[int, bytes]:
    """Returns the status and the body of an answer."""
    connection = http.client.HTTPConnection(server.http, timeout=TIMEOUT_S)
    try:
        connection.request(method, path, body, headers or {})
        reply = connection.getresponse()
        return reply.status, reply.read()
    finally:
        connection.close()


def _get(path: str, *keys: str) -> Callable[[ServerProcess], None]:
    def check(server: ServerProcess) -> None:
        status, body = rest(server, "GET", path)
        assert status == 200, (status, body[:300])
        document = json.loads(body)
        missing = [key for key in keys if key not in document]
        assert not missing, f"{body[:300]!r} lacks {missing}"

    return check


def _infer(form: str) -> Callable[[ServerProcess], None]:
    asked = Asked(model="linear", form=form, inputs=HEALTHY.inputs, id="mine")

    def check(server: ServerProcess) -> None:
        if asked.over_rest:
            body, headers = asked.body()
            status, told = rest(server, "POST", asked.path, body, headers)
            assert status == 200, told[:300]
            assert b'"id":"mine"' in told
            return
        message = pb.ModelInferRequest.FromString(asked.message().SerializeToString())
        answer = _stub_call(server, "ModelInfer", message)
        assert answer.id == "mine"
        assert bool(answer.raw_output_contents) == (form == "raw")

    return check


def _classes(form: str) -> Callable[[ServerProcess], None]:
    wanted = (("y", {"classification": 2}),)
    asked = Asked(model="linear", form=form, inputs=HEALTHY.inputs, outputs=wanted)

    def check(server: ServerProcess) -> None:
        if asked.over_rest:
            told = rest(server, "POST", asked.path, *asked.body())[1]
        else:
            message = pb.ModelInferRequest.FromString(asked.message().SerializeToString())
            told = _stub_call(server, "ModelInfer", message).SerializeToString()
        assert b"8.000000:3:dog" in told, told[:300]
        assert b"6.000000:2:cat" in told, told[:300]

    return check


def _compressed(server: ServerProcess) -> None:
    body, _ = HEALTHY.body()
    headers = {"content-encoding": "gzip"}
    status, told = rest(server, "POST", HEALTHY.path, gzip.compress(body), headers)
    assert status == 200, told[:300]


def _stub_call(server: ServerProcess, name: str, request: Any) -> Any:
    with grpc.insecure_channel(server.grpc) as channel:
        return getattr(GRPCInferenceServiceStub(channel), name)(request, timeout=TIMEOUT_S)


def _grpc(call: str, field: str = "", **values: Any) -> Callable[[ServerProcess], None]:
    def check(server: ServerProcess) -> None:
        answer = _stub_call(server, call, getattr(pb, f"{call}Request")(**values))
        assert not field or getattr(answer, field), answer

    return check


_FAULTS = (AssertionError, OSError, ValueError, grpc.RpcError, http.client.HTTPException)
REST, GRPC = "REST", "gRPC"
CALLS: list[Call] = [
    Call("live", REST, _get(LIVE)),
    Call("live", GRPC, _grpc("ServerLive", "live")),
    Call("ready", REST, _get(READY)),
    Call("ready", GRPC, _grpc("ServerReady", "ready")),
    Call("server metadata", REST, _get("/v2", "name", "version", "extensions")),
    Call("server metadata", GRPC, _grpc("ServerMetadata", "extensions")),
    Call("model ready", REST, _get(READY_MODEL, "name", "ready")),
    Call("model ready", GRPC, _grpc("ModelReady", "ready", name="linear")),
    Call("model metadata", REST, _get("/v2/models/linear", "platform", "inputs", "outputs")),
    Call("model metadata", GRPC, _grpc("ModelMetadata", "inputs", name="linear")),
    Call("infer, JSON flat", REST, _infer("json")),
    Call("infer, JSON nested", REST, _infer("nested")),
    Call("infer, binary", REST, _infer("binary")),
    Call("infer, gzip", REST, _compressed),
    Call("infer, classification", REST, _classes("json")),
    Call("infer, classification", GRPC, _classes("contents")),
    Call("infer, contents", GRPC, _infer("contents")),
    Call("infer, raw", GRPC, _infer("raw")),
]  # fmt: skip


def check_all(server: ServerProcess, calls: Iterable[Call] = CALLS) -> list[Row]:
    """Checks each call; a fault is the message of what its check raised."""
    rows = []
    for call in calls:
        try:
            call.check(server)
        except (
            AssertionError,
            OSError,
            ValueError,
            grpc.RpcError,
            http.client.HTTPException,
        ) as error:
            rows.append(Row(call.name, call.protocol, f"{type(error).__name__}: {error}"[:300]))
        else:
            rows.append(Row(call.name, call.protocol, ""))
    return rows
