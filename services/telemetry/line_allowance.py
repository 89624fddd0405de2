"""Limits the log lines of one kind per second, so that floods of bad calls fill no disk."""

import threading


class LineAllowance:
    """A limit of lines per second, shareable between threads; the caller supplies the time.

    Args:
        a_second: lines per second.
    """

    def __init__(self, a_second: int) -> None:
        self._a_second = a_second
        self._lock = threading.Lock()
        self._second = self._written = self._left_out = 0

    def take(self, now_s: float) -> int | None:
        """Requests one line.

        Args:
            now_s: current time in seconds of a monotonic clock.

        Returns:
            Number of lines omitted since the last written one; None if this one is omitted too.
        """
        with self._lock:
            if int(now_s) != self._second:
                self._second, self._written = int(now_s), 0
            if self._written == self._a_second:
                self._left_out += 1
                return None
            self._written += 1
            left_out, self._left_out = self._left_out, 0
            return left_out
