"""`make soak`: an hour at 70 % load; memory must not grow, and no request may fail.

Small models and large ones, REST JSON, REST binary and gRPC, each an open loop. The streams have
equal shares of their rates alone, and together 70 % of the highest load that is answered in time,
found by rising loads. In addition, some clients disconnect before the response, and some requests
are invalid and must be rejected as such. Memory of each process and the server's CPU time
are sampled every few seconds: if a request costs half as much again when errors occur, the machine
was slower than during the capacity measurement. Ctrl-C gives the verdict so far. Writes
`bench/results/soak.json` and, as a picture, `soak.svg`; with `--processes 2`, for a server of so
many edges and a model process, `soak-processes.json` and `.svg`.
"""

import argparse
import asyncio
import itertools
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import median

import uvloop

from bench.figures.line_chart import draw_line
from bench.figures.results_file import RESULTS, bench_store, write_results
from bench.figures.verdicts import MISSING, Verdict, at_most, percentile
from bench.loads.capacity import Stream, find_capacity
from bench.loads.closed_loop import closed_loop, warm_up
from bench.loads.open_loop import LAST_ANSWERS_S, OpenLoop, Shots, poisson_arrivals
from bench.loads.shooter import Outcome, Shooter
from bench.loads.shooters import open_shooter
from bench.measured.golden_model import (
    BENCH_STORE,
    ask_for,
    check_answers,
    golden_model,
    newest_manifest,
)
from bench.peers.peer import Ask, Form
from bench.peers.process_tree import cpu_seconds
from bench.servers.measured_server import end_with_exception, measured_server
from bench.servers.metrics_page import read_metrics
from bench.servers.pinning import add_cores_option, become_client
from bench.servers.process_figures import ProcessFigures, processes_of, stolen_seconds
from flambeau.server_process import ServerProcess
from model_store.store import ModelStore
from protos import open_inference_pb2 as pb

LOAD = 0.7
STREAMS = (
    ("tiny-mlp", Form.JSON),
    ("tiny-mlp", Form.GRPC),
    ("cnn", Form.BINARY),
    ("encoder", Form.GRPC),
)
"""Streams; each gets an equal share of the server's time."""
CLIENTS = 32
SLICE_S = 10.0
"""Interval in which arrivals are drawn and a stream's figures are reset."""
LOOK_S = 5.0
REPORT_S = 60.0
LEAVING_A_SECOND = 5.0
WRONG_A_SECOND = 5.0
PATIENCE_S = (0.0, 0.002, 0.01, 0.05)
"""Seconds before clients disconnect, in turn."""
SEED = 29
MAX_GROWTH = 0.02
SETTLING_S = 300.0
"""Caches fill and arenas grow during this time; shorter if the whole soak is short."""
WINDOW_S = 60.0
"""Length of the windows whose memory medians are compared."""
FREED_WITHIN_S = 10.0
"""Time for the server to close the connections of clients that have left."""


@dataclass(slots=True)
class StreamFigures:
    """Outcomes of one stream."""

    model: str
    form: str
    offered_per_second: float
    answered: int = 0
    errors: int = 0
    worst_slice_p99_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Look:
    """State of the server and its core at one moment; times and errors are sums."""

    seconds: float
    """Seconds from the start of the load."""
    processes: list[ProcessFigures]
    server_cpu_s: float
    stolen_s: float
    """Steal time: the host ran others while the server's core was due."""
    answered: int
    errors: int

    @property
    def memory_mib(self) -> float:
        """Memory of all processes, without what they share."""
        return sum(one.memory_mib for one in self.processes)


@dataclass(slots=True)
class Soak:
    """All observations so far; written while the load runs, read when it ends."""

    streams: list[StreamFigures] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)
    hung_up: int = 0
    refused_as_wrong: int = 0
    wrong_but_not_refused: int = 0
    messages: dict[str, int] = field(default_factory=dict)
    """Error messages, each with its count."""
    started_at: float = field(default_factory=time.monotonic)
    left_descriptors: float = MISSING
    """More than before the load, after it."""
    left_link_bytes: float = MISSING
    """Blocks of tensors in shared memory after the load, when nothing is in flight."""

    @property
    def elapsed_s(self) -> float:
        """Seconds since the load began."""
        return time.monotonic() - self.started_at

    def memory(self, name: str = "") -> list[tuple[float, float]]:
        """Returns seconds from the start, and MiB in RAM; of all processes, or of one name's."""
        return [
            (look.seconds, one.memory_mib)
            for look in self.looks
            for one in (look.processes if name else [look])
            if isinstance(one, Look) or one.name == name
        ]

    @property
    def replaced(self) -> int:
        """Processes that others have replaced."""
        seen = {(one.name, one.pid) for look in self.looks for one in look.processes}
        return len(seen) - len({name for name, _ in seen})

    @property
    def errors(self) -> int:
        """Valid requests without a success response, and invalid ones that were not rejected."""
        return sum(stream.errors for stream in self.streams) + self.wrong_but_not_refused

    def verdicts(self, elapsed_s: float) -> list[Verdict]:
        """Returns the figures beside the targets of an hour, for the time that has passed."""
        settling_s = min(SETTLING_S, elapsed_s / 3)
        load = f"{elapsed_s / 60:.1f} min at {LOAD:.0%} load"
        growth = f"{load}: growth of memory after the first {settling_s / 60:.1f} min"
        names = sorted({one.name for look in self.looks for one in look.processes})
        memory = {growth: self.memory()}
        if len(names) > 1:
            memory |= {f"{growth}, {name}": self.memory(name) for name in names}
        found = [
            at_most(what, growth_after(line, settling_s, WINDOW_S) * 100, MAX_GROWTH * 100, "%")
            for what, line in memory.items()
        ]
        found.append(at_most(f"{load}: errors", self.errors, 0))
        found.append(at_most(f"{load}: descriptors left open", self.left_descriptors, 0))
        if len(names) > 1:
            found.append(at_most(f"{load}: processes replaced", self.replaced, 0))
            found.append(at_most(f"{load}: shared memory left", self.left_link_bytes, 0, "bytes"))
        return found


def growth_after(
    memory: Sequence[tuple[float, float]], settling_s: float, window_s: float
) -> float:
    """Returns the largest median of any window after the settling over the first one's, minus 1.

    Args:
        memory: seconds from the start, ascending, and memory.
        settling_s: time for which memory may still grow.
        window_s: length of a window.

    Returns:
        The growth as a share; NaN unless two windows have passed.
    """
    windows: dict[int, list[float]] = {}
    for seconds, size in memory:
        if seconds >= settling_s:
            windows.setdefault(int((seconds - settling_s) // window_s), []).append(size)
    medians = [median(sizes) for sizes in windows.values()]
    return max(medians[1:]) / medians[0] - 1 if len(medians) > 1 else MISSING


def main() -> None:
    """Measures, prints, and writes."""
    end_with_exception()
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__)
    parser.add_argument("--store", default=str(BENCH_STORE), help="model store of the benchmark")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--processes", type=int, default=1, help="as of `flambeau serve`")
    add_cores_option(parser)
    given = parser.parse_args()
    store = bench_store(given.store)
    become_client(pinned=given.pinned)
    soak, elapsed_s = Soak(), 0.0
    models = sorted({model for model, _ in STREAMS})
    with measured_server(store.url, models, "", f"processes={given.processes}") as server:
        streams = _rates(server, store)
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(_scale(server, streams))
                before = _idle_descriptors(server, 0)
                runner.run(_run(server, streams, soak, given.minutes * 60))
        except KeyboardInterrupt:
            print("interrupted; the verdict so far:", flush=True)
        elapsed_s = soak.elapsed_s
        if soak.looks:
            soak.left_descriptors = _idle_descriptors(server, before) - before
            soak.left_link_bytes = read_metrics(server.metrics).total("flambeau_link_bytes")
    _write(soak, elapsed_s, "soak" if given.processes == 1 else "soak-processes")


def _idle_descriptors(server: ServerProcess, wanted: int) -> int:
    """Returns the descriptors of all processes, once they are few or no longer become fewer."""
    give_up_at = time.monotonic() + FREED_WITHIN_S
    while True:
        count = sum(one.descriptors for one in processes_of(server.pid))
        if count <= wanted or time.monotonic() > give_up_at:
            return count
        time.sleep(0.1)


def _write(soak: Soak, elapsed_s: float, name: str) -> None:
    """Writes the results of a soak of this name."""
    document = {
        "minutes": elapsed_s / 60,
        "streams": list(map(asdict, soak.streams)),
        "hung_up": soak.hung_up,
        "refused_as_wrong": soak.refused_as_wrong,
        "wrong_but_not_refused": soak.wrong_but_not_refused,
        "messages": soak.messages,
        "looks": list(map(asdict, soak.looks)),
    }
    if len(soak.looks) > 1:
        title = f"Memory of the server over {elapsed_s / 60:.0f} minutes at {LOAD:.0%} load"
        minutes = [(seconds / 60, mib) for seconds, mib in soak.memory()]
        (RESULTS / f"{name}.svg").write_text(draw_line(title, "minutes", "MiB", minutes))
    write_results(name, document, soak.verdicts(elapsed_s))


def _rates(server: ServerProcess, store: ModelStore) -> list[tuple[StreamFigures, Ask]]:
    """Returns the rate at which each stream takes its share, if sharing had no cost."""
    streams = []
    for name, form in STREAMS:
        model = golden_model(store, newest_manifest(store, name))
        lengths = check_answers(server, model, "")
        ask = ask_for(model, form, model.rows[:1])
        warm_up(server, form, ask, CLIENTS, lengths[form])
        load = closed_loop(server, form, ask, CLIENTS, 3, lengths[form])
        alone = load.answered / load.duration_s
        share = alone / len(STREAMS)
        print(f"{name}, {form}: alone {alone:,.0f} requests/s, a share {share:,.0f}", flush=True)
        streams.append((StreamFigures(model=name, form=form, offered_per_second=share), ask))
    return streams


async def _scale(server: ServerProcess, streams: Sequence[tuple[StreamFigures, Ask]]) -> None:
    """Scales the rates down to `LOAD` of the highest ones that are answered in time everywhere."""
    capacity = await find_capacity(
        server, [Stream(Form(one.form), ask, one.offered_per_second) for one, ask in streams]
    )
    print(f"so there is capacity for {capacity:.0%}, of which {LOAD:.0%} is asked:", flush=True)
    for figures, _ in streams:
        figures.offered_per_second *= LOAD * capacity
        rate = figures.offered_per_second
        print(f"{figures.model}, {figures.form}: {rate:,.0f} requests/s", flush=True)


async def _run(
    server: ServerProcess,
    streams: Sequence[tuple[StreamFigures, Ask]],
    soak: Soak,
    seconds: float,
) -> None:
    soak.streams = [figures for figures, _ in streams]
    soak.started_at = time.monotonic()
    shooters: list[Shooter] = []
    try:
        async with asyncio.timeout(seconds + 2 * LAST_ANSWERS_S), asyncio.TaskGroup() as tasks:
            for number, (figures, ask) in enumerate(streams):
                form = Form(figures.form)
                good = open_shooter(form, server.http, server.grpc, [ask])
                bad = open_shooter(form, server.http, server.grpc, _wrong(form, ask))
                shooters += [good, bad]
                tasks.create_task(_stream(good, figures, soak, seconds, SEED + 1000 * number))
                tasks.create_task(_leave(good, soak, seconds, len(streams)))
                tasks.create_task(_ask_wrongly(bad, soak, seconds, len(streams)))
            tasks.create_task(_look(server, soak, seconds))
    finally:
        for shooter in shooters:
            await shooter.close()


async def _stream(
    shooter: Shooter, figures: StreamFigures, soak: Soak, seconds: float, seed: int
) -> None:
    """Sends valid requests, slice after slice; no slice waits for the last one's responses."""
    async with asyncio.TaskGroup() as slices:
        for number in itertools.count():
            left_s = min(SLICE_S, seconds - soak.elapsed_s)
            if left_s <= 0:
                return
            slices.create_task(_slice(shooter, figures, soak, left_s, seed + number))
            await asyncio.sleep(left_s)


async def _slice(
    shooter: Shooter, figures: StreamFigures, soak: Soak, seconds: float, seed: int
) -> None:
    shots = Shots()
    arrivals = poisson_arrivals(figures.offered_per_second, seconds, seed)
    await OpenLoop(shooter, arrivals, shots, spins=False).run()
    answered = shots.where(Outcome.ANSWERED)
    figures.answered += int(answered.sum())
    figures.errors += int((~answered).sum())
    p99_ms = percentile(shots.durations_ms(answered), 99)
    figures.worst_slice_p99_ms = max(figures.worst_slice_p99_ms, p99_ms)
    for message, count in shots.messages.items():
        soak.messages[message] = soak.messages.get(message, 0) + count


async def _leave(shooter: Shooter, soak: Soak, seconds: float, among: int) -> None:
    """Runs clients that disconnect before the response."""
    for number, patience_s in enumerate(itertools.cycle(PATIENCE_S)):
        if soak.elapsed_s >= seconds:
            return
        await shooter.send_and_leave(number, patience_s)
        soak.hung_up += 1
        await asyncio.sleep(among / LEAVING_A_SECOND)


async def _ask_wrongly(shooter: Shooter, soak: Soak, seconds: float, among: int) -> None:
    """Sends requests that must be rejected as invalid: not as overload, not as a server error."""

    def answered(outcome: Outcome, body: bytes) -> None:
        if outcome is Outcome.WRONG:
            soak.refused_as_wrong += 1
        else:
            soak.wrong_but_not_refused += 1
            message = f"a wrong request: {outcome.name}: {body[:200].decode(errors='replace')}"
            soak.messages[message] = soak.messages.get(message, 0) + 1

    for number in itertools.count():
        if soak.elapsed_s >= seconds:
            return
        shooter.send(number, answered)
        await asyncio.sleep(among / WRONG_A_SECOND)


def _wrong(form: Form, ask: Ask) -> list[Ask]:
    """Returns invalid requests: truncated, for an unknown model, and outside the protocol."""
    stranger = replace(ask, path=ask.path.replace("/v2/models/", "/v2/models/no-"))
    if form is Form.GRPC:
        message = pb.ModelInferRequest.FromString(ask.body)
        message.model_name = f"no-{message.model_name}"
        stranger = replace(ask, body=message.SerializeToString())
    cut, noise = ask.body[: len(ask.body) // 2], b"\xff" * 64
    return [replace(ask, body=cut), stranger, replace(ask, body=noise)]


async def _look(server: ServerProcess, soak: Soak, seconds: float) -> None:
    """Samples the server every few seconds; prints a line of progress every minute."""
    told = None
    while soak.elapsed_s < seconds:
        look = Look(
            seconds=soak.elapsed_s,
            processes=processes_of(server.pid),
            server_cpu_s=cpu_seconds(server.pid),
            stolen_s=stolen_seconds(),
            answered=sum(stream.answered for stream in soak.streams),
            errors=soak.errors,
        )
        soak.looks.append(look)
        told = told or look
        if look.seconds - told.seconds >= REPORT_S:
            print(f"  {_progress(told, look)}; {soak.hung_up:,} hung up, "
                  f"{soak.refused_as_wrong:,} refused as wrong", flush=True)  # fmt: skip
            told = look
        await asyncio.sleep(LOOK_S)


def _progress(since: Look, look: Look) -> str:
    """Formats the changes between two samples."""
    answered = look.answered - since.answered
    cpu_us = (look.server_cpu_s - since.server_cpu_s) / max(answered, 1) * 1e6
    stolen_s = look.stolen_s - since.stolen_s
    return (
        f"{look.seconds / 60:5.1f} min: {look.memory_mib:.1f} MiB, {look.answered:,} answered, "
        f"{cpu_us:.0f} µs CPU each, {stolen_s:.1f} s stolen, errors {look.errors}"
    )


if __name__ == "__main__":
    main()
