"""The queue of one process: passes each request to its lane's intake at once, returns its reply.

In: `InferRequest`s from gateways. Out: entries to the intake of their lane (a worker, which
holds them until a batch has room), and one outcome to each caller.

Rules:
- the caller's `done` is set before the entry is visible, and is called at most once: with the
  outcome, or never after the caller cancelled;
- a cancelled or expired request leaves a dead entry: the intake is notified, so that it never
  reaches a batch;
- a lane's intake holds at most `max_depth` entries; the next one is refused, never dropped later;
- a request that a limit refuses goes to another lane, once, if its gateway has named one;
- a closed lane accepts no requests;
- the steps of a sequence go on one at a time, in order (`sequence_steps.py`).

Everything runs on one event loop; no call here blocks or awaits.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import Protocol

import msgspec

from services.errors import (
    DeadlineExceededError,
    ModelNotReadyError,
    OverloadedError,
    QueueFullError,
    ServingError,
)
from services.queueing.deadlines import Deadlines
from services.queueing.part_window import Window
from services.queueing.records import InferReply, InferRequest, Lane
from services.queueing.sequence_steps import SequenceSteps

logger = logging.getLogger("flambeau.queue")

Outcome = InferReply | ServingError
"""Outcome of a request: its outputs, or the error."""
Done = Callable[[Outcome], None]

_CANCELLED = ServingError("the caller has disconnected")
"""Outcome of a cancelled request, which is never delivered."""


class Intake(Protocol):
    """The worker's side of the queue: accepts the requests of one lane."""

    @property
    def waiting(self) -> int:
        """Entries accepted and not yet in a batch."""

    def accept(self, entry: "Entry") -> None:
        """Accepts an entry, or finishes it at once with an error."""

    def discard(self, entry: "Entry", reason: str) -> None:
        """Removes an entry that died while it waited; one in a batch still runs.

        Args:
            entry: dead entry.
            reason: `cancelled`, `expired`, or `failed` when the server aborts it.
        """


class Holder(Protocol):
    """Receives the number of requests in flight of one tenant.

    Attributes:
        in_flight: number of its entries in flight, neither answered nor abandoned.
    """

    in_flight: int

    def rest(self) -> None:
        """Called when none is in flight any more."""


class Entry:
    """A request in the queue and the caller that waits for it.

    Attributes:
        request: request to run.
        enqueued_at: `time.monotonic()` second.
        order: sort key set by the intake; smaller runs earlier.
        tick: tick set by `Deadlines`.
        dead: True once the request was answered, cancelled or aborted.
        degrade_to: fallback lane if a limit refuses it, if any.
        holder: holder of the share of requests in flight; None where there are no shares.
        window: window of its parts, if it has several answers.
        queue: queue that counts it; set by the queue that admits it, with
        intake: intake that has accepted it.
    """

    __slots__ = (
        "_done", "dead", "degrade_to", "enqueued_at", "holder", "intake", "order", "queue",
        "request", "tick", "window",
    )  # fmt: skip

    def __init__(
        self, request: InferRequest, enqueued_at: float, done: Done, degrade_to: Lane | None = None
    ) -> None:
        self.request = request
        self.enqueued_at = enqueued_at
        self.order = 0.0
        self.tick = 0
        self.queue: MemoryQueue | None = None
        self.intake: Intake | None = None
        self.dead = False
        self.degrade_to = degrade_to
        self.holder: Holder | None = None
        self.window: Window | None = None
        self._done = done

    @property
    def deadline(self) -> float:
        """The request's deadline."""
        return self.request.deadline

    def part(self, reply: InferReply) -> None:
        """Hands over a reply that is not the last, if the caller still waits."""
        if not self.dead:
            try:
                self._done(reply)
            except Exception:  # as in `finish`
                logger.exception(
                    "a response could not be delivered",
                    extra={"request_id": self.request.request_id},
                )

    def finish(self, outcome: Outcome) -> None:
        """Answers the caller, if it still waits."""
        if not self.dead:
            self.dead = True
            done, self._done = self._done, _ignore
            holder = self.holder
            if holder is not None:
                holder.in_flight -= 1
                if not holder.in_flight:
                    holder.rest()
            queue = self.queue
            if queue is not None:
                queue.unanswered -= 1
                queue.deadlines.remove(self)
                if queue.emptied is not None and not queue.unanswered:
                    queue.emptied.set()
            try:
                done(outcome)
            except Exception:  # a fault of one caller must not cost its batch-mates their answers
                logger.exception(
                    "a response could not be delivered",
                    extra={"request_id": self.request.request_id},
                )

    def refuse(self, error: ServingError) -> None:
        """Answers with an error; if a limit refused it, tries the fallback lane first."""
        lane, self.degrade_to = self.degrade_to, None
        queue = self.queue
        if lane is None or queue is None or self.dead or not isinstance(error, OverloadedError):
            self.finish(error)
            return
        intake = queue.with_room(lane)
        if intake is None:
            self.finish(error)
            return
        self.request = msgspec.structs.replace(self.request, lane=lane)
        self.intake = intake
        intake.accept(self)

    def cancel(self) -> None:
        """Cancels the request; its callback is not called."""
        if not self.dead:
            self._done = _ignore
            self.abandon(_CANCELLED, "cancelled")

    def expire(self) -> None:
        """Fails the request: its deadline has passed."""
        self.abandon(deadline_exceeded(self.request), "expired")

    def abandon(self, outcome: Outcome, reason: str) -> None:
        """Answers the caller of a request that has not run, and passes the reason to the intake."""
        if not self.dead:
            self.finish(outcome)
            if self.window is not None:
                self.window.close()
            if self.intake is not None:
                self.intake.discard(self, reason)


class Place(Protocol):
    """The open sequence of a step.

    Attributes:
        under_way: True until the step is answered.
    """

    under_way: bool


class StepEntry(Entry):
    """An entry of a request that carries a sequence: its end lets the next step go on."""

    __slots__ = ("place",)

    def __init__(self, request: InferRequest, enqueued_at: float, done: Done) -> None:
        Entry.__init__(self, request, enqueued_at, done)  # faster than `super`
        self.place: Place | None = None
        """Its open sequence; set by the intake."""

    def finish(self, outcome: Outcome) -> None:
        """Answers the caller, if it still waits."""
        if self.dead:
            return
        if self.place is not None:
            self.place.under_way = False
        Entry.finish(self, outcome)
        if self.queue is not None:
            self.queue.step_is_over(self)


class MemoryQueue:
    """Queues requests by lane.

    Attributes:
        max_depth: most entries that may wait for one lane.
        unanswered: entries whose callers wait, in batches or not.
        deadlines: deadlines of the entries.
        emptied: event that `wait_empty` waits for; None while no call waits.
    """

    def __init__(self, max_depth: int) -> None:
        self.max_depth = max_depth
        self._intakes: dict[Lane, Intake] = {}
        self.unanswered = 0
        self.deadlines: Deadlines[Entry] = Deadlines()
        self.emptied: asyncio.Event | None = None
        self._steps: SequenceSteps[Entry] = SequenceSteps()

    def open(self, lane: Lane, intake: Intake) -> None:
        """Admits requests for a lane."""
        self._intakes[lane] = intake

    def close(self, lane: Lane, closed: Callable[[], None] | None = None) -> None:
        """Stops admission; the intake still answers the requests it holds.

        Args:
            lane: lane to close.
            closed: callback, called at once.
        """
        self._intakes.pop(lane, None)
        for entry in self._steps.behind(lane):
            entry.finish(not_served(lane))
        if closed is not None:
            closed()

    def with_room(self, lane: Lane) -> Intake | None:
        """Returns a lane's intake if it accepts one more entry; None if closed or full."""
        intake = self._intakes.get(lane)
        return intake if intake is not None and intake.waiting < self.max_depth else None

    def submit(
        self,
        request: InferRequest,
        done: Done,
        degrade_to: Lane | None = None,
        now: float | None = None,
    ) -> Entry:
        """Enqueues a request.

        Args:
            request: request to run.
            done: called once with the outcome, perhaps before this returns. An outcome is the
                worker's answer, or QueueFullError (the lane is at its limit), ModelNotReadyError
                (it is not open), DeadlineExceededError (the time was up first).
            degrade_to: the lane it goes to if its own is at a limit; None refuses it.
            now: `time.monotonic()` second, if the gateway has just read it.

        Returns:
            The entry, for `cancel`.
        """
        if request.sequence is not None:
            return self._submit_step(request, done, now or time.monotonic())
        entry = Entry(request, now or time.monotonic(), done, degrade_to)
        intake = self._intakes.get(request.lane)
        if intake is None:
            entry.finish(not_served(request.lane))
            return entry
        is_full = intake.waiting >= self.max_depth
        if not is_full or degrade_to is not None:
            entry.queue, entry.intake = self, intake
            self.unanswered += 1
            self.deadlines.add(entry, request.deadline - entry.enqueued_at)
        if is_full:
            entry.refuse(self._is_full(request.lane))
        else:
            intake.accept(entry)
        return entry

    def _submit_step(self, request: InferRequest, done: Done, now: float) -> Entry:
        """Enqueues a step of a sequence; no other lane takes it, whose artifact has other state."""
        entry = StepEntry(request, now, done)
        intake = self._intakes.get(request.lane)
        if intake is None:
            entry.finish(not_served(request.lane))
            return entry
        if intake.waiting >= self.max_depth:
            entry.finish(self._is_full(request.lane))
            return entry
        try:
            goes_on = self._steps.begin(entry)
        except QueueFullError as error:
            entry.finish(error)
            return entry
        entry.queue, entry.intake = self, intake
        self.unanswered += 1
        self.deadlines.add(entry, request.deadline - now)
        if goes_on:
            intake.accept(entry)
        return entry

    def _is_full(self, lane: Lane) -> QueueFullError:
        return QueueFullError(
            f"the queue of model {lane} holds {self.max_depth} requests, its limit; retry later or "
            "add servers"
        )

    def step_is_over(self, entry: Entry) -> None:
        """Lets the next step of a sequence go on."""
        following = self._steps.over(entry)
        if following is not None:
            assert following.intake is not None
            following.intake.accept(following)

    async def wait_empty(self, timeout_s: float) -> int:
        """Waits until every caller is answered.

        Returns:
            The number of callers that still waited at the timeout.
        """
        if self.unanswered:
            self.emptied = asyncio.Event()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self.emptied.wait()
            self.emptied = None
        return self.unanswered

    def fail_all(self, error: ServingError) -> None:
        """Answers every caller that still waits with an error; their entries are dead."""
        for entry in self.deadlines:
            entry.abandon(error, "failed")


def _ignore(_: Outcome) -> None:
    """Callback of a cancelled caller."""


def not_served(lane: Lane) -> ModelNotReadyError:
    """Returns the error of a request to a lane that is not open."""
    return ModelNotReadyError(f"model {lane} is not being served; try again")


def deadline_exceeded(request: InferRequest) -> DeadlineExceededError:
    """Returns the error of an expired request."""
    return DeadlineExceededError(
        f"request '{request.request_id}' to model {request.lane} reached its deadline before its "
        "response; give it a longer deadline or add servers"
    )
