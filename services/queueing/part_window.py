"""The window of a request with many answers: the number of parts that its reader may leave unread.

In: parts that are handed over, and those that the edge has written. Out: the backend's pauses. A
slow reader slows its own model, and holds `MAX_UNREAD` parts at most, or `MAX_UNREAD_SMALL` small
ones; one that stops reading loses its request after `READ_WITHIN_S`.

Between processes each end has one half: the worker has a `PartWindow`, and the gateway's
`ArrivingParts` (`arriving_parts.py`) sends it the number of parts that were read.
"""

import threading
from collections.abc import Mapping
from typing import Protocol

from flambeau.protocol.tensors import Array

MAX_UNREAD = 8
"""Parts that are handed over and not written yet."""
MAX_UNREAD_SMALL = 64
"""The same while the next part is small: the thread of the model is woken less often, so that a
part takes a quarter less CPU time (`make bench-front`)."""
SMALL_PART_BYTES = 1024
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
    """The window of one request in the process that runs it.

    One thread gives parts, and waits; another one, an event loop, reads them. Neither takes the
    lock unless the first one waits.

    Attributes:
        given: parts that were handed over.
        is_unread: True if it was closed because its reader took no part in time.
    """

    def __init__(self) -> None:
        self.given = self._read = 0
        self._is_closed = self._is_waiting = self.is_unread = False
        self._changed = threading.Condition()

    @property
    def unread(self) -> int:
        """Parts that were handed over and not written yet."""
        return self.given - self._read

    def give(self, within_s: float = READ_WITHIN_S, *, is_small: bool = False) -> bool:
        """Waits until one more part may be handed over, and counts it.

        Args:
            within_s: seconds after which a reader that takes no part is given up.
            is_small: True for a part of at most `SMALL_PART_BYTES`.

        Returns:
            False if nobody reads any more.
        """
        limit = MAX_UNREAD_SMALL if is_small else MAX_UNREAD
        if self.unread >= limit:
            self._wait(limit, within_s)
        if not self._is_closed:
            self.given += 1
        return not self._is_closed

    def _wait(self, limit: int, within_s: float) -> None:
        with self._changed:
            self._is_waiting = True  # before it looks: whoever reads a part then, notifies
            if not self._changed.wait_for(lambda: self._is_closed or self.unread < limit, within_s):
                self._is_closed = self.is_unread = True
            self._is_waiting = False

    def take(self) -> None:
        """Counts a part that was written."""
        self.read_up_to(self._read + 1)

    def read_up_to(self, count: int) -> None:
        """Takes the number of parts that were read so far; a smaller one is old news.

        After a request was run anew, it may be more than were handed over this time.
        """
        self._read = max(self._read, count)
        if self._is_waiting:
            with self._changed:
                self._changed.notify()

    def close(self) -> None:
        """Ends every wait."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()


def is_small_part(outputs: Mapping[str, Array]) -> bool:
    """Returns True for outputs of at most `SMALL_PART_BYTES` together; of texts, for one each."""
    size = 0
    for array in outputs.values():
        if array.dtype.kind != "O":
            size += array.nbytes
        elif array.size == 1:
            size += len(array.item())
        else:
            return False
    return size <= SMALL_PART_BYTES
