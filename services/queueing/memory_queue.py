"""The queue of one process: a deque a lane, owned by one event loop.

In: `InferRequest`s from gateways. Out: entries to workers, and one reply to each caller.

Rules kept here:
- the waiter exists before the entry is visible, and is checked before it is completed, so a
  request gets exactly one reply;
- a caller that is cancelled or out of time leaves a dead entry behind, which the batcher drops;
- a lane holds at most `max_depth` entries; the next one is refused, never dropped later;
- a closed lane takes nothing new and hands out what it holds.
"""

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field

from services.errors import (
    DeadlineExceededError,
    ModelNotReadyError,
    QueueFullError,
    ServingError,
)
from services.queueing.records import InferReply, InferRequest, Lane


@dataclass(slots=True, eq=False)
class Entry:
    """A request in the queue and the caller that waits for it."""

    request: InferRequest
    waiter: asyncio.Future[InferReply]
    enqueued_at: float
    """`time.monotonic()` second."""

    @property
    def dead(self) -> bool:
        """Whether nobody waits any more: answered, cancelled or given up."""
        return self.waiter.done()

    def reply(self, reply: InferReply) -> None:
        """Answers the caller, if it still waits."""
        if not self.waiter.done():
            self.waiter.set_result(reply)

    def fail(self, error: ServingError) -> None:
        """Answers the caller with an error, if it still waits."""
        if not self.waiter.done():
            self.waiter.set_exception(error)


@dataclass(slots=True)
class _LaneState:
    entries: deque[Entry] = field(default_factory=deque)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while there is something to take, or the lane is closed."""
    closed: bool = False


class MemoryQueue:
    """Requests by lane, first come first served."""

    def __init__(self, max_depth: int) -> None:
        self._max_depth = max_depth
        self._lanes: dict[Lane, _LaneState] = {}
        self._waited_for: set[Entry] = set()

    def open(self, lane: Lane) -> None:
        """Lets requests for a lane in."""
        self._lanes[lane] = _LaneState()

    def close(self, lane: Lane) -> None:
        """Lets no more in; workers still take what is there."""
        state = self._lanes[lane]
        state.closed = True
        state.arrived.set()

    def forget(self, lane: Lane) -> None:
        """Removes a closed and empty lane."""
        del self._lanes[lane]

    def depth(self, lane: Lane) -> int:
        """Entries waiting in a lane."""
        state = self._lanes.get(lane)
        return len(state.entries) if state else 0

    async def submit(self, request: InferRequest) -> InferReply:
        """Enqueues a request and waits for its reply. Enqueues before the first `await`.

        Raises:
            QueueFullError: the lane is at its limit.
            ModelNotReadyError: the lane is not open.
            DeadlineExceededError: the deadline passed first; the entry is dead from then on.
            ServingError: what the worker answered.
        """
        state = self._lanes.get(request.lane)
        if state is None or state.closed:
            raise ModelNotReadyError(f"model {request.lane} is not being served; try again")
        if len(state.entries) >= self._max_depth:
            raise QueueFullError(
                f"the queue of model {request.lane} holds {self._max_depth} requests, its limit; "
                "retry later or add servers"
            )
        now = time.monotonic()
        waiter: asyncio.Future[InferReply] = asyncio.get_running_loop().create_future()
        entry = Entry(request, waiter, now)
        self._waited_for.add(entry)
        state.entries.append(entry)
        state.arrived.set()
        try:
            async with asyncio.timeout(request.deadline - now):
                return await waiter
        except TimeoutError:
            raise deadline_exceeded(request) from None
        finally:
            self._waited_for.discard(entry)

    def fail_all(self, error: ServingError) -> None:
        """Answers every caller that still waits with an error; their entries are dead."""
        for entry in self._waited_for:
            entry.fail(error)

    async def take(self, lane: Lane, limit: int) -> list[Entry]:
        """Waits for work and takes up to `limit` entries, oldest first.

        Returns:
            At least one entry, or none when the lane is closed and empty.
        """
        state = self._lanes[lane]
        await state.arrived.wait()
        return self.take_now(lane, limit)

    def take_now(self, lane: Lane, limit: int) -> list[Entry]:
        """Takes up to `limit` entries that are there at once, oldest first."""
        state = self._lanes[lane]
        taken = [state.entries.popleft() for _ in range(min(limit, len(state.entries)))]
        if not state.entries and not state.closed:
            state.arrived.clear()
        return taken


def deadline_exceeded(request: InferRequest) -> DeadlineExceededError:
    """The error of a request whose time ran out."""
    return DeadlineExceededError(
        f"request '{request.request_id}' to model {request.lane} ran out of time before its "
        "reply; give it a longer deadline or add servers"
    )
