"""Steps of 1,000 sequences beside requests without state, for `make bench-front`.

One network is published twice: with its state declared, and as a function of its input alone. Both
are served by one process with one thread, and asked over REST in turns, by as many clients.
"""

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from statistics import median

import numpy as np
import torch
from torch import Tensor, nn

import flambeau
from bench.figures.verdicts import Verdict, at_least, at_most, short
from bench.loads.closed_loop import different_load
from bench.peers.peer import Ask, Floats, Form, PeerError
from bench.peers.process_tree import cpu_seconds
from bench.servers.measured_server import measured_server
from flambeau.server_process import ServerProcess

STATEFUL, PLAIN = "with-state", "without-state"
SEQUENCES, CLIENTS = 1_000, 64
WIDTH, HIDDEN = 16, 256
START_S = 3


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


def measure_sequences(rounds: int, seconds: int) -> SequenceFigures:
    """Measures both loads in turns."""
    with tempfile.TemporaryDirectory(prefix="flambeau-bench-") as folder, _server(folder) as server:
        numbers = range(1, SEQUENCES + 1)
        steps = [_ask(STATEFUL, number, sequence_id=number) for number in numbers]
        starts = [
            _ask(STATEFUL, number, sequence_id=number, sequence_start=True) for number in numbers
        ]
        plain = [_ask(PLAIN, number) for number in numbers]
        different_load(server, Form.JSON, starts, CLIENTS, START_S)  # all, and many anew
        rates: dict[str, list[float]] = {STATEFUL: [], PLAIN: []}
        cpu_us: dict[str, list[float]] = {STATEFUL: [], PLAIN: []}
        failures = 0
        for _ in range(rounds):
            for name, asks in ((STATEFUL, steps), (PLAIN, plain)):
                before = cpu_seconds(server.pid)
                load = different_load(server, Form.JSON, asks, CLIENTS, seconds)
                cpu_s = cpu_seconds(server.pid) - before
                rates[name].append(load.answered / load.duration_s)
                cpu_us[name].append(cpu_s / max(load.answered, 1) * 1e6)
                failures += load.failed
    pairs = zip(rates[STATEFUL], rates[PLAIN], strict=True)
    return SequenceFigures(
        steps_per_s=median(rates[STATEFUL]),
        requests_per_s=median(rates[PLAIN]),
        ratio=median([steps_rate / rate for steps_rate, rate in pairs]),
        step_cpu_us=median(cpu_us[STATEFUL]),
        request_cpu_us=median(cpu_us[PLAIN]),
        failures=failures,
    )


def verdicts(figures: SequenceFigures) -> list[Verdict]:
    """Returns the figures beside their targets."""
    what = (
        f"steps of {SEQUENCES:,} sequences a second ({short(figures.steps_per_s)}; CPU of each "
        f"{short(figures.step_cpu_us)} µs) ÷ requests without state "
        f"({short(figures.requests_per_s)}; {short(figures.request_cpu_us)} µs)"
    )
    return [at_least(what, figures.ratio, 0.9), at_most("failed steps", figures.failures, 0)]


@contextmanager
def _server(folder: str) -> Iterator[ServerProcess]:
    cell = Cell().eval()
    publish = partial(flambeau.publish, to=folder, artifacts=["onnx"], max_batch_size=64)
    x = torch.randn(32, WIDTH)
    publish(
        cell, {"x": x, "h": torch.zeros(32, HIDDEN)}, name=STATEFUL, outputs=["y", "h_out"],
        sequence={"states": {"h": "h_out"}, "max_idle_s": 600},
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
