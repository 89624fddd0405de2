"""Sends mutated requests to a server, and a healthy one after each.

Rules: no 5xx and no INTERNAL but deliberate ones, no hang, a healthy answer after each request, and
no growth of memory. A fault names the seed and the number of the request, which repeat it.
"""

import contextlib
import http.client
import json
import random
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import grpc
import numpy as np

from protos import open_inference_pb2 as pb
from protos import tensorflow_serving_pb2 as predict_pb
from services.resident_memory import resident_bytes
from tests.conformance.generated import Asked, valid
from tests.conformance.mutation import mutated_bytes, mutated_document
from tests.fixtures.servers import ServerProcess

HANG_S = 20.0
MAX_GROWTH_BYTES = 64 * 2**20
WARM_UP = 200
"""Requests after which memory is measured first."""
DELIBERATE = {501, 503, 504}
"""Statuses above 499 that a client can cause by what it asks for."""
NO_FAULT_OF_OURS = {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.DATA_LOSS}
HEALTHY = Asked(
    model="linear", form="json", inputs=(("x", "FP32", np.array([[1, 2, 3, 4]], np.float32)),)
)
OTHER_PATHS = (
    "/v2", "/v2/models", "/v2/models/linear", "/v2/health/live", "/v2/repository/index",
    "/v2/repository/models/linear/load", "/v2/models/linear/generate", "/v2/models/stats",
    "/v2/models/linear/generate_stream", "/v2/models/sum/infer", "/v2/models/linear/config",
    "/v2/systemsharedmemory/region/r/register", "/v1/models/linear:predict",
)  # fmt: skip
METHODS = (
    "ModelInfer", "ModelMetadata", "ModelReady", "ServerMetadata", "ModelConfig",
    "ModelStatistics", "RepositoryIndex", "RepositoryModelLoad", "SystemSharedMemoryRegister",
)  # fmt: skip
"""Calls that get mutated messages; each is a name of the service."""
PREDICT = "/tensorflow.serving.PredictionService/Predict"
"""Gets mutations of `PREDICTION`."""
PREDICTION = predict_pb.PredictRequest(
    model_spec={"name": "linear"},
    inputs={
        "x": predict_pb.TensorProto(
            dtype=predict_pb.DT_FLOAT,
            tensor_shape={"dim": [{"size": 1}, {"size": 4}]},
            float_val=[1, 2, 3, 4],
        )
    },
).SerializeToString()
STREAM = "ModelStreamInfer"
"""Gets a mutated message and a healthy one."""


@dataclass(slots=True)
class Found:
    """The result of a run of a fuzzer."""

    seed: int
    requests: int = 0
    codes: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def count(self, code: object) -> None:
        """Counts an answer."""
        self.codes[str(code)] = self.codes.get(str(code), 0) + 1

    def fault(self, words: str, sent: bytes) -> None:
        """Notes a fault of the newest request."""
        self.faults.append(f"seed {self.seed}, request {self.requests}: {words}; {sent[:2000]!r}")


def fuzz_rest(server: ServerProcess, seed: int, seconds: float, most: int = 10**9) -> Found:
    """Sends mutated HTTP requests for some seconds."""
    chance, found = random.Random(seed), Found(seed)
    healthy = http.client.HTTPConnection(server.http, timeout=HANG_S)
    body, headers = HEALTHY.body()

    def is_healthy() -> str:
        healthy.request("POST", HEALTHY.path, body, headers)
        reply = healthy.getresponse()
        told = reply.read()
        return "" if reply.status == 200 and b"[2.0,4.0,6.0,8.0]" in told else f"{told[:200]!r}"

    def ask(sent: bytes) -> None:
        status, told = _exchange(server, sent)
        found.count(status or "closed")
        if status >= 500 and status not in DELIBERATE:
            found.fault(f"answered {status} {told[:300]!r}", sent)
        if status >= 400 and told and b"HTTP/1.1" not in told:
            try:
                well = list(json.loads(told)) == ["error"]
            except ValueError:
                well = False
            if not well:
                found.fault(f"the error body is {told[:300]!r}", sent)

    with contextlib.closing(healthy):
        _run(server, found, (seconds, most), lambda: _rest_request(chance), ask, is_healthy)
    return found


def fuzz_grpc(server: ServerProcess, seed: int, seconds: float, most: int = 10**9) -> Found:
    """Sends mutated messages for some seconds."""
    chance, found = random.Random(seed), Found(seed)
    with grpc.insecure_channel(server.grpc) as channel:
        service = "/inference.GRPCInferenceService"
        calls = {name: channel.unary_unary(f"{service}/{name}", None, None) for name in METHODS}
        calls[PREDICT] = channel.unary_unary(PREDICT, None, None)
        stream = channel.stream_stream(f"{service}/{STREAM}", None, None)
        good = HEALTHY.message().SerializeToString()

        def is_healthy() -> str:
            answer = pb.ModelInferResponse.FromString(calls["ModelInfer"](good, timeout=HANG_S))
            told = list(answer.outputs[0].contents.fp32_contents)
            return "" if told == [2, 4, 6, 8] else str(told)

        def ask(sent: bytes) -> None:
            name = METHODS[0] if chance.random() < 0.7 else chance.choice([*calls, STREAM])
            if name == PREDICT:
                sent = mutated_bytes(chance, PREDICTION)
            began = time.monotonic()
            try:
                if name == STREAM:
                    list(stream(iter([sent, good]), timeout=HANG_S))
                else:
                    calls[name](sent, timeout=HANG_S)
            except grpc.RpcError as error:
                found.count(error.code().name)
                if error.code() in NO_FAULT_OF_OURS:
                    found.fault(f"{name} {error.code().name} {error.details()}", sent)
                if time.monotonic() - began >= HANG_S:
                    found.fault(f"{name} had no answer within {HANG_S} s", sent)
            else:
                found.count("OK")

        _run(server, found, (seconds, most), lambda: _grpc_request(chance), ask, is_healthy)
    return found


def _run(
    server: ServerProcess,
    found: Found,
    limits: tuple[float, int],
    make: Callable[[], bytes],
    ask: Callable[[bytes], None],
    is_healthy: Callable[[], str],
) -> None:
    seconds, most = limits
    end = time.monotonic() + seconds
    first = 0
    while time.monotonic() < end and found.requests < most and len(found.faults) < 10:
        found.requests += 1
        sent = make()
        try:
            ask(sent)
            if why := is_healthy():
                found.fault(f"a healthy request got {why}", sent)
        except (OSError, http.client.HTTPException, grpc.RpcError) as error:
            found.fault(f"{type(error).__name__}: {error}", sent)
            if server.process.poll() is not None:
                found.fault("the server has ended", sent)
                return
        if found.requests == WARM_UP:
            first = resident_bytes(server.pid)
    if first and (grown := resident_bytes(server.pid) - first) > MAX_GROWTH_BYTES:
        found.fault(f"memory grew by {grown} bytes", b"")


def _exchange(server: ServerProcess, sent: bytes) -> tuple[int, bytes]:
    """Sends bytes and half-closes; returns the first status, 0 for none, and its body."""
    with socket.create_connection(("127.0.0.1", server.http_port), timeout=HANG_S) as stream:
        try:
            stream.sendall(sent)
            stream.shutdown(socket.SHUT_WR)
            answer = b"".join(_received(stream))
        except (BrokenPipeError, ConnectionResetError):
            return 0, b""
    head, _, body = answer.partition(b"\r\n\r\n")
    while head.startswith(b"HTTP/1.1 100"):
        head, _, body = body.partition(b"\r\n\r\n")
    return (int(head[9:12]) if head.startswith(b"HTTP/1.1 ") else 0), body


def _received(stream: socket.socket) -> Iterator[bytes]:
    while data := stream.recv(65536):
        yield data


def _rest_request(chance: random.Random) -> bytes:
    asked = valid(chance)
    if not asked.over_rest:
        asked = HEALTHY
    body, headers = asked.body()
    kind = chance.random()
    path = asked.path
    if kind < 0.45 and not headers:
        body = mutated_document(chance, json.loads(body))
    elif kind < 0.75:
        body = mutated_bytes(chance, body)
    elif kind < 0.8:
        path = chance.choice(OTHER_PATHS)
    if headers and chance.random() < 0.3:
        headers = {name: chance.choice(["0", "-1", "9" * 30, "1", "x"]) for name in headers}
    if chance.random() < 0.1:
        headers["content-encoding"] = chance.choice(["gzip", "deflate", "br", "x" * 100])
    method = "POST" if chance.random() < 0.95 else chance.choice(["GET", "PUT", "DELETE", "HEAD"])
    lines = [f"{method} {path} HTTP/1.1", "host: x", f"content-length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    head = "\r\n".join([*lines, "connection: close", "", ""]).encode()
    return (mutated_bytes(chance, head) if kind > 0.9 else head) + body


def _grpc_request(chance: random.Random) -> bytes:
    asked = valid(chance)
    while asked.over_rest:
        asked = valid(chance)
    request = asked.message()
    if chance.random() < 0.3:
        name = chance.choice(["timeout", "priority", "sequence_id", "artifact", "x" * 300])
        request.parameters[name].int64_param = chance.choice([-1, 0, 1, 2**63 - 1, -(2**63)])
    if chance.random() < 0.3 and request.inputs:
        request.inputs[0].shape[:] = chance.choice([[], [-1, 4], [2**62, 2**62], [0], [1] * 100])
    data = request.SerializeToString()
    return mutated_bytes(chance, data) if chance.random() < 0.8 else data
