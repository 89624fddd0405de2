"""The worker of a lane whose requests are steps of sequences.

It adds to `Worker`: a step is bound to its open sequence on arrival, or refused; sequences that are
idle for too long end; those whose state was in an instance that is replaced are lost.
"""

import asyncio
import time
from collections.abc import Callable, Mapping

from services.errors import NoSequenceError, ServingError
from services.inference.backends.backend import Backend
from services.inference.scheduling.batch_rules import Batch
from services.inference.scheduling.device_turns import DeviceTurns
from services.inference.scheduling.instance import BatchReport, Instance
from services.inference.scheduling.sequence_slots import SequenceSlots, sequence_rules
from services.inference.scheduling.worker import ANSWERS_AT_ONCE, Worker, WorkerPlan
from services.queueing.memory_queue import Entry, StepEntry
from services.telemetry.metrics import Metrics
from services.tracing.tracer import Tracer


def worker_of(
    plan: WorkerPlan, turns: DeviceTurns, metrics: Metrics, tracer: Tracer | None = None
) -> Worker:
    """Returns the worker of a lane: of sequences, or of requests that are independent."""
    sequences = plan.signature.sequence
    return (Worker if sequences is None else SequenceWorker)(plan, turns, metrics, tracer)


class SequenceWorker(Worker):
    """Runs the steps of one lane until it is closed and empty."""

    def __init__(
        self,
        plan: WorkerPlan,
        turns: DeviceTurns,
        metrics: Metrics,
        tracer: Tracer | None = None,
    ) -> None:
        rules = sequence_rules(plan.signature)
        self._slots = SequenceSlots(plan.lane, rules, len(plan.backends), self._idle_slots, metrics)
        self._idle_timer: asyncio.TimerHandle | None = None
        super().__init__(plan, turns, metrics, tracer, self._slots if rules.has_slots else None)

    @property
    def open_sequences(self) -> int:
        """Number of sequences whose state is kept."""
        return len(self._slots)

    def accept(self, entry: Entry) -> None:
        """Queues a step, or refuses it: its sequence is not open, or it has none."""
        step = entry.request.sequence
        if step is None:
            entry.finish(
                NoSequenceError(
                    f"model {entry.request.lane} keeps state over a sequence of requests, and this "
                    "one has no sequence; give a sequence_id that is neither 0 nor empty, and "
                    "sequence_start with the first"
                )
            )
            return
        assert isinstance(entry, StepEntry)
        try:
            entry.place = self._slots.bind(step, entry.enqueued_at)
        except ServingError as error:
            entry.finish(error)
            return
        if self._idle_timer is None:
            self._end_idle()
        super().accept(entry)

    def _end_idle(self) -> None:
        moment = self._slots.forget_over(time.monotonic())
        self._idle_timer = None
        if moment is not None:  # a little later: a sequence is idle only after its time
            self._idle_timer = self._loop.call_at(moment + 0.001, self._end_idle)

    def ran(self, instance: Instance, batch: Batch, report: BatchReport) -> None:
        """A batch was run, and its instance is free."""
        self._slots.ran(batch.entries, time.monotonic())
        super().ran(instance, batch, report)

    def lost(self, slot: int) -> None:
        """An instance was replaced: sequences whose state was in it are lost."""
        if self._slots.lose(slot):
            self._fail_steps(self._batcher.take_slot(slot))

    def replace_backends(
        self,
        backends: list[Backend],
        reopen: Callable[[], Backend],
        latency_s: Mapping[int, float],
        row_elements: int,
    ) -> None:
        """Runs all later batches on new backends; see `Worker.replace_backends`.

        Sequences whose state was in the old ones are lost.
        """
        if self._slots.begin_anew(len(backends)):
            slots = range(self._instances)
            self._fail_steps([one for slot in slots for one in self._batcher.take_slot(slot)])
            self._free()
        super().replace_backends(backends, reopen, latency_s, row_elements)

    async def run(self) -> None:
        """Waits until the lane is closed and all steps are answered; closes the backends."""
        await super().run()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self._slots.end_all("unloaded")
        self._free()

    def _idle_slots(self) -> set[int]:
        return {instance.slot for instance in self._idle}

    def _free(self) -> None:
        """Frees the states of sequences that have ended all at once, some in each turn."""
        if self._slots.free():
            self._loop.call_soon(self._free)

    def _fail_steps(self, entries: list[Entry], start: int = 0) -> None:
        """Answers steps whose sequences are lost, some in each turn."""
        stop = start + ANSWERS_AT_ONCE
        for entry in entries[start:stop]:
            step = entry.request.sequence
            assert step is not None
            entry.finish(self._slots.lost(step.id))
        if stop < len(entries):
            self._loop.call_soon(self._fail_steps, entries, stop)
