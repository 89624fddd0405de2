"""The seam between the queue and who runs what is in it.

Two queues ship: `MemoryQueue` within one process, and `RedisReceiver` across many.
"""

from collections.abc import Callable
from typing import Protocol

from services.queueing.memory_queue import Entry, Intake
from services.queueing.records import Lane


class WorkerIntake(Intake, Protocol):
    """What runs a lane's entries. A queue across processes asks more of it than one within."""

    @property
    def capacity(self) -> int:
        """Entries worth holding: those that run at once, and one batch more."""

    @property
    def spare_capacity(self) -> int:
        """Jobs worth holding: as many, while nothing else waits for the device; else none."""

    def release(self, entry: Entry) -> bool:
        """Gives up an entry that is in no batch yet. Returns whether it was there."""


class LaneQueue(Protocol):
    """Where lanes are open, as inference uses it."""

    def open(self, lane: Lane, intake: WorkerIntake) -> None:
        """Lets requests for a lane in."""

    def close(self, lane: Lane, closed: Callable[[], None]) -> None:
        """Lets no more in; the intake still answers what it holds.

        Args:
            lane: which.
            closed: called when nothing more will come, perhaps before this returns.
        """
