"""Counts the batches of one lane: metrics, and the figures of the statistics calls.

In: batches as they begin and end, their parts, dropped requests. All on the event loop; a batch
costs a few microseconds here, a request some 0.1 µs.
"""

from services.errors import ServingError
from services.inference.scheduling.batch_rules import Batch
from services.inference.scheduling.instance import BatchPart, BatchReport
from services.queueing.memory_queue import Entry
from services.queueing.part_window import Window
from services.queueing.records import Lane
from services.telemetry.metrics import Metrics
from services.telemetry.model_figures import INFER_S, INPUT_S, OUTPUT_S, REQUESTS, RUNS


class BatchCounts:
    """The counters of one lane; those of a version's lanes are the same."""

    __slots__ = (
        "_batch_rows", "_execution_seconds", "_labels", "_loop_batches", "_metrics",
        "_queue_seconds", "_running", "_runs",
    )  # fmt: skip

    def __init__(self, lane: Lane, metrics: Metrics) -> None:
        labels = (lane.model, str(lane.version))
        self._metrics, self._labels = metrics, labels
        self._queue_seconds = metrics.queue_seconds.labels(*labels)
        self._execution_seconds = metrics.execution_seconds.labels(*labels)
        self._batch_rows = metrics.batch_rows.labels(*labels)
        self._loop_batches = metrics.loop_batches.labels(*labels)
        figures = metrics.figures.of(*labels)
        figures.queue, figures.batches = self._queue_seconds, self._batch_rows
        self._runs = figures.runs
        self._running: dict[int, int] = {}
        """Requests of running batches with merged ones, by the identity of each."""

    def began(self, batch: Batch, now: float) -> None:
        """Counts the requests of a batch that begins now."""
        waits = [now - e.enqueued_at for e in batch.entries for _ in range(e.request.merged)]
        self._queue_seconds.observe_all(waits)
        if len(waits) != len(batch.entries):
            self._running[id(batch)] = len(waits)

    def ran(self, batch: Batch, report: BatchReport, now: float) -> None:
        """Counts a batch that has ended now; of one that failed, the runs of its entries alone."""
        if not report.together:
            for entry in batch.entries:
                self._batch_rows.observe(entry.request.rows)
                self._runs.ran(entry.request.rows, entry.request.merged, now)
            self.abandoned(batch)
            return
        self._batch_rows.observe(batch.rows)
        self._execution_seconds.observe(report.seconds)
        if report.on_loop:
            self._loop_batches.inc()
        requests = len(batch.entries)
        if self._running:
            requests = self._running.pop(id(batch), requests)
        # `RunFigures.ran`, without a call for every batch.
        runs, rows = self._runs, batch.rows
        runs.last_run = now
        size = runs.sizes.get(rows) or runs.size_of(rows)
        size[RUNS] += 1
        size[REQUESTS] += requests
        input_s, output_s = report.input_s, report.output_s
        size[INPUT_S] += input_s
        size[INFER_S] += report.seconds - report.waited_s - input_s - output_s
        size[OUTPUT_S] += output_s

    def abandoned(self, batch: Batch) -> None:
        """Forgets a batch that did not end in time."""
        self._running.pop(id(batch), None)

    def gave(self, part: BatchPart) -> None:
        """Counts one of several answers to the requests of a batch."""
        given = 0
        for one in part.results:  # a generator would cost 0.5 µs for each part
            if one and not isinstance(one, ServingError):
                given += 1
        self._runs.gave(part.number, given, part.own_s)

    def ended(self, window: Window) -> int:
        """Counts the end behind several answers to a request. Returns its place."""
        self._runs.ended(window.given)
        return window.given

    def dropped(self, reason: str, entry: Entry) -> None:
        """Counts a request that leaves the queue without a run."""
        self._metrics.dropped.labels(*self._labels, reason).inc(entry.request.merged)

    def restarted(self, reason: str) -> None:
        """Counts a backend that is opened again."""
        self._metrics.worker_restarts.labels(*self._labels, reason).inc()
