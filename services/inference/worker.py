"""One worker: takes entries of a lane, runs them in batches on a backend, answers each once.

Work-conserving: an idle worker takes what is there at once; while it is busy, requests gather.

Rules kept here: the backend runs in the worker's own thread, never on the event loop; an output
that does not have the batch's rows is an error of the whole batch; a batch that fails is run
again entry by entry, so that one bad item never harms its neighbours.
"""

import asyncio
import logging
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from model_store.tensors import Array
from services.errors import BackendError
from services.inference.backends.backend import Backend
from services.inference.batcher import Batcher
from services.queueing.memory_queue import Entry, MemoryQueue, deadline_exceeded
from services.queueing.records import InferReply, Lane
from services.telemetry.metrics import Metrics

logger = logging.getLogger("flambeau.worker")


@dataclass(frozen=True, slots=True, eq=False)
class _Run:
    """One run of the backend, shared by the entries of its batch."""

    rows: int
    seconds: float


_Result = tuple[Mapping[str, Array], _Run] | BackendError
"""An entry's outputs and the run they came from; or why there are none."""


class Worker:
    """Runs the batches of one lane on one backend, until the lane is closed and empty."""

    def __init__(
        self,
        lane: Lane,
        backend: Backend,
        max_batch_size: int,
        queue: MemoryQueue,
        metrics: Metrics,
    ) -> None:
        self._lane = lane
        self._backend = backend
        self._batcher = Batcher(max_batch_size)
        self._queue = queue
        labels = (lane.model, str(lane.version))
        self._queue_seconds = metrics.queue_seconds.labels(*labels)
        self._execution_seconds = metrics.execution_seconds.labels(*labels)
        self._batch_rows = metrics.batch_rows.labels(*labels)

    async def run(self) -> None:
        """The hot loop: take, run, reply."""
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1, f"worker-{self._lane.model}-{self._lane.version}") as thread:
            while batch := await self._next_batch():
                started = time.monotonic()
                results = await loop.run_in_executor(thread, self._execute, batch)
                self._reply(batch, results, started)
            await loop.run_in_executor(thread, self._backend.close)

    async def _next_batch(self) -> list[Entry]:
        """Waits for a batch; empty when the lane is closed and everything has been answered."""
        while True:
            room = self._batcher.room
            if self._batcher:
                taken = self._queue.take_now(self._lane, room)
            elif not (taken := await self._queue.take(self._lane, room)):
                return []
            self._batcher.add(taken)
            for entry in self._batcher.take_expired(time.monotonic()):
                entry.fail(deadline_exceeded(entry.request))
            if batch := self._batcher.next_batch():
                return batch

    def _execute(self, batch: list[Entry]) -> list[_Result]:
        """Runs a batch in the worker's thread; one result an entry, in order."""
        try:
            return self._run_together(batch)
        except Exception as error:  # whatever a model raises becomes an answer
            if len(batch) == 1:
                return [self._failure(batch[0], error)]
            logger.warning(
                "batch failed; running its requests one by one",
                extra={"model": self._lane.model, "version": self._lane.version,
                       "requests": len(batch), "error": str(error)},
            )  # fmt: skip
            return [self._execute([entry])[0] for entry in batch]

    def _run_together(self, batch: list[Entry]) -> list[_Result]:
        started = time.monotonic()
        rows = [entry.request.rows for entry in batch]
        outputs = self._backend.run(_stack([entry.request.inputs for entry in batch]))
        for name, array in outputs.items():
            if array.shape[:1] != (sum(rows),):
                raise BackendError(
                    f"model {self._lane} returned output '{name}' of shape {list(array.shape)} "
                    f"for a batch of {sum(rows)} rows; its first dimension must be the batch"
                )
        return _split(outputs, rows, _Run(sum(rows), time.monotonic() - started))

    def _failure(self, entry: Entry, error: Exception) -> BackendError:
        logger.error(
            "backend failed",
            extra={"model": self._lane.model, "version": self._lane.version,
                   "request_id": entry.request.request_id},
            exc_info=error,
        )  # fmt: skip
        if isinstance(error, BackendError):
            return error
        return BackendError(f"model {self._lane} failed on this input: {error}")

    def _reply(self, batch: list[Entry], results: list[_Result], started: float) -> None:
        """Answers every entry, on the event loop."""
        for entry, result in zip(batch, results, strict=True):
            queue_s = started - entry.enqueued_at
            self._queue_seconds.observe(queue_s)
            if isinstance(result, BackendError):
                entry.fail(result)
                continue
            outputs, run = result
            entry.reply(
                InferReply(
                    outputs=outputs, batch_rows=run.rows, queue_s=queue_s, execution_s=run.seconds
                )
            )
        for run in {result[1] for result in results if not isinstance(result, BackendError)}:
            self._batch_rows.observe(run.rows)
            self._execution_seconds.observe(run.seconds)


def _stack(requests: list[Mapping[str, Array]]) -> dict[str, Array]:
    """Joins inputs along the batch; the one copy between the wire and the backend."""
    if len(requests) == 1:
        return dict(requests[0])
    return {name: np.concatenate([r[name] for r in requests]) for name in requests[0]}


def _split(outputs: Mapping[str, Array], rows: list[int], run: _Run) -> list[_Result]:
    """Views of each entry's rows."""
    results: list[_Result] = []
    start = 0
    for count in rows:
        part = {name: array[start : start + count] for name, array in outputs.items()}
        results.append((part, run))
        start += count
    return results
