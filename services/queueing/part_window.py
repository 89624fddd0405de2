"""The window of a request with many answers: how many parts its reader may leave unread.

In: parts that a backend's thread hands over, and those that the event loop has written. Out: the
backend's pauses. A slow reader slows its own model, and holds `MAX_UNREAD` parts at most.
"""

import threading

MAX_UNREAD = 8
"""Parts that are handed over and not written yet."""


class PartWindow:
    """The window of one request; used by the backend's thread and by the event loop.

    Attributes:
        given: parts that were handed over.
    """

    def __init__(self, max_unread: int = MAX_UNREAD) -> None:
        self._max_unread = max_unread
        self.given = self._unread = 0
        self._is_closed = False
        self._changed = threading.Condition()

    def give(self) -> bool:
        """Waits until one more part may be handed over, and counts it.

        Returns:
            False if nobody reads any more.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._unread < self._max_unread)
            if not self._is_closed:
                self._unread += 1
                self.given += 1
            return not self._is_closed

    def take(self) -> None:
        """Counts a part that was written."""
        with self._changed:
            self._unread -= 1
            self._changed.notify()

    def close(self) -> None:
        """Ends every wait: the request was answered, cancelled or aborted."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
