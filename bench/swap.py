"""`make bench-swap`: versions change under load, and clients should see no effect.

An open loop sends requests for one model at 70 % of the server's capacity for it; meanwhile the
next version (a copy) is published and `production` moves to it, repeatedly. Every response names
its version. Prints tables and verdicts and writes `bench/results/swap.json`.

*During* a swap is from the first byte published to a second after the first response of the new
version: it includes reading, verifying, opening and warm-up, on the core that serves. *Before* is
the calm of `CALM_S` that precedes each. All swaps together last only seconds, so a machine that is
slow for a moment decides their p99; hence also the median of each swap's ratio to its own calm.
"""

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import uvloop

from bench.figures.results_file import bench_store, write_results
from bench.figures.verdicts import Verdict, percentile, ratio, table
from bench.loads.capacity import Stream, find_capacity
from bench.loads.closed_loop import closed_loop, warm_up
from bench.loads.open_loop import OpenLoop, Shots, poisson_arrivals
from bench.loads.rest_shooter import RestShooter
from bench.loads.shooter import Outcome
from bench.measured.golden_model import (
    BENCH_STORE,
    ask_for,
    check_answers,
    golden_model,
    newest_manifest,
)
from bench.measured.version_copy import copy_changed
from bench.peers.peer import Ask, Form
from bench.servers.measured_server import end_with_exception, measured_server
from bench.servers.pinning import add_cores_option, become_client
from flambeau.server_process import ServerProcess
from model_store.store import ModelStore

FORMS = {"tiny-mlp": Form.JSON}
"""Body by model; binary if not listed. Over REST, where the client keeps up."""
CAPACITY_CLIENTS = 32
LOAD = 0.7
CALM_S = 4.0
SETTLE_S = 1.0
"""Seconds after the first response of the new version."""
SWAP_S = 10.0
"""Seconds between two calms; a server that has not swapped by then is reported."""
SEED = 17
TARGET = 1.5


@dataclass(frozen=True, slots=True)
class Swap:
    """One swap of versions; `time.monotonic()` seconds."""

    began_at: float
    moved_at: float
    """Time when the pointer names the new version."""
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapFigures:
    """Client-side figures of one swap."""

    version: int
    published_s: float
    """Time to write the version into the store and move the pointer."""
    live_s: float
    """From the pointer's move to the first response of the new version; NaN if there was none."""
    p99_before_ms: float
    p99_during_ms: float
    worst_during_ms: float
    mixed_s: float
    """From the first response of the new version to the last of the old one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSwaps:
    """All swaps of one model."""

    model: str
    form: str
    capacity_per_second: float
    offered_per_second: float
    answered: int
    failed: int
    p99_before_ms: float
    """p99 over the calms of all swaps."""
    p99_during_ms: float
    client_lag_p99_ms: float
    swaps: list[SwapFigures]

    def verdicts(self) -> list[Verdict]:
        """Returns the figures beside their targets."""
        name = f"{self.model}, {self.form}, {len(self.swaps)} swaps at {LOAD:.0%} load"
        growths = [ratio(swap.p99_during_ms, swap.p99_before_ms) for swap in self.swaps]
        together = ratio(self.p99_during_ms, self.p99_before_ms)
        missing = sum(swap.live_s != swap.live_s for swap in self.swaps)
        return [
            Verdict(what=f"{name}: failed requests", value=self.failed, bound="at most", target=0),
            Verdict(what=f"{name}: versions that never answered", value=missing,
                    bound="at most", target=0),
            Verdict(what=f"{name}: p99 during ÷ before, median of the swaps",
                    value=float(np.median(growths)), bound="at most", target=TARGET),
            Verdict(what=f"{name}: p99 during ÷ before, all swaps together", value=together,
                    bound="at most", target=TARGET),
        ]  # fmt: skip


def swap_figures(shots: Shots, swaps: Sequence[Swap]) -> tuple[list[SwapFigures], float, float]:
    """Returns client-side figures of each swap, and p99 before and during over all swaps, in ms."""
    sent = np.asarray(shots.sent_at)
    took_ms, tags = shots.durations_ms(np.ones(len(sent), bool)), np.asarray(shots.tags)
    done = sent + took_ms / 1000
    answered = shots.where(Outcome.ANSWERED)
    figures, calms, changes = [], [], []
    for swap in swaps:
        new = done[answered & (tags == swap.version)]
        first = float(new.min()) if new.size else float("nan")
        old = done[answered & (tags == swap.version - 1)]
        until = first + SETTLE_S if new.size else swap.began_at + SWAP_S
        calm = took_ms[answered & (sent >= swap.began_at - CALM_S) & (done < swap.began_at)]
        # Requests that were sent before and answered within a swap count as affected, too.
        change = took_ms[answered & (done >= swap.began_at) & (sent < until)]
        calms.append(calm)
        changes.append(change)
        figures.append(
            SwapFigures(
                version=swap.version,
                published_s=swap.moved_at - swap.began_at,
                live_s=first - swap.moved_at,
                p99_before_ms=percentile(calm, 99),
                p99_during_ms=percentile(change, 99),
                worst_during_ms=float(change.max(initial=0)),
                mixed_s=max(float(old.max(initial=0)) - first, 0) if new.size else 0.0,
            )
        )
    before, during = (percentile(np.concatenate(parts), 99) for parts in (calms, changes))
    return figures, before, during


def main() -> None:
    """Measures, prints, and writes."""
    end_with_exception()
    given = _arguments()
    store = bench_store(given.store)
    become_client(pinned=given.pinned)
    figures = [_measure(store, model, given.swaps) for model in given.models]
    document = {"load": LOAD, "seed": SEED, "models": list(map(asdict, figures))}
    write_results("swap", document, [v for figure in figures for v in figure.verdicts()])


def _measure(store: ModelStore, name: str, count: int) -> ModelSwaps:
    """Swaps the versions of one model in a store of its own."""
    form = FORMS.get(name, Form.BINARY)
    with tempfile.TemporaryDirectory(prefix="bench-swap-") as folder:
        own = ModelStore(folder)
        manifest = copy_changed(store, newest_manifest(store, name), own)
        model = golden_model(own, manifest)
        ask = ask_for(model, form, model.rows[:1])
        with measured_server(own.url, [name]) as server:
            lengths = check_answers(server, model, "")
            warm_up(server, form, ask, CAPACITY_CLIENTS, lengths[form])
            load = closed_loop(server, form, ask, CAPACITY_CLIENTS, 4, lengths[form])
            closed = load.answered / load.duration_s
            words = f"{CAPACITY_CLIENTS} clients get {closed:,.0f} requests/s"
            print(f"{name}, {form}: {words}", flush=True)
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                stream = Stream(form, ask, closed)
                capacity = closed * runner.run(find_capacity(server, [stream]))
                print(f"{name}, {form}: capacity {capacity:,.0f} requests/s", flush=True)
                shots, swaps = runner.run(
                    _swap_under_load(server, folder, ask, name, LOAD * capacity, count)
                )
            check_answers(server, model, "")
    found, before, during = swap_figures(shots, swaps)
    answered = int(shots.where(Outcome.ANSWERED).sum())
    if shots.messages:
        print(f"  failures: {dict(shots.messages)}", flush=True)
    print(_table(found), flush=True)
    return ModelSwaps(
        model=name,
        form=form,
        capacity_per_second=capacity,
        offered_per_second=LOAD * capacity,
        answered=answered,
        failed=len(shots.outcomes) - answered,
        p99_before_ms=before,
        p99_during_ms=during,
        client_lag_p99_ms=percentile(shots.lags_s, 99) * 1000,
        swaps=found,
    )


async def _swap_under_load(
    server: ServerProcess, folder: str, ask: Ask, name: str, rate: float, count: int
) -> tuple[Shots, list[Swap]]:
    shots, swaps = Shots(), []
    shooter = RestShooter(server.http, [ask])
    arrivals = poisson_arrivals(rate, 1 + count * (CALM_S + SWAP_S), SEED)
    try:
        async with _publisher(folder) as publisher, asyncio.TaskGroup() as tasks:
            # No spinning: the publisher uses what this process leaves of the core.
            load = OpenLoop(shooter, arrivals, shots, version_of, spins=False)
            running = tasks.create_task(load.run())
            await asyncio.sleep(1)
            for _ in range(count):
                await asyncio.sleep(CALM_S)
                swaps.append(await _publish(publisher, name))
                print(f"  version {swaps[-1].version} is named", flush=True)
                left_s = swaps[-1].began_at + SWAP_S - time.monotonic()
                await asyncio.sleep(max(left_s, 0))
            await running
    finally:
        await shooter.close()
    return shots, swaps


def version_of(body: bytes) -> int:
    """Returns the version that gave a REST response; 0 if it is missing."""
    _, found, rest = body.partition(b'"model_version":"')
    return int(rest[: rest.index(b'"')]) if found else 0


@contextlib.asynccontextmanager
async def _publisher(folder: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Runs a process that publishes on request, so that its work is not part of this one's."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.measured.version_copy", folder, stdin=pipe, stdout=pipe
    )
    try:
        await _line_of(process)  # it has started, and waits
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


async def _publish(publisher: asyncio.subprocess.Process, name: str) -> Swap:
    assert publisher.stdin is not None
    publisher.stdin.write(f"{name}\n".encode())
    said = json.loads(await _line_of(publisher))
    return Swap(said["began"], said["moved"], said["version"])


async def _line_of(publisher: asyncio.subprocess.Process) -> bytes:
    assert publisher.stdout is not None
    line = await publisher.stdout.readline()
    if not line:
        raise RuntimeError("the process that publishes has ended; its reason stands above")
    return line


def _table(swaps: Sequence[SwapFigures]) -> str:
    head = ["  version", "published s", "live after s", "p99 before ms", "p99 during ms"]
    head += ["worst ms", "both versions s"]
    return table(
        head,
        [
            [
                x.version, x.published_s, x.live_s, x.p99_before_ms, x.p99_during_ms,
                x.worst_during_ms, x.mixed_s,
            ]
            for x in swaps
        ],
    )  # fmt: skip


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.swap", description=__doc__)
    parser.add_argument("--store", default=str(BENCH_STORE), help="model store of the benchmark")
    parser.add_argument(
        "--models",
        type=lambda text: text.split(","),
        default=["tiny-mlp", "encoder"],
        metavar="A,B",
    )
    parser.add_argument("--swaps", type=int, default=5, help="of each model")
    add_cores_option(parser)
    return parser.parse_args()


if __name__ == "__main__":
    main()
