"""The window of a request with many answers: the number of parts that its reader may leave unread.

In: parts that are handed over, and those that the edge has written. Out: the backend's pauses. A
slow reader slows its own model, and holds `MAX_UNREAD` parts at most; one that stops reading loses
its request after `READ_WITHIN_S`.

Between processes each end has one half: the worker has a `PartWindow`, and the gateway's
`ArrivingParts` (`arriving_parts.py`) sends it the number of parts that were read.
"""

import threading
from typing import Protocol

MAX_UNREAD = 8
"""Parts that are handed over and not written yet."""
READ_WITHIN_S = 10.0
"""Seconds in which the reader of a full window takes a part: its instance waits meanwhile. Pauses
of a network pass within it (a lost packet costs less than 1 s, a mobile handover a few), and it is
short beside deadlines, which are 60 s by default."""


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
    """The window of one request in the process that runs it; used by two threads.

    Attributes:
        is_unread: True if it was closed because its reader took no part in time.
    """

    def __init__(self, max_unread: int = MAX_UNREAD) -> None:
        self._max_unread = max_unread
        self._given = self._read = 0
        self._is_closed = self.is_unread = False
        self._changed = threading.Condition()

    @property
    def given(self) -> int:
        """Parts that were handed over."""
        return self._given

    def give(self, within_s: float = READ_WITHIN_S) -> bool:
        """Waits until one more part may be handed over, and counts it.

        Args:
            within_s: seconds after which a reader that takes no part is given up.

        Returns:
            False if nobody reads any more.
        """
        with self._changed:
            if not self._changed.wait_for(
                lambda: self._is_closed or self._given - self._read < self._max_unread, within_s
            ):
                self._is_closed = self.is_unread = True
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
