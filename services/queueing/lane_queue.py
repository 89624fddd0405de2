"""Interface between the queue and the workers that run its requests.

Three queues ship: `MemoryQueue` within one process, `EdgeLinks` across the processes of a server,
and `RedisReceiver` across machines.
"""

from collections.abc import Callable
from typing import Protocol

from services.queueing.memory_queue import Entry, Intake
from services.queueing.records import Lane


class WorkerIntake(Intake, Protocol):
    """Runs a lane's requests. A queue across processes needs more methods than a local one."""

    @property
    def capacity(self) -> int:
        """Requests worth holding: those that run at once, and one batch more."""

    @property
    def background_capacity(self) -> int:
        """Jobs worth holding: as `capacity` while nothing else waits for the device; else none."""

    def release(self, entry: Entry) -> bool:
        """Releases an entry that is in no batch yet. Returns True if it was held."""


class LaneQueue(Protocol):
    """The queue's open lanes, as inference uses them."""

    @property
    def max_depth(self) -> int:
        """Most entries that may wait for one lane in this process."""

    def open(self, lane: Lane, intake: WorkerIntake) -> None:
        """Admits requests for a lane."""

    def close(self, lane: Lane, closed: Callable[[], None]) -> None:
        """Stops admission; the intake still answers the requests it holds.

        Args:
            lane: lane to close.
            closed: callback, called when no more requests will come, perhaps before this returns.
        """
