"""The window of a request with many answers: the number of parts that its reader may leave unread.

In: parts that are handed over, and those that the edge has written. Out: the backend's pauses. A
slow reader slows its own model, and holds `MAX_UNREAD` parts at most.

Between processes each end has a part of it: the worker a `PartWindow`, which the gateway's
`ArrivingParts` (`redis_streams/arriving_parts.py`) tells how many parts were read.
"""

import threading
from typing import Protocol

MAX_UNREAD = 8
"""Parts that are handed over and not written yet."""


class Window(Protocol):
    """The interface that the readers of parts use."""

    @property
    def given(self) -> int:
        """Parts that were handed over."""

    def take(self) -> None:
        """Counts a part that was written."""

    def close(self) -> None:
        """Ends the window: the request was answered, cancelled or aborted."""


class PartWindow:
    """The window of one request in the process that runs it; used by two threads."""

    def __init__(self, max_unread: int = MAX_UNREAD) -> None:
        self._max_unread = max_unread
        self._given = self._read = 0
        self._is_closed = False
        self._changed = threading.Condition()

    @property
    def given(self) -> int:
        """Parts that were handed over."""
        return self._given

    def give(self) -> bool:
        """Waits until one more part may be handed over, and counts it.

        Returns:
            False if nobody reads any more.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self._is_closed or self._given - self._read < self._max_unread
            )
            if not self._is_closed:
                self._given += 1
            return not self._is_closed

    def take(self) -> None:
        """Counts a part that was written."""
        self.read_up_to(self._read + 1)

    def read_up_to(self, count: int) -> None:
        """Takes the number of parts that were read so far; a smaller one is old news.

        After a request was run anew, it may be more than were handed over this time.
        """
        with self._changed:
            self._read = max(self._read, count)
            self._changed.notify()

    def close(self) -> None:
        """Ends every wait."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
