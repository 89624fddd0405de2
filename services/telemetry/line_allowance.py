"""How many lines of one kind a log may get each second: floods of bad calls fill no disk."""

import threading


class LineAllowance:
    """So many lines a second; threads may share it. Takes its clock from outside.

    Args:
        a_second: lines.
    """

    def __init__(self, a_second: int) -> None:
        self._a_second = a_second
        self._lock = threading.Lock()
        self._second = self._written = self._left_out = 0

    def take(self, now_s: float) -> int | None:
        """Asks for one line.

        Args:
            now_s: by a clock that only goes forward.

        Returns:
            How many were left out since the last one that was written; None if this one is, too.
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
