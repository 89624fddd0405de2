"""The parts of one answer as they arrive at a gateway from Redis.

In: replies of the workers that ran the request, in any order, some twice. Out: each part once, in
the order of its number, and the number of parts that the caller has read.

A request runs again when its worker dies or Redis loses it; its parts then come again, with the
same numbers. Large parts take longer than the small ones behind them.
"""

from collections.abc import Callable, Iterator

import msgspec

from services.queueing.part_window import MAX_UNREAD
from services.queueing.records import InferReply

REPORT_AFTER = MAX_UNREAD // 2
"""Parts read since the last report to the worker: it then still has half of its window."""


class ArrivingParts:
    """Puts the parts of one request in order; the `Window` of its readers.

    Args:
        report: callback that sends the worker the number of parts that were read.

    Attributes:
        read: parts that the caller has read.
    """

    __slots__ = ("_early", "_next", "_report", "_reported", "read")

    def __init__(self, report: Callable[[], None]) -> None:
        self._report = report
        self._early: dict[int, InferReply] = {}
        self._next = self._reported = self.read = 0

    @property
    def given(self) -> int:
        """Parts that were handed to the caller."""
        return self._next

    def arrived(self, reply: InferReply) -> Iterator[InferReply]:
        """Yields the replies whose turn has come with this one."""
        if reply.number < self._next:
            self._report()  # its worker runs the request anew, and knows nothing of the reader
            return
        self._early[reply.number] = reply
        while (found := self._early.pop(self._next, None)) is not None:
            self._next += 1
            yield found if found.is_last else msgspec.structs.replace(found, window=self)

    def take(self) -> None:
        """Counts a part that the caller has read."""
        self.read += 1
        if self.read - self._reported >= REPORT_AFTER:
            self._reported = self.read
            self._report()

    def close(self) -> None:
        """Drops parts that came early: the request is over."""
        self._early.clear()
