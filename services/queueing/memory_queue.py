"""The queue of one process: hands each request to the lane's intake at once, and its reply back.

In: `InferRequest`s from gateways. Out: entries to the intake of their lane (a worker, which
holds them until a batch has room), and one outcome to each caller.

Rules kept here:
- the caller's `done` is known before the entry is visible, and is called at most once: with the
  outcome, or never after the caller cancelled;
- a caller that cancels, or whose time is up, leaves a dead entry: the intake is told, so that it
  never reaches a batch;
- a lane's intake holds at most `max_depth` entries; the next one is refused, never dropped later;
- what a limit refuses goes to another lane instead, once, if its gateway has named one;
- a closed lane takes nothing new.

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
from services.queueing.records import InferReply, InferRequest, Lane

logger = logging.getLogger("flambeau.queue")

Outcome = InferReply | ServingError
"""What a request comes to: outputs, or why there are none."""
Done = Callable[[Outcome], None]

_CANCELLED = ServingError("the caller has gone")
"""The outcome of a cancelled request, which nobody sees."""


class Intake(Protocol):
    """What takes a lane's entries: the worker's side of the queue."""

    @property
    def waiting(self) -> int:
        """Entries taken and not yet in a batch."""

    def accept(self, entry: "Entry") -> None:
        """Takes an entry, or finishes it at once with the error that refuses it."""

    def discard(self, entry: "Entry", reason: str) -> None:
        """Forgets an entry that died while it waited; one in a batch is let run.

        Args:
            entry: dead by now.
            reason: `cancelled`, `expired`, or `failed` when the server gives up.
        """


class Holder(Protocol):
    """Who is to know when an entry is no longer in flight: answered, or nobody waits for it.

    Attributes:
        in_flight: its entries that are.
    """

    in_flight: int

    def rest(self) -> None:
        """None is any more."""


class Entry:
    """A request in the queue and the caller that waits for it.

    Attributes:
        request: what to run.
        enqueued_at: `time.monotonic()` second.
        order: where the intake has sorted it; smaller runs earlier.
        tick: where `Deadlines` has put it.
        dead: whether nobody waits any more: answered, cancelled or given up.
        degrade_to: the lane it goes to rather than be refused by a limit, if any.
        holder: whose share of what is in flight it takes; None where there are no shares.
        queue: where it is counted; set by the queue that lets it in, with
        intake: who has taken it.
    """

    __slots__ = (
        "_done", "dead", "degrade_to", "enqueued_at", "holder", "intake", "order", "queue",
        "request", "tick",
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
        self._done = done

    @property
    def deadline(self) -> float:
        """The request's."""
        return self.request.deadline

    def finish(self, outcome: Outcome) -> None:
        """Answers the caller, if it still waits."""
        if not self.dead:
            self.dead = True
            done, self._done = self._done, _nobody
            holder = self.holder
            if holder is not None:
                holder.in_flight -= 1
                if not holder.in_flight:
                    holder.rest()
            queue = self.queue
            if queue is not None:
                queue.unanswered -= 1
                if self.tick:
                    queue.deadlines.remove(self)
                if queue.emptied is not None and not queue.unanswered:
                    queue.emptied.set()
            try:
                done(outcome)
            except Exception:  # a fault of one caller must not cost its batch-mates their answers
                logger.exception(
                    "an answer could not be handed over",
                    extra={"request_id": self.request.request_id},
                )

    def refuse(self, error: ServingError) -> None:
        """Answers with why it is not taken; if a limit is, it tries its other lane first."""
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
        """The caller waits no more, and is not called."""
        if not self.dead:
            self._done = _nobody
            self.abandon(_CANCELLED, "cancelled")

    def expire(self) -> None:
        """The deadline has passed."""
        self.abandon(deadline_exceeded(self.request), "expired")

    def abandon(self, outcome: Outcome, reason: str) -> None:
        """Answers the caller although the request has not run, and tells the intake why."""
        if not self.dead:
            self.finish(outcome)
            if self.intake is not None:
                self.intake.discard(self, reason)


class MemoryQueue:
    """Requests by lane.

    Attributes:
        max_depth: entries that may wait for one lane.
        unanswered: entries whose callers wait, in batches or not.
        deadlines: theirs.
        emptied: there while somebody waits for none to be unanswered.
    """

    def __init__(self, max_depth: int) -> None:
        self.max_depth = max_depth
        self._intakes: dict[Lane, Intake] = {}
        self.unanswered = 0
        self.deadlines: Deadlines[Entry] = Deadlines()
        self.emptied: asyncio.Event | None = None

    def open(self, lane: Lane, intake: Intake) -> None:
        """Lets requests for a lane in."""
        self._intakes[lane] = intake

    def close(self, lane: Lane, closed: Callable[[], None] | None = None) -> None:
        """Lets no more in; the intake still answers what it holds.

        Args:
            lane: which.
            closed: called when nothing more will come: at once.
        """
        self._intakes.pop(lane, None)
        if closed is not None:
            closed()

    def with_room(self, lane: Lane) -> Intake | None:
        """The intake of a lane that takes one more entry; None if it is closed or full."""
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
            request: what to run.
            done: called once with the outcome, perhaps before this returns. An outcome is the
                worker's answer, or QueueFullError (the lane is at its limit), ModelNotReadyError
                (it is not open), DeadlineExceededError (the time was up first).
            degrade_to: the lane it goes to if its own is at a limit; None refuses it.
            now: `time.monotonic()` second, if the gateway has just read it.

        Returns:
            The entry, for `cancel`.
        """
        entry = Entry(request, now or time.monotonic(), done, degrade_to)
        intake = self._intakes.get(request.lane)
        if intake is None:
            entry.finish(ModelNotReadyError(f"model {request.lane} is not being served; try again"))
            return entry
        is_full = intake.waiting >= self.max_depth
        if not is_full or degrade_to is not None:
            entry.queue, entry.intake = self, intake
            self.unanswered += 1
            self.deadlines.add(entry, request.deadline - entry.enqueued_at)
        if not is_full:
            intake.accept(entry)
        else:
            entry.refuse(
                QueueFullError(
                    f"the queue of model {request.lane} holds {self.max_depth} requests, its "
                    "limit; retry later or add servers"
                )
            )
        return entry

    async def wait_empty(self, timeout_s: float) -> int:
        """Waits until every caller has its answer.

        Returns:
            The callers that still waited when the time was up.
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


def _nobody(_: Outcome) -> None:
    """Stands in for a caller that has gone."""


def deadline_exceeded(request: InferRequest) -> DeadlineExceededError:
    """The error of a request whose time ran out."""
    return DeadlineExceededError(
        f"request '{request.request_id}' to model {request.lane} ran out of time before its "
        "reply; give it a longer deadline or add servers"
    )
