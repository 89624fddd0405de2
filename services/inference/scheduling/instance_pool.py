"""The instances of one lane: idle, running, being opened or leaving; and their watchdog.

In: open backends, and batches to run. Out: calls when a batch has run, when an instance was opened,
and when one was abandoned because it blocked.

Rules: an instance that blocks past `execution_timeout_s` is abandoned and replaced; instances of a
replaced artifact finish their batch first; a backend that cannot be opened is tried again; beside
the backends with weights of their own, those without run full batches only: small ones cost the
event loop more than they bring.
"""

import asyncio
import functools
import logging
import time
from collections.abc import Callable
from typing import Protocol

from flambeau.protocol.signature import Signature
from services.inference.backends.backend import Backend
from services.inference.scheduling.batch_rules import Batch, BatchRules
from services.inference.scheduling.batcher import Batcher
from services.inference.scheduling.instance import BatchPart, BatchReport, Instance
from services.inference.scheduling.stateful_arrays import arrays_of
from services.queueing.records import Lane

logger = logging.getLogger("flambeau.worker")

REOPEN_AFTER_S = 5.0
"""Delay before a retry to open a backend that could not be opened: memory may be free again by
then, and a load that fails each time takes little of the machine."""


class PoolOwner(Protocol):
    """The worker whose instances these are."""

    @property
    def needs_instances(self) -> bool:
        """True unless the lane is closed and nothing waits."""

    def ran(self, instance: Instance, batch: Batch, report: BatchReport) -> None:
        """A batch was run; the instance is not in `busy` any more."""

    def gave(self, part: BatchPart) -> None:
        """A backend gave one of several answers."""

    def blocked(self, instance: Instance, batch: Batch) -> None:
        """An instance was abandoned, with its batch, because it did not finish in time."""

    def opened(self) -> None:
        """An instance became idle."""

    def lost(self, slot: int) -> None:
        """The backend of a slot is replaced, and the state of its sequences with it."""

    def count_restart(self, reason: str) -> None:
        """Counts a backend that is opened again."""


class InstancePool:
    """The instances of one lane, on its event loop.

    Args:
        lane: of their batches.
        signature: of its version.
        rules: of batches.
        backends: open, one for each instance.
        reopen: opens another backend of the same verified artifact.
        execution_timeout_s: the most that a run may take.
        owner: is told what becomes of them.

    Attributes:
        idle: instances that wait for a batch; the last is the next to run one.
        busy: those that run one.
    """

    def __init__(
        self,
        lane: Lane,
        signature: Signature,
        rules: BatchRules,
        backends: list[Backend],
        reopen: Callable[[], Backend],
        execution_timeout_s: float,
        owner: PoolOwner,
    ) -> None:
        self._lane, self._rules = lane, rules
        self._arrays = arrays_of(lane, signature, rules.padded_rows)
        self._reopen = reopen
        self._timeout_s = execution_timeout_s
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._facts = {"model": lane.model, "version": lane.version}
        self._opening: set[Instance] = set()
        self._leaving: list[Instance] = []
        """Instances of a replaced artifact; each ends after its last batch."""
        self._watchdog: asyncio.TimerHandle | None = None
        self._ended = False
        self._own = sum(not backend.is_twin for backend in backends)
        self.busy: set[Instance] = set()
        self.idle = [self._instance(backend, slot) for slot, backend in enumerate(backends)]

    @property
    def is_free(self) -> bool:
        """True if an instance is idle, and fewer run than there are copies of the weights."""
        return bool(self.idle) and len(self.busy) < self._own

    def may_run(self, batcher: Batcher, now: float) -> bool:
        """Returns True if an instance may run the next batch."""
        return self.is_free or (bool(self.idle) and batcher.fills_batch(now))

    @property
    def fits_loop(self) -> bool:
        """True if the event loop may run batches of the idle instances."""
        return all(instance.fits_loop for instance in self.idle)

    def begin(self, batch: Batch, expected_s: float, *, on_loop: bool) -> None:
        """Runs a batch on an idle instance: that of its slot, if it has one; see `Instance.run`."""
        at = -1
        if batch.slot is not None:
            at = next(at for at, one in enumerate(self.idle) if one.slot == batch.slot)
        instance = self.idle.pop(at)
        self.busy.add(instance)
        instance.run(batch, expected_s, on_loop=on_loop)
        if self._watchdog is None:
            self._watch(self._timeout_s)

    def frees_at(self) -> float:
        """Returns a cautious estimate of the first running batch's end; 0 if none runs."""
        return min(
            (
                i.started_at + i.batch.curve.cautious_s(i.batch.padded_rows)
                for i in self.busy
                if i.batch is not None
            ),
            default=0.0,
        )

    def replace(self, backends: list[Backend], reopen: Callable[[], Backend]) -> None:
        """Runs all later batches on new backends; running batches finish.

        Args:
            backends: open, one for each instance.
            reopen: opens another backend of the same verified artifact.
        """
        self._reopen = reopen
        self._own = sum(not backend.is_twin for backend in backends)
        for instance in (*self.idle, *self.busy, *self._opening):
            instance.retired = True
        for instance in (*self.idle, *self._opening):
            instance.stop()
        leaving = (*self._leaving, *self.idle, *self.busy)
        self._leaving = [one for one in leaving if one.is_alive]  # the others need no `join`
        self._opening.clear()
        self.idle[:] = [self._instance(backend, slot) for slot, backend in enumerate(backends)]

    def abandon_runs(self) -> None:
        """Abandons running batches."""
        for instance in list(self.busy):
            self.busy.discard(instance)
            instance.abandon()

    async def end(self) -> None:
        """Ends all instances, which closes their backends."""
        self._ended = True
        if self._watchdog is not None:
            self._watchdog.cancel()
        for instance in (*self.idle, *self._opening):
            instance.stop()
        for instance in (*self.idle, *self._leaving):
            if not instance.abandoned:
                await asyncio.to_thread(instance.join)

    def _instance(self, backend: Backend | None, slot: int) -> Instance:
        return Instance(
            self._lane, slot, self._arrays, self._rules, backend, self._reopen, self._finished,
            self._owner.gave, functools.partial(self._restarted, slot),
        )  # fmt: skip

    def _restarted(self, slot: int) -> None:
        """Handles an instance's callback: the process of its backend died, and was replaced."""
        self._owner.count_restart("died")
        self._owner.lost(slot)

    def _finished(
        self, instance: Instance, batch: Batch | None, report: BatchReport | Exception | None
    ) -> None:
        """Handles an instance's callback: a batch was run, or a backend was or was not opened."""
        if instance.abandoned:
            return
        if batch is None or not isinstance(report, BatchReport):
            self._opened(instance, report if isinstance(report, Exception) else None)
            return
        self.busy.discard(instance)
        instance.batch = None
        if instance.retired:
            instance.stop()
        else:
            self.idle.append(instance)
        self._owner.ran(instance, batch, report)

    def _watch(self, delay_s: float) -> None:
        self._watchdog = self._loop.call_later(delay_s, self._look_for_blocked)

    def _look_for_blocked(self) -> None:
        """Abandons instances that block, and reschedules itself while any instance is running."""
        self._watchdog = None
        limit_s, now = self._timeout_s, time.monotonic()
        for instance in [i for i in self.busy if i.running_s(now) >= limit_s]:
            self._abandon(instance)
        if self.busy:
            self._watch(max(limit_s - max(i.running_s(now) for i in self.busy), 0.001))

    def _abandon(self, instance: Instance) -> None:
        batch = instance.batch
        assert batch is not None
        logger.error(
            "backend blocks; abandoning its thread and starting another",
            extra={**self._facts, "requests": len(batch.entries),
                   "execution_timeout_s": self._timeout_s},
        )  # fmt: skip
        self.busy.discard(instance)
        instance.abandon()
        self._owner.count_restart("blocked")
        if not instance.retired:
            self._open_another(instance.slot)
            self._owner.lost(instance.slot)
        self._owner.blocked(instance, batch)

    def _open_another(self, slot: int) -> None:
        if self._owner.needs_instances:
            self._opening.add(self._instance(None, slot))

    def _opened(self, instance: Instance, error: Exception | None) -> None:
        self._opening.discard(instance)
        if self._ended or instance.retired:
            return  # it was stopped
        if error is None:
            self.idle.append(instance)
            self._owner.opened()
            return
        logger.error(
            "no backend could be opened; trying again",
            extra={**self._facts, "retry_s": REOPEN_AFTER_S},
            exc_info=error,
        )
        self._loop.call_later(REOPEN_AFTER_S, self._open_another, instance.slot)
