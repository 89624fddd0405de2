"""Figures of each version for the statistics calls, beside the metrics.

In: the counters and histograms of a version, which the metrics have, too; and its runs by batch
size, which no metric has. Out: `VersionFigures`, which add up over processes.

Everything is on the event loop. A request costs nothing here; a batch some 0.3 µs.
"""

import time
from collections.abc import Iterable, Iterator

import msgspec

from services.telemetry.loop_metrics import CounterChild, HistogramChild

MAX_PLACES = 256
"""Places among the answers to a request that have figures of their own; later ones have none."""
MAX_SIZES = 1024
"""Batch sizes that have figures of their own; further ones count under the next power of two."""

RUNS, REQUESTS, INPUT_S, INFER_S, OUTPUT_S = range(5)
"""Fields of the figures of a batch size."""
SIZE_FIELDS = 5
ANSWERS, ANSWER_S, EMPTY = range(3)
"""Fields of the figures of a place among answers."""

BACKEND, REJECTED, CANCELLED, OTHER = "BACKEND", "REJECTED", "CANCELED", "OTHER"
"""Reasons of failures, as Triton's metrics name them."""


class VersionFigures(msgspec.Struct, array_like=True, gc=False):
    """The counts of a version, of one process or of several together."""

    model: str
    version: str
    answered: float = 0
    answered_s: float = 0
    failed: dict[str, tuple[float, float]] = {}
    """Failed requests and their seconds, by reason."""
    queued: float = 0
    """Requests that came into a batch."""
    queued_s: float = 0
    rows: float = 0
    """Rows of all runs."""
    runs: float = 0
    """Runs of the model."""
    last_run_at: float = 0
    """Seconds of Unix time; 0 for never."""
    sizes: dict[int, list[float]] = {}
    """By batch size: runs, requests, and seconds of input, run and output."""
    places: list[list[float]] = []
    """By place among the answers to a request: answers, their seconds, and empty ones."""

    def of_requests_s(self, field: int) -> float:
        """Returns a time of runs, counted once for each request in them.

        Args:
            field: `INPUT_S`, `INFER_S` or `OUTPUT_S`.
        """
        return sum(size[field] * size[REQUESTS] / size[RUNS] for size in self.sizes.values())

    def add(self, other: "VersionFigures") -> None:
        """Adds the figures of another process."""
        self.answered += other.answered
        self.answered_s += other.answered_s
        self.queued += other.queued
        self.queued_s += other.queued_s
        self.rows += other.rows
        self.runs += other.runs
        self.last_run_at = max(self.last_run_at, other.last_run_at)
        failed = dict(self.failed)
        for reason, (count, seconds) in other.failed.items():
            known = failed.get(reason, (0, 0))
            failed[reason] = known[0] + count, known[1] + seconds
        self.failed = failed
        sizes = dict(self.sizes)
        for rows, size in other.sizes.items():
            sizes[rows] = _sums(sizes.get(rows, []), size)
        self.sizes = sizes
        longer = max(len(self.places), len(other.places))
        mine, theirs = ([*f.places, *[[0.0] * 3] * (longer - len(f.places))] for f in (self, other))
        self.places = [_sums(one, more) for one, more in zip(mine, theirs, strict=True)]


def _sums(one: list[float], other: list[float]) -> list[float]:
    return [a + b for a, b in zip(one, other, strict=True)] if one else list(other)


class RunFigures:
    """The runs of one version."""

    __slots__ = ("last_run", "places", "sizes")

    def __init__(self) -> None:
        self.sizes: dict[int, list[float]] = {}
        """Figures by batch size."""
        self.places: list[list[float]] = []
        self.last_run = 0.0
        """`time.monotonic()` second of the end of the last run; 0 for none."""

    def ran(self, rows: int, requests: int, now: float) -> list[float]:
        """Counts a run of some requests; returns the figures of its size, for its times."""
        self.last_run = now
        size = self.sizes.get(rows) or self.size_of(rows)
        size[RUNS] += 1
        size[REQUESTS] += requests
        return size

    def gave(self, place: int, answers: int, seconds: float) -> None:
        """Counts one of several answers to the requests of a batch."""
        if (figures := self._place(place)) is not None:
            figures[ANSWERS] += answers
            figures[ANSWER_S] += seconds * answers

    def ended(self, place: int) -> None:
        """Counts the end behind several answers, which is empty."""
        if (figures := self._place(place)) is not None:
            figures[EMPTY] += 1

    def size_of(self, rows: int) -> list[float]:
        """Returns the figures of a batch size, which begin at 0."""
        if len(self.sizes) >= MAX_SIZES:
            rows = 1 << (rows - 1).bit_length()
        return self.sizes.setdefault(rows, [0.0] * SIZE_FIELDS)

    def _place(self, place: int) -> list[float] | None:
        if place >= MAX_PLACES:
            return None
        while len(self.places) <= place:
            self.places.append([0.0] * 3)
        return self.places[place]


class OneVersion:
    """The counters of one version in this process.

    Attributes:
        runs: its runs.
        queue: histogram of the waits of its requests; None while it has no worker here.
        batches: histogram of the rows of its batches; likewise.
        counters: of its requests, by protocol and code.
        histograms: of their durations, by protocol.
    """

    __slots__ = ("_failed", "_labels", "batches", "counters", "histograms", "queue", "runs")

    def __init__(self, model: str, version: str) -> None:
        self._labels = model, version
        self.runs = RunFigures()
        self.queue: HistogramChild | None = None
        self.batches: HistogramChild | None = None
        self.counters: dict[tuple[str, str], CounterChild] = {}
        self.histograms: dict[str, HistogramChild] = {}
        self._failed: dict[str, tuple[float, float]] = {}

    def failed(self, reason: str, seconds: float) -> None:
        """Counts a request that failed; its counter and histogram have it, too."""
        count, total_s = self._failed.get(reason, (0, 0))
        self._failed[reason] = count + 1, total_s + seconds

    def now(self) -> VersionFigures:
        """Returns the figures as of now."""
        failed = dict(self._failed)
        counts = sum(child.value for child in self.counters.values())
        seconds = sum(child.total for child in self.histograms.values())
        runs, queue, batches = self.runs, self.queue, self.batches
        return VersionFigures(
            *self._labels,
            answered=counts - sum(count for count, _ in failed.values()),
            answered_s=max(seconds - sum(seconds for _, seconds in failed.values()), 0.0),
            failed=failed,
            queued=sum(queue.counts) if queue is not None else 0,
            queued_s=queue.total if queue is not None else 0,
            rows=batches.total if batches is not None else 0,
            runs=sum(batches.counts) if batches is not None else 0,
            last_run_at=time.time() - (time.monotonic() - runs.last_run) if runs.last_run else 0,
            sizes={rows: [*size] for rows, size in runs.sizes.items()},
            places=[[*place] for place in runs.places],
        )

    @property
    def is_used(self) -> bool:
        """True if any request was counted here."""
        if self.queue is not None and self.runs.last_run:
            return True
        return any(child.value for child in self.counters.values())


class ModelFigures:
    """The figures of all versions of one process."""

    def __init__(self) -> None:
        self._versions: dict[tuple[str, str], OneVersion] = {}

    def of(self, model: str, version: str) -> OneVersion:
        """Returns the figures of a version, which begin at 0."""
        found = self._versions.get((model, version))
        if found is None:
            found = self._versions[model, version] = OneVersion(model, version)
        return found

    def all(self, model: str = "") -> Iterator[VersionFigures]:
        """Yields the figures of each version that had a request: of one model, or all."""
        for (name, _), one in list(self._versions.items()):
            if (not model or name == model) and one.is_used:
                yield one.now()

    def encoded(self) -> bytes:
        """Returns the figures of all versions for another process."""
        return _encode(list(self.all()))


Figures = dict[tuple[str, str], VersionFigures]
"""Figures by model and version."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[VersionFigures]).decode


def encode_figures(figures: Iterable[VersionFigures]) -> bytes:
    """Returns figures for another process."""
    return _encode(list(figures))


def decode_figures(data: bytes) -> list[VersionFigures]:
    """Returns the figures that another process has encoded.

    Raises:
        msgspec.DecodeError: they are not.
    """
    return _decode(data)


def added(processes: Iterable[Iterable[VersionFigures]]) -> Figures:
    """Returns the figures of several processes together."""
    found: Figures = {}
    for figures in processes:
        for one in figures:
            known = found.get((one.model, one.version))
            if known is None:
                found[one.model, one.version] = msgspec.structs.replace(one)
            else:
                known.add(one)
    return found
