"""Tensors of 1, 16 and 64 MB each way beside Triton: bytes a second, and CPU time a byte.

A Python model gives its input back: ours in the server's process, Triton's in one of its own, as
always. One client sends one request at a time, to both servers in turns. In shared memory, request
and answer name regions of two objects, of which the client fills one once. The limit of any server
is a copy of each byte from memory to memory; that is measured in each round, too.
"""

import http.client
import json
import mmap
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

import flambeau
from bench.figures.verdicts import MISSING, Verdict, at_least, at_most, short
from bench.front.frames import TIMEOUT_S, connect
from bench.front.large_calls import Caller, GrpcCaller, RestCaller
from bench.front.triton_beside import triton
from bench.measured.golden_model import ask_for, golden_model, newest_manifest
from bench.peers.answers import WrongAnswerError
from bench.peers.load import http_request
from bench.peers.peer import Ask, Floats, Form, Launch, PeerError
from bench.peers.process_tree import cpu_seconds
from bench.peers.served_model import ServedModel
from bench.servers.measured_server import measured_server
from flambeau.server_process import ServerProcess
from model_store.store import ModelStore

MODEL, ROW = "large-echo", 250_000
SIZES_MB = (1, 16, 64)
SHARED = "system shared memory"
WAYS = (Form.BINARY.value, Form.GRPC.value, SHARED)
WARM_UP = 3
"""Calls before the first measurement; the first one's answer is compared."""
COPY_S = 0.3
OF_COPY = 0.1
"""Part by which a copy of memory may be missed."""
OBJECTS = "flambeau-bench-"
"""Beginning of the names of shared memory objects."""
TRITON_CONFIG = f"""\
max_batch_size: {max(SIZES_MB)}
input [ {{ name: "x" data_type: TYPE_FP32 dims: [ {ROW} ] }} ]
output [ {{ name: "y" data_type: TYPE_FP32 dims: [ {ROW} ] }} ]"""

Measured = tuple[ServerProcess | Launch, int, str]
"""A running server, its process, and its name."""


class Echo:
    """Gives its input back."""

    def infer(self, inputs):  # type: ignore[no-untyped-def]
        """Returns the input."""
        return {"y": inputs["x"]}


@dataclass(slots=True)
class Moved:
    """Measurements of one server, or of a copy of memory, in one case."""

    rates: list[float] = field(default_factory=list)
    """GB/s, of tensors of requests and answers together; one for each round."""
    cpu_ns: list[float] = field(default_factory=list)
    """CPU time for each of these bytes."""

    @property
    def rate(self) -> float:
        """Returns the median; NaN if nothing was measured."""
        return median(self.rates) if self.rates else MISSING

    @property
    def cpu(self) -> float:
        """Returns the median of the CPU time in ns."""
        return median(self.cpu_ns) if self.cpu_ns else MISSING


@dataclass(slots=True)
class TensorFigures:
    """One size and one way."""

    case: str
    ours: Moved = field(default_factory=Moved)
    triton: Moved = field(default_factory=Moved)
    copy: Moved = field(default_factory=Moved)

    def told(self) -> str:
        """Returns the figures of this server, of Triton and of a copy."""
        each = (self.ours, self.triton, self.copy)
        rates, spent = (
            "; ".join(short(value) for value in values)
            for values in ((one.rate for one in each), (one.cpu for one in each))
        )
        return f"{self.case}: {rates} GB/s; CPU {spent} ns a byte"

    def verdicts(self) -> list[Verdict]:
        """Returns the figures beside their targets; the better of both comparisons counts."""
        ours, theirs, copy = self.ours, self.triton, self.copy
        rate = np.fmax(ours.rate / theirs.rate, ours.rate / (1 - OF_COPY) / copy.rate)
        spent = np.fmin(ours.cpu / theirs.cpu, ours.cpu / (1 + OF_COPY) / copy.cpu)
        rates = f"{short(ours.rate)} GB/s; Triton {short(theirs.rate)}, a copy {short(copy.rate)}"
        cpu = f"{short(ours.cpu)} ns; Triton {short(theirs.cpu)}, a copy {short(copy.cpu)}"
        return [
            at_least(f"{self.case} each way: bytes/s beside Triton ({rates})", float(rate), 1),
            at_most(f"{self.case} each way: CPU a byte beside Triton ({cpu})", float(spent), 1),
        ]


def measure_tensors(folder: str, rounds: int, seconds: float) -> list[TensorFigures]:
    """Runs both servers, and all loads in turns.

    Args:
        folder: for a model store.
        rounds: measurements of each case.
        seconds: of each.
    """
    store = ModelStore(folder)
    x = np.random.default_rng(0).random((2, ROW), np.float32)
    flambeau.publish(
        Echo, {"x": x}, name=MODEL, to=folder, process="shared", max_batch_size=max(SIZES_MB)
    )
    model = golden_model(store, newest_manifest(store, MODEL))
    figures = {(size, way): TensorFigures(f"{size} MB, {way}") for size in SIZES_MB for way in WAYS}

    def ask_one(launch: Launch) -> None:
        with _caller(launch, model, x[:1], Form.BINARY) as call:
            call.call()

    with ExitStack() as stack:
        ours = stack.enter_context(
            measured_server(folder, [MODEL], "", f"shared_memory_objects={OBJECTS}*")
        )
        theirs = stack.enter_context(triton(MODEL, "triton_identity.py", TRITON_CONFIG, ask_one))
        servers: list[Measured] = [(ours, ours.pid, "this server")]
        if theirs is not None:
            servers.append((theirs.launch, theirs.pid, "Triton"))
        for (size, way), found in figures.items():
            rows = np.resize(x, (size, ROW))
            _measure_case(servers, model, rows, way, found, rounds, seconds)
            print(f"  {found.told()}", flush=True)
    return list(figures.values())


def _measure_case(
    servers: Sequence[Measured],
    model: ServedModel,
    rows: Floats,
    way: str,
    found: TensorFigures,
    rounds: int,
    seconds: float,
) -> None:
    """Measures one case on the servers, ours first, and copies of its tensor."""
    target = rows.copy()
    with ExitStack() as stack:
        callers = [_opened(stack, server, model, rows, way, name) for server, _, name in servers]
        for _ in range(rounds):
            for caller, (_, pid, _), moved in zip(
                callers, servers, (found.ours, found.triton), strict=False
            ):
                if caller is not None:
                    spent = partial(cpu_seconds, pid)
                    _measure(caller.call, spent, 2 * rows.nbytes, seconds, moved)
            copying = partial(np.copyto, target, rows)
            _measure(copying, time.process_time, rows.nbytes, COPY_S, found.copy)


def _opened(
    stack: ExitStack,
    server: ServerProcess | Launch,
    model: ServedModel,
    rows: Floats,
    way: str,
    name: str,
) -> Caller | None:
    """Opens a client and compares an answer; returns None if the server does not serve this way."""
    try:
        return stack.enter_context(_caller(server, model, rows, way))
    except WrongAnswerError:
        raise
    except PeerError as error:
        print(f"  {way}: not served by {name}: {error}", flush=True)
        return None


def _measure(
    call: Callable[[], object],
    spent_s: Callable[[], float],
    byte_count: int,
    seconds: float,
    moved: Moved,
) -> None:
    """Calls one after the other for some time, and adds the figures."""
    took_s: list[float] = []
    before, until = spent_s(), time.monotonic() + seconds
    while time.monotonic() < until:
        began = time.perf_counter()
        call()
        took_s.append(time.perf_counter() - began)
    cpu_s = spent_s() - before
    moved.rates.append(byte_count / median(took_s) / 1e9)
    moved.cpu_ns.append(cpu_s / len(took_s) / byte_count * 1e9)


@contextmanager
def _caller(
    server: ServerProcess | Launch, model: ServedModel, rows: Floats, way: str
) -> Iterator[Caller]:
    """Opens a client of one request, whose first answers are right.

    Raises:
        PeerError: the server does not answer so.
    """
    sent = rows.tobytes()
    with ExitStack() as stack:
        if way == SHARED:
            output = stack.enter_context(_regions(server.http, sent))
            request = http_request(server.http, _region_ask(model, rows))
            connection = stack.enter_context(connect(server.http))
            caller: Caller = RestCaller(connection, request, 0)
        elif way == Form.GRPC:
            ask = ask_for(model, Form.GRPC, rows)
            connection = stack.enter_context(connect(server.grpc))
            caller = GrpcCaller(connection, ask.body, len(sent))
        else:
            request = http_request(server.http, ask_for(model, Form.BINARY, rows))
            connection = stack.enter_context(connect(server.http))
            caller = RestCaller(connection, request, len(sent))
        for _ in range(WARM_UP):
            told = caller.call()
        if way == SHARED:
            told = memoryview(output)
        if told[-len(sent) :] != sent:
            raise WrongAnswerError(f"its answer over {way} is another tensor")
        del told
        yield caller


@contextmanager
def _regions(address: str, sent: bytes) -> Iterator[mmap.mmap]:
    """Registers an object for the input, which is filled, and one for the output; gives the latter.

    Raises:
        PeerError: the server takes none.
    """
    prefix = f"{OBJECTS}{os.getpid()}-{address.rpartition(':')[2]}"
    with ExitStack() as stack:
        for name in ("in", "out"):
            path = Path("/dev/shm") / f"{prefix}-{name}"
            file = stack.enter_context(path.open("w+b"))
            stack.callback(path.unlink)
            file.write(sent if name == "in" else bytes(len(sent)))
            file.flush()
            asked = {"key": f"/{path.name}", "offset": 0, "byte_size": len(sent)}
            _post(address, f"/v2/systemsharedmemory/region/{name}/register", asked)
        stack.callback(_post, address, "/v2/systemsharedmemory/unregister", {})
        yield mmap.mmap(file.fileno(), len(sent))


def _post(address: str, path: str, document: dict[str, object]) -> None:
    connection = http.client.HTTPConnection(address, timeout=TIMEOUT_S)
    try:
        connection.request("POST", path, json.dumps(document))
        answer = connection.getresponse()
        said = answer.read()
    finally:
        connection.close()
    if answer.status != 200:
        raise PeerError(f"{path}: HTTP {answer.status}: {said[:300]!r}")


def _region_ask(model: ServedModel, rows: Floats) -> Ask:
    """Returns a request whose tensors are in the regions."""

    def of(region: str) -> dict[str, object]:
        return {"shared_memory_region": region, "shared_memory_byte_size": rows.nbytes}

    given = {
        "name": model.input, "datatype": model.datatype, "shape": list(rows.shape),
        "parameters": of("in"),
    }  # fmt: skip
    asked = {"inputs": [given], "outputs": [{"name": model.output, "parameters": of("out")}]}
    path = f"/v2/models/{model.name}/infer"
    return Ask(path=path, body=json.dumps(asked).encode(), read=_unread)


def _unread(*_: object) -> Floats:
    raise AssertionError("the answer is in shared memory")
