"""The healthy client beside an attack, in a process of its own.

Run as `python -m tests.adversarial.neighbour HTTP_PORT GRPC_PORT KEY CERTIFICATE API`. CERTIFICATE
is for a server that speaks TLS, else empty; a GRPC_PORT of 0 means the training service, which is
asked for its jobs over REST; an API of `torchserve` means that of TorchServe, whose model `calm` is
asked over REST, and `attacked`, the model `echo`, which attacks ask as well and whose queue they
share; one of `registry process` means the registry of a split server, which runs no model and is
asked for its own metadata. Otherwise four threads send requests in a loop: an inference over REST,
one over gRPC, liveness on a new connection, and `control`, an echo process that does nothing else.
A wait for `control` is caused by the machine, so it is subtracted from the waits for the server at
the same moment.

A line `begin` on its standard input starts a measurement, and `end` ends it: it then prints the
result as one line of JSON, a `Seen`.
"""

import contextlib
import dataclasses
import http.client
import json
import os
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc

from services.low_priority_thread import STEPS_BELOW_LOOP

PAUSE_S = 0.005
PROBE_PAUSE_S = 0.05
TIMEOUT_S = 60.0
BODY = b'{"inputs":[{"name":"x","shape":[1,4],"datatype":"FP32","data":[1,2,3,4]}]}'
RIGHT = [2.0, 4.0, 6.0, 8.0]
APIS = ("torchserve", "registry process")
"""Values of API; empty for inference."""
ATTACKED = "attacked"
"""The stream that asks the model under attack."""
_SERVICE = "/inference.GRPCInferenceService/"


class WrongAnswerError(Exception):
    """The server returned something other than `RIGHT`."""


@dataclass(frozen=True, slots=True)
class Seen:
    """Waits, errors and responses of a healthy client during one attack.

    Attributes:
        stall_s: longest wait of each stream, less the machine's own at that moment.
        attacked_stall_s: the same of the stream that asks the model under attack; 0 without one.
        machine_s: longest wait for `control`.
        asked: number of requests, answered or not.
        failed: error messages.
        wrong: descriptions of wrong responses.
    """

    stall_s: dict[str, float]
    machine_s: float
    asked: int
    failed: list[str]
    wrong: list[str]
    attacked_stall_s: float = 0.0

    @property
    def worst_stall_s(self) -> float:
        """Longest stall of all streams but the one that asks the model under attack."""
        return max(self.stall_s.values(), default=0.0)


class Stream:
    """One thread that sends requests in a loop."""

    def __init__(self, name: str, pause_s: float, ask: Callable[[], None]) -> None:
        self.name = name
        self._pause_s, self._ask = pause_s, ask
        self._lock = threading.Lock()
        self._waits: list[tuple[float, float]] = []
        self._failed: list[str] = []
        self._wrong: list[str] = []
        self._answered = threading.Condition(self._lock)
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            began, failed, wrong = time.monotonic(), "", ""
            try:
                self._ask()
            except WrongAnswerError as error:
                wrong = str(error)
            except (OSError, http.client.HTTPException, grpc.RpcError) as error:
                failed = f"{self.name}: {type(error).__name__} {str(error)[:200]}"
            with self._answered:
                self._waits.append((began, time.monotonic()))
                self._failed += [failed] if failed else []
                self._wrong += [wrong] if wrong else []
                self._answered.notify_all()
            time.sleep(self._pause_s)

    def begin(self) -> None:
        """Starts a measurement after a first response: the setup of a client takes long."""
        with self._answered:
            self._answered.wait_for(lambda: bool(self._waits), TIMEOUT_S)
            self._waits, self._failed, self._wrong = [], [], []

    def end(self) -> tuple[list[tuple[float, float]], list[str], list[str]]:
        """Returns waits, errors and wrong responses since `begin`, and of the request in flight."""
        asked_at = time.monotonic()
        with self._answered:
            self._answered.wait_for(
                lambda: bool(self._waits) and self._waits[-1][0] >= asked_at, TIMEOUT_S
            )
            return list(self._waits), list(self._failed), list(self._wrong)


def http_connection(port: int, certificate: str) -> http.client.HTTPConnection:
    """Returns an unopened connection."""
    if not certificate:
        return http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    tls = ssl.create_default_context(cafile=certificate)
    return http.client.HTTPSConnection("127.0.0.1", port, timeout=TIMEOUT_S, context=tls)


def over_rest(port: int, key: str, certificate: str) -> Callable[[], None]:
    """Returns inferences on one connection, which is reopened after an error."""
    fields = {"x-api-key": key} if key else {}
    kept: list[http.client.HTTPConnection] = []

    def ask() -> None:
        if not kept:
            kept.append(http_connection(port, certificate))
        try:
            kept[0].request("POST", "/v2/models/linear/infer", BODY, fields)
            with kept[0].getresponse() as answer:
                text = answer.read()
        except (OSError, http.client.HTTPException):
            kept.pop().close()
            raise
        if answer.status != 200:
            raise http.client.HTTPException(f"{answer.status} {text[:200]!r}")
        if json.loads(text)["outputs"][0]["data"] != RIGHT:
            raise WrongAnswerError(text.decode())

    return ask


def over_predictions(port: int, model: str) -> Callable[[], None]:
    """Returns predictions of TorchServe's API, each on a new connection."""

    def ask() -> None:
        connection = http_connection(port, "")
        try:
            connection.request("POST", f"/predictions/{model}", BODY)
            with connection.getresponse() as answer:
                text = answer.read()
            if answer.status != 200:
                raise http.client.HTTPException(f"{answer.status} {text[:200]!r}")
            if text != BODY:
                raise WrongAnswerError(text.decode("latin-1"))
        finally:
            connection.close()

    return ask


def over_grpc(port: int, key: str, certificate: str) -> Callable[[], None]:
    """Returns inferences through one channel."""
    # Not at the top: tests that start this process may have other stubs of the same messages.
    from protos import open_inference_pb2 as pb

    address = f"127.0.0.1:{port}"
    channel = grpc.insecure_channel(address)
    if certificate:
        trusted = grpc.ssl_channel_credentials(Path(certificate).read_bytes())
        channel = grpc.secure_channel(address, trusted)
    call = channel.unary_unary(
        f"{_SERVICE}ModelInfer",
        request_serializer=pb.ModelInferRequest.SerializeToString,
        response_deserializer=pb.ModelInferResponse.FromString,
    )
    message = pb.ModelInferRequest(
        model_name="linear", raw_input_contents=[struct.pack("4f", 1, 2, 3, 4)]
    )
    message.inputs.add(name="x", datatype="FP32", shape=[1, 4])
    metadata = (("x-api-key", key),) if key else ()

    def ask() -> None:
        answer = call(message, timeout=TIMEOUT_S, metadata=metadata)
        if list(struct.unpack("4f", answer.raw_output_contents[0])) != RIGHT:
            raise WrongAnswerError(str(answer))

    return ask


def server_live(port: int) -> Callable[[], None]:
    """Asks over gRPC if a server is live, through one channel."""
    call = grpc.insecure_channel(f"127.0.0.1:{port}").unary_unary(
        f"{_SERVICE}ServerLive", request_serializer=bytes, response_deserializer=bytes
    )

    def ask() -> None:
        answer = call(b"", timeout=TIMEOUT_S)
        if answer != b"\x08\x01":
            raise WrongAnswerError(repr(answer))

    return ask


def fetching(port: int, path: str, certificate: str = "") -> Callable[[], None]:
    """Opens a new connection each time, as a kubelet does that asks whether the server lives."""

    def ask() -> None:
        connection = http_connection(port, certificate)
        try:
            connection.request("GET", path)
            with connection.getresponse() as answer:
                answer.read()
            if answer.status != 200:
                raise http.client.HTTPException(f"{path}: {answer.status}")
        finally:
            connection.close()

    return ask


def control(ours: socket.socket) -> Callable[[], None]:
    """Sends one byte to another process, and waits for it."""

    def ask() -> None:
        ours.send(b"x")
        ours.recv(1)

    return ask


def serve_control(number: int) -> None:
    """Echoes bytes in the other process, at the priority of model threads."""
    os.nice(STEPS_BELOW_LOOP)
    with socket.socket(fileno=number) as theirs, contextlib.suppress(ConnectionResetError):
        while data := theirs.recv(1):
            theirs.send(data)


def seen(streams: dict[str, Stream]) -> Seen:
    """Sums up all streams since they began."""
    ended = {name: stream.end() for name, stream in streams.items()}
    pauses = [wait for wait in ended.pop("control")[0] if wait[1] - wait[0] > PAUSE_S]

    def stall(began: float, end: float) -> float:
        machine = (min(e, end) - max(b, began) for b, e in pauses if b < end and e > began)
        return end - began - sum(machine)

    stalls = {
        name: max((stall(*w) for w in waits), default=0.0) for name, (waits, _, _) in ended.items()
    }
    attacked_s = stalls.pop(ATTACKED, 0.0)
    return Seen(
        stalls,
        max((end - began for began, end in pauses), default=0.0),
        sum(len(waits) for waits, _, _ in ended.values()),
        [error for _, failed, _ in ended.values() for error in failed],
        [answer for _, _, wrong in ended.values() for answer in wrong],
        attacked_s,
    )


def main() -> None:
    """Sends requests until its standard input ends."""
    if sys.argv[1] == "control":
        serve_control(int(sys.argv[2]))
        return
    http_port, grpc_port = int(sys.argv[1]), int(sys.argv[2])
    key, certificate, api = sys.argv[3:]
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-m", __spec__.name, "control", str(theirs.fileno())]
    with subprocess.Popen(command, pass_fds=[theirs.fileno()]), theirs, ours:
        streams = {"control": Stream("control", PAUSE_S, control(ours))}
        if api == "registry process":
            streams["REST"] = Stream("REST", PAUSE_S, fetching(http_port, "/v2"))
            streams["gRPC"] = Stream("gRPC", PAUSE_S, server_live(grpc_port))
            live = fetching(http_port, "/v2/health/live")
        elif api:
            streams["REST"] = Stream("REST", PAUSE_S, over_predictions(http_port, "calm"))
            streams[ATTACKED] = Stream(ATTACKED, PAUSE_S, over_predictions(http_port, "echo"))
            live = fetching(http_port, "/api-description")  # ping tells of workers that start
        elif grpc_port:
            streams["REST"] = Stream("REST", PAUSE_S, over_rest(http_port, key, certificate))
            streams["gRPC"] = Stream("gRPC", PAUSE_S, over_grpc(grpc_port, key, certificate))
            live = fetching(http_port, "/v2/health/live", certificate)
        else:
            streams["REST"] = Stream("REST", PAUSE_S, fetching(http_port, "/v1/jobs?limit=1"))
            live = fetching(http_port, "/v1/health/live")
        streams["liveness"] = Stream("liveness", PROBE_PAUSE_S, live)
        for line in sys.stdin:
            if line == "begin\n":
                for stream in streams.values():
                    stream.begin()
            else:
                print(json.dumps(dataclasses.asdict(seen(streams))), flush=True)


class Neighbour:
    """Handle of the healthy client in the attacking process."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def begin(self) -> None:
        """Starts a measurement."""
        self._say("begin")

    def end(self) -> Seen:
        """Ends it, and returns the result."""
        assert self._process.stdout is not None
        self._say("end")
        return Seen(**json.loads(self._process.stdout.readline()))

    def _say(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()


@contextlib.contextmanager
def neighbour(
    http_port: int, grpc_port: int, key: str, certificate: str = "", api: str = ""
) -> Iterator[Neighbour]:
    """Runs a healthy client of the server with these ports, until the block ends."""
    ports = str(http_port), str(grpc_port)
    command = [sys.executable, "-m", __name__, *ports, key, certificate, api]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield Neighbour(process)
        finally:
            process.kill()


if __name__ == "__main__":
    main()
