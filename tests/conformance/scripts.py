"""Calls beside inference that are made of a live Triton and of ours, with the same models."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tests.conformance.both_servers import Both, Reasons, Script
from tests.conformance.calls import GRPC, REST
from tests.conformance.messages import request, step, text_request
from tests.fixtures.triton_messages import pb

ROW = [[1, 2, 3, 4]]
LINEAR = "/v2/models/linear"
INFER = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2, 4], "data": [1.0] * 8}]}
COUNTED = ("inference_count", "execution_count")
PARTS = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output")


def _rest(method: str, path: str, document: Any = None) -> Callable[[Both], Any]:
    return lambda server: server.rest(method, path, document)


def _grpc(call: str, **values: Any) -> Callable[[Both], Any]:
    return lambda server: server.grpc(call, **values)


def _stream(*messages: Any, **how: Any) -> Callable[[Both], Any]:
    return lambda server: server.stream(*messages, **how)


def _generate(document: Any, model: str = "say") -> Callable[[Both], Any]:
    return _rest("POST", f"/v2/models/{model}/generate", document)


def _events(document: Any, model: str = "say") -> Callable[[Both], Any]:
    return lambda server: server.events(f"/v2/models/{model}/generate_stream", document)


def _with_end(number: int, id: str) -> Any:
    return request("count", "x", [[number] * 4], id=id, triton_enable_empty_final_response=True)


# Configuration and statistics


def _config(found: Any) -> Any:
    """Returns what the configurations of both servers have in common."""
    parts = [
        {key: one[key] for key in ("name", "data_type", "dims")}
        for kind in ("input", "output")
        for one in found[kind]
    ]
    decoupled = (found.get("model_transaction_policy") or {}).get("decoupled", False)
    return found["name"], found["max_batch_size"], parts, bool(decoupled)


def _config_of(model: str, server: Both) -> Any:
    status, found = server.rest("GET", f"/v2/models/{model}/config")
    return status, _config(found)


def _grpc_config_of(model: str, server: Both) -> Any:
    code, found = server.grpc("ModelConfig", name=model)
    return code, _config({"max_batch_size": 0, **found["config"]})


def _counts(found: Any) -> list[int]:
    stats = found["model_stats"][0]
    inside = stats["inference_stats"]
    return [
        *(int(stats.get(name, 0)) for name in COUNTED),
        *(int(inside.get(part, {}).get("count", 0)) for part in PARTS),
    ]


def _statistics(server: Both) -> Any:
    """Returns how the counts grow by three requests of two rows, over both protocols."""
    grown = []
    looks: Sequence[Callable[[], Any]] = (
        lambda: server.rest("GET", f"{LINEAR}/stats")[1],
        lambda: server.grpc("ModelStatistics", name="linear")[1],
    )
    for look in looks:
        before = _counts(look())
        for _ in range(3):
            server.rest("POST", f"{LINEAR}/infer", INFER)
        grown.append([after - one for after, one in zip(_counts(look()), before, strict=True)])
    return grown


def _statistics_keys(server: Both) -> Any:
    """Returns the names in the statistics of a model."""
    server.rest("POST", f"{LINEAR}/infer", INFER)
    (found,) = server.rest("GET", f"{LINEAR}/stats")[1]["model_stats"]
    return sorted(found), sorted(found["inference_stats"]), sorted(found["batch_stats"][0])


CONFIGURATION: Sequence[Script] = [
    Script("configuration", REST, partial(_config_of, "linear")),
    Script("configuration", GRPC, partial(_grpc_config_of, "linear")),
    Script("configuration, decoupled", REST, partial(_config_of, "count")),
    Script("configuration, sequences", REST, partial(_config_of, "sum")),
    Script("configuration, unknown model", REST, _rest("GET", "/v2/models/nope/config")),
    Script("configuration, unknown model", GRPC, _grpc("ModelConfig", name="nope")),
    Script("configuration, unknown version", REST, _rest("GET", f"{LINEAR}/versions/9/config")),
    Script("statistics", "both", _statistics),
    Script("statistics, names", REST, _statistics_keys),
    Script("statistics, unknown model", REST, _rest("GET", "/v2/models/nope/stats")),
    Script("statistics, unknown model", GRPC, _grpc("ModelStatistics", name="nope")),
    Script("statistics, unknown version", REST, _rest("GET", f"{LINEAR}/versions/9/stats")),
]

# The repository


def _index(server: Both) -> Any:
    status, found = server.rest("POST", "/v2/repository/index", {"ready": True})
    return status, sorted((one["name"], one["version"], one["state"]) for one in found)


def _grpc_index(server: Both) -> Any:
    code, found = server.grpc("RepositoryIndex", ready=True)
    return code, sorted((one["name"], one["version"], one["state"]) for one in found["models"])


MODELS = "/v2/repository/models"
CHANGED = "echo-int8"


def _life(server: Both) -> Any:
    """Returns the statuses of a model's unloading and loading, and of requests between."""
    row = {"name": "in_INT8", "datatype": "INT8", "shape": [1, 1], "data": [1]}
    infer = partial(server.rest, "POST", f"/v2/models/{CHANGED}/infer", {"inputs": [row]})
    found = [infer()[0], server.rest("POST", f"{MODELS}/{CHANGED}/unload")]
    while infer()[0] == 200:
        pass  # Triton unloads behind the answer
    found.append(infer()[0])
    found.append(server.rest("POST", f"{MODELS}/{CHANGED}/unload"))
    found.append(server.rest("POST", f"{MODELS}/{CHANGED}/load"))
    found.append(infer()[0])
    found.append(server.rest("POST", f"{MODELS}/{CHANGED}/load"))
    found.append(server.rest("GET", f"/v2/models/{CHANGED}/ready")[0])
    return found


OVERRIDE = pb.ModelRepositoryParameter(string_param="{}")
REPOSITORY: Sequence[Script] = [
    Script("index", REST, _index),
    Script("index", GRPC, _grpc_index),
    Script("index, named repository", GRPC, _grpc("RepositoryIndex", repository_name="x")),
    Script("unload and load", REST, _life),
    Script("unload, unknown model", REST, _rest("POST", f"{MODELS}/nope/unload")),
    Script("unload, unknown model", GRPC, _grpc("RepositoryModelUnload", model_name="nope")),
    Script("load, unknown model", REST, _rest("POST", f"{MODELS}/nope/load")),
    Script("load, unknown model", GRPC, _grpc("RepositoryModelLoad", model_name="nope")),
    Script("load with a configuration", REST,
           _rest("POST", f"{MODELS}/{CHANGED}/load", {"parameters": {"config": "{}"}})),
    Script("load with a configuration", GRPC,
           _grpc("RepositoryModelLoad", model_name=CHANGED, parameters={"config": OVERRIDE})),
    Script("load, unknown parameter", REST,
           _rest("POST", f"{MODELS}/{CHANGED}/load", {"parameters": {"foo": "x"}})),
]  # fmt: skip

# Logs, traces and shared memory

LOG = "/v2/logging"
TRACE = "/v2/trace/setting"


def _logs(server: Both) -> Any:
    """Returns the settings that both have, as they change."""
    found = []
    for change in ({}, {"log_verbose_level": 1}, {"log_verbose_level": 0}):
        status, told = server.rest("POST", LOG, change)
        level = {name: told.get(name) for name in ("log_info", "log_verbose_level", "log_file")}
        found.append((status, level))
    return found


def _names(call: Callable[[Both], Any], server: Both) -> Any:
    status, found = call(server)
    return status, sorted(found.get("settings", found))


def _shared(kind: str, path: str, method: str = "POST", document: Any = None) -> Any:
    return _rest(method, f"/v2/{kind}sharedmemory/{path}", document)


SETTINGS: Sequence[Script] = [
    Script("logs, names", REST, partial(_names, _rest("GET", LOG))),
    Script("logs, names", GRPC, partial(_names, _grpc("LogSettings"))),
    Script("logs, changed", REST, _logs),
    Script("logs, another file", REST, _rest("POST", LOG, {"log_file": "x"})),
    Script("logs, unknown setting", REST, _rest("POST", LOG, {"foo": 1})),
    Script("logs, wrong type", REST, _rest("POST", LOG, {"log_info": "x"})),
    Script("logs, another format", REST, _rest("POST", LOG, {"log_format": "default"})),
    Script("traces, names", REST, partial(_names, _rest("GET", TRACE))),
    Script("traces, names", GRPC, partial(_names, _grpc("TraceSetting"))),
    Script("traces, off", REST, _rest("POST", TRACE, {"trace_level": ["OFF"]})),
    Script("traces, another file", REST, _rest("POST", TRACE, {"trace_file": "x"})),
    Script("traces, unknown setting", REST, _rest("POST", TRACE, {"foo": "1"})),
    Script("traces, wrong rate", REST, _rest("POST", TRACE, {"trace_rate": "x"})),
    Script("traces, unknown model", REST, _rest("GET", f"/v2/models/nope{TRACE[3:]}")),
    Script("shared memory, status", REST, _shared("system", "status", "GET")),
    Script("shared memory, status", GRPC, _grpc("SystemSharedMemoryStatus")),
    Script("shared memory, unknown region", REST, _shared("system", "region/r/status", "GET")),
    Script("shared memory, unknown region", GRPC, _grpc("SystemSharedMemoryStatus", name="r")),
    Script("shared memory, unregister", REST, _shared("system", "unregister")),
    Script("shared memory, unregister unknown", REST, _shared("system", "region/r/unregister")),
    Script("shared memory, no object", REST,
           _shared("system", "region/r/register", document={"key": "/no-such", "byte_size": 8})),
    Script("cuda memory, status", REST, _shared("cuda", "status", "GET")),
]  # fmt: skip

# Streams and generate

ERRORS = [("triton_grpc_error", "true")]
STREAMS: Sequence[Script] = [
    Script("stream", GRPC, _stream(*(request("linear", "x", ROW, id=str(n)) for n in range(3)))),
    Script("stream, no requests", GRPC, _stream()),
    Script("stream, no id", GRPC, _stream(request("linear", "x", ROW))),
    Script("stream, empty final", GRPC,
           _stream(request("linear", "x", ROW, id="a", triton_enable_empty_final_response=True))),
    Script("stream, decoupled", GRPC, _stream(request("count", "x", [[3] * 4], id="a"))),
    Script("stream, decoupled, final", GRPC, _stream(_with_end(3, "a"))),
    Script("stream, no answers", GRPC, _stream(request("count", "x", [[0] * 4], id="a"))),
    Script("stream, no answers, final", GRPC, _stream(_with_end(0, "a"))),
    Script("stream, unknown model", GRPC, _stream(request("nope", "x", ROW, id="a"))),
    Script("stream, wrong input", GRPC, _stream(request("linear", "z", ROW, id="a"))),
    Script("stream, wrong shape", GRPC, _stream(request("linear", "x", [[1, 2]], id="a"))),
    Script("stream, error between", GRPC,
           _stream(request("linear", "z", ROW, id="a"), request("linear", "z", ROW, id="b"))),
    Script("stream, strict", GRPC, _stream(request("nope", "x", ROW), metadata=ERRORS)),
    Script("call of a decoupled model", GRPC,
           lambda server: server.grpc("ModelInfer", request("count", "x", ROW))),
    Script("call of a decoupled model", REST, _rest("POST", "/v2/models/count/infer", {
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": ROW}]})),
    Script("stream, texts", GRPC, _stream(text_request(b"a\0\xff", 2, "a"))),
    Script("generate", REST, _generate({"text": "hi", "times": 1})),
    Script("generate, lists", REST, _generate({"text": ["hi"], "times": [1]})),
    Script("generate, further keys", REST, _generate({"text": "hi", "times": 1, "top": 0.5})),
    Script("generate, parameters", REST,
           _generate({"text": "hi", "times": 1, "parameters": {"top": 1}})),
    Script("generate, id", REST, _generate({"text": "hi", "times": 1, "id": "mine"})),
    Script("generate, two answers", REST, _generate({"text": "hi", "times": 2})),
    Script("generate, no answer", REST, _generate({"text": "hi", "times": 0})),
    Script("generate, missing input", REST, _generate({"text": "hi"})),
    Script("generate, wrong type", REST, _generate({"text": "hi", "times": "x"})),
    Script("generate, no object", REST, _generate([1])),
    Script("generate, unknown model", REST, _generate({"text": "hi"}, "nope")),
    Script("generate_stream", REST, _events({"text": "hi", "times": 3})),
    Script("generate_stream, no answer", REST, _events({"text": "hi", "times": 0})),
    Script("generate_stream, missing input", REST, _events({"text": "hi"})),
    Script("generate_stream, unknown model", REST, _events({"text": "hi"}, "nope")),
]  # fmt: skip

# Sequences


def _sums(name: int | str, controls: str, server: Both) -> Any:
    """Returns the answers to steps over gRPC: `S` is a start, `E` an end, `B` both, `-` neither."""
    return [
        server.grpc("ModelInfer", step(name, 1.5, start=one in "SB", end=one in "EB"))
        for one in controls
    ]


def _rest_step(server: Both, **parameters: Any) -> Any:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [1.5]}
    asked = {"inputs": [tensor], "parameters": parameters}
    return server.rest("POST", "/v2/models/sum/infer", asked)


def _rest_steps(*each: dict[str, Any]) -> Callable[[Both], Any]:
    return lambda server: [_rest_step(server, **parameters) for parameters in each]


START, END = {"sequence_start": True}, {"sequence_end": True}
SEQUENCES: Sequence[Script] = [
    Script("sequence", GRPC, partial(_sums, 101, "S--E")),
    Script("sequence of one step", GRPC, partial(_sums, 102, "B")),
    Script("sequence started twice", GRPC, partial(_sums, 103, "S-S-E")),
    Script("sequence without start", GRPC, partial(_sums, 104, "-")),
    Script("sequence after its end", GRPC, partial(_sums, 105, "B-")),
    Script("sequence, no name", GRPC, partial(_sums, 0, "-")),
    Script("sequence, no name, start", GRPC, partial(_sums, 0, "S")),
    Script("sequence, largest name", GRPC, partial(_sums, 2**63 - 1, "SE")),
    Script("sequence, name of another kind", GRPC, partial(_sums, "one", "S")),
    Script("sequence", REST, _rest_steps(
        {"sequence_id": 201, **START}, {"sequence_id": 201}, {"sequence_id": 201, **END})),
    Script("sequence without start", REST, _rest_steps({"sequence_id": 202})),
    Script("sequence, no name", REST, _rest_steps({})),
    Script("sequence, negative name", REST, _rest_steps({"sequence_id": -1, **START})),
    Script("sequence, wrong control", REST,
           _rest_steps({"sequence_id": 203, "sequence_start": "yes"})),
    Script("sequence, interleaved", GRPC, lambda server: [
        server.grpc("ModelInfer", step(name, value, start=start))
        for name, value, start in ((301, 1.0, True), (302, 5.0, True), (301, 1.0, False),
                                   (302, 5.0, False))
    ]),
    Script("sequence on a stream", GRPC, _stream(
        *(step(401, 1.0, start=n == 0, end=n == 3, id=str(n)) for n in range(4)))),
    Script("steps to a model without state", GRPC, lambda server: server.grpc(
        "ModelInfer", request("linear", "x", ROW, sequence_id=5, sequence_start=True))),
]  # fmt: skip

SCRIPTS: Sequence[Script] = [*CONFIGURATION, *SETTINGS, *STREAMS, *SEQUENCES, *REPOSITORY]
REASONS: Reasons = {
    "what the client did wrong is 400 here, also where Triton says 500, or 200 with an error": (
        "logs, wrong type", "generate, two answers", "generate, no answer", "generate, wrong type",
        "generate, no object", "sequence, negative name", "sequence, wrong control",
        "load, unknown parameter", "shared memory, no object",
    ),
    "an unknown model is 404 in every call; Triton says 400 or 500 here": (
        "statistics, unknown model", "statistics, unknown version", "traces, unknown model",
        "load, unknown model",
    ),
    "unknown settings are refused; Triton ignores them": (
        "logs, unknown setting", "traces, unknown setting",
    ),
    "logs are lines of JSON, whose times have one format": ("logs, another format",),
    "traces go to a collector by OTLP; there is no rate without one": ("traces, off",),
    "versions of the store are immutable": ("load with a configuration",),
    "a step of a sequence is one row": ("configuration, sequences",),
    "an empty final answer names the version, too": (
        "stream, decoupled, final", "stream, no answers, final",
    ),
    "errors in band name the model and their status, too": (
        "stream, unknown model", "stream, wrong input", "stream, wrong shape",
        "stream, error between",
    ),
    "Triton leaves errors of requests that it does not begin in band, also where errors shall end "
    "the stream": ("stream, strict",),
    "a sequence that is not open is 409, FAILED_PRECONDITION": (
        "sequence without start", "sequence after its end",
    ),
    "the model takes numbers as names; Triton gives it the bytes of a text": (
        "sequence, name of another kind",
    ),
    "the words are ours": (
        "sequence, no name, start",
    ),
}  # fmt: skip
"""Differences on purpose; docs/reference/protocols.md tells clients."""
