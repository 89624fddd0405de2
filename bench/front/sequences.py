"""Steps of 1,000 sequences beside requests without state, and beside Triton's.

One network is published twice: with its state declared, and as a function of its input alone. Both
are served by one process with one thread, and asked over REST in turns, by as many clients.
Triton's sequence batcher (`oldest`) has the same network behind its Python backend, which keeps the
states itself, as that backend has none of the server's.
"""

import http.client
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from statistics import median

import numpy as np
import torch
from torch import Tensor, nn

import flambeau
from bench.figures.verdicts import MISSING, Verdict, at_least, at_most, ratio, short
from bench.front.frames import TIMEOUT_S
from bench.front.triton_beside import triton
from bench.loads.closed_loop import different_load
from bench.peers.answers import WrongAnswerError
from bench.peers.load import Load, load_rest
from bench.peers.peer import Ask, Floats, Form, Launch, PeerError
from bench.peers.process_tree import cpu_seconds
from bench.peers.services.triton_cell import HIDDEN, SEED, WIDTH
from bench.servers.measured_server import measured_server
from flambeau.server_process import ServerProcess

STATEFUL, PLAIN = "with-state", "without-state"
SEQUENCES, CLIENTS = 1_000, 64
MAX_IDLE_S = 600
START_S = 3
MOST_DIFFERENCE = 1e-3
TRITON = "triton"
TRITON_CONFIG = f"""\
max_batch_size: {CLIENTS}
input [ {{ name: "x" data_type: TYPE_FP32 dims: [ {WIDTH} ] }} ]
output [ {{ name: "y" data_type: TYPE_FP32 dims: [ 4 ] }} ]
sequence_batching {{
  max_sequence_idle_microseconds: {MAX_IDLE_S * 1_000_000}
  oldest {{ max_candidate_sequences: {2 * SEQUENCES} }}
  control_input [
    {{ name: "START" control [ {{ kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] }} ] }},
    {{ name: "END" control [ {{ kind: CONTROL_SEQUENCE_END int32_false_true: [ 0, 1 ] }} ] }},
    {{ name: "CORRID" control [ {{ kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 }} ] }}
  ]
}}"""


class Cell(nn.Module):
    """A recurrent cell and a layer on it."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.out = nn.GRUCell(WIDTH, HIDDEN), nn.Linear(HIDDEN, 4)

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the output [rows, 4] and the next state [rows, HIDDEN]."""
        after = self.cell(x, h)
        return self.out(after), after


class OfInput(nn.Module):
    """The same work without a state: its input is in the place of one."""

    def __init__(self, cell: Cell) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: Tensor) -> Tensor:
        """Returns the output [rows, 4]."""
        output: Tensor = self.cell(x, x.repeat(1, HIDDEN // WIDTH))[0]
        return output


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceFigures:
    """Medians of the rounds."""

    steps_per_s: float
    requests_per_s: float
    ratio: float
    """Of both, in each round."""
    step_cpu_us: float
    """CPU time of the server for a step."""
    request_cpu_us: float
    failures: int
    peer_steps_per_s: float
    """Triton's; NaN where it does not run."""
    peer_step_cpu_us: float


@dataclass(slots=True)
class _Loaded:
    """One of the loads, and its figures."""

    load: Callable[[], Load]
    pid: int
    rates: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)
    failures: int = 0

    def measure(self) -> None:
        """Runs it once."""
        before = cpu_seconds(self.pid)
        load = self.load()
        cpu_s = cpu_seconds(self.pid) - before
        self.rates.append(load.answered / load.duration_s)
        self.cpu_us.append(cpu_s / max(load.answered, 1) * 1e6)
        self.failures += load.failed


def measure_sequences(rounds: int, seconds: int) -> SequenceFigures:
    """Measures all loads in turns."""
    numbers = range(1, SEQUENCES + 1)
    starts = [_ask(STATEFUL, n, sequence_id=n, sequence_start=True) for n in numbers]
    steps = [_ask(STATEFUL, n, sequence_id=n) for n in numbers]
    plain = [_ask(PLAIN, n) for n in numbers]
    with tempfile.TemporaryDirectory(prefix="flambeau-bench-") as folder, ExitStack() as stack:
        server = stack.enter_context(_server(folder))
        expected = _answer(server.http, starts[0])
        asking = partial(_compare, starts[0], expected)
        peer = stack.enter_context(triton(STATEFUL, "triton_cell.py", TRITON_CONFIG, asking))
        load = partial(different_load, server, Form.JSON, clients=CLIENTS)
        load(starts, seconds=START_S)  # all, and many anew
        loads = {
            STATEFUL: _Loaded(partial(load, steps, seconds=seconds), server.pid),
            PLAIN: _Loaded(partial(load, plain, seconds=seconds), server.pid),
        }
        if peer is not None:
            load_rest(peer.launch.http, starts, CLIENTS, START_S)
            asked = partial(load_rest, peer.launch.http, steps, CLIENTS, seconds)
            loads[TRITON] = _Loaded(asked, peer.pid)
        for _ in range(rounds):
            for one in loads.values():
                one.measure()
    return _figures(loads)


def _figures(loads: Mapping[str, _Loaded]) -> SequenceFigures:
    ours, plain, peer = loads[STATEFUL], loads[PLAIN], loads.get(TRITON)
    if peer is not None and peer.failures:
        print(f"Triton is left out: {peer.failures} of its steps failed", flush=True)
        peer = None
    pairs = zip(ours.rates, plain.rates, strict=True)
    return SequenceFigures(
        steps_per_s=median(ours.rates),
        requests_per_s=median(plain.rates),
        ratio=median([steps_rate / rate for steps_rate, rate in pairs]),
        step_cpu_us=median(ours.cpu_us),
        request_cpu_us=median(plain.cpu_us),
        failures=ours.failures + plain.failures,
        peer_steps_per_s=MISSING if peer is None else median(peer.rates),
        peer_step_cpu_us=MISSING if peer is None else median(peer.cpu_us),
    )


def verdicts(figures: SequenceFigures) -> list[Verdict]:
    """Returns the figures beside their targets."""
    steps = (
        f"steps of {SEQUENCES:,} sequences a second ({short(figures.steps_per_s)}; CPU of each "
        f"{short(figures.step_cpu_us)} µs)"
    )
    plain = (
        f"requests without state ({short(figures.requests_per_s)}; "
        f"{short(figures.request_cpu_us)} µs)"
    )
    peer = f"Triton's ({short(figures.peer_steps_per_s)}; {short(figures.peer_step_cpu_us)} µs)"
    return [
        at_least(f"{steps} ÷ {plain}", figures.ratio, 0.9),
        at_least(f"{steps} ÷ {peer}", ratio(figures.steps_per_s, figures.peer_steps_per_s), 2),
        at_most("failed steps", figures.failures, 0),
    ]


def _answer(address: str, ask: Ask) -> Floats:
    """Returns the answer to one request.

    Raises:
        PeerError: it is no success.
    """
    connection = http.client.HTTPConnection(address, timeout=TIMEOUT_S)
    try:
        connection.request("POST", ask.path, ask.body, dict(ask.headers))
        return _read({}, connection.getresponse().read())
    finally:
        connection.close()


def _compare(ask: Ask, expected: Floats, launch: Launch) -> None:
    """Raises `WrongAnswerError` unless Triton's answer to a request is ours."""
    found = _answer(launch.http, ask)
    if not np.allclose(found, expected, atol=MOST_DIFFERENCE):
        raise WrongAnswerError(f"it answers {found.tolist()} in place of {expected.tolist()}")


@contextmanager
def _server(folder: str) -> Iterator[ServerProcess]:
    torch.manual_seed(SEED)
    cell = Cell().eval()
    publish = partial(flambeau.publish, to=folder, artifacts=["onnx"], max_batch_size=CLIENTS)
    x = torch.randn(32, WIDTH)
    publish(
        cell, {"x": x, "h": torch.zeros(32, HIDDEN)}, name=STATEFUL, outputs=["y", "h_out"],
        sequence={"states": {"h": "h_out"}, "max_idle_s": MAX_IDLE_S},
    )  # fmt: skip
    publish(OfInput(cell).eval(), {"x": x}, name=PLAIN, outputs=["y"])
    with measured_server(folder, [STATEFUL, PLAIN]) as server:
        yield server


def _ask(model: str, seed: int, **parameters: int) -> Ask:
    row = np.random.default_rng(seed).normal(size=WIDTH).round(3).tolist()
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, WIDTH], "data": row}
    body = json.dumps(
        {"inputs": [tensor], **({"parameters": parameters} if parameters else {})}
    ).encode()
    headers = {"Content-Type": "application/json"}
    return Ask(path=f"/v2/models/{model}/infer", body=body, read=_read, headers=headers)


def _read(_: Mapping[str, str], body: bytes) -> Floats:
    outputs = json.loads(body).get("outputs")
    if not outputs:
        raise PeerError(f"no outputs: {body[:200]!r}")
    return np.array(outputs[0]["data"], np.float32).reshape(1, -1)
