"""Turns of the event loop: limits the work of one turn on received input.

In: connections that have more to do than their part of a turn. Out: their next turn, in order.

A read may hold hundreds of requests, thousands of chunks or a head of 64 KiB, and the loop gives a
connection up to 32 reads in one turn. Without a limit, four connections that pipelined held up
their neighbours for 3.4 s.

Rules:
- work is counted in what it takes on the machine of `make bench`, in microseconds, so that the same
  bytes are always cut at the same places;
- a connection works for `WORK_AT_ONCE_US` in a turn, and is then not read until its next one;
- after `WORK_A_TURN_US` over all connections of both ports, the others wait for the next turn;
- connections that have not worked in a turn go before those that have, for `FIRST_WORK_US`: that is
  enough for a neighbour's request, however many others have more to do; and among them those of
  which little was read go first, before all that send large messages;
- of each kind, one at least has its turn, so that none waits for ever.

The usual read, one small request whose head is known, is not counted: it is what a neighbour sends.
"""

import asyncio
from collections import deque
from typing import Protocol

from services.interpreter_lock import lend_lock

WORK_A_TURN_US = 1000
"""Work of all connections in one turn: as much as `request_pacer.py` lets requests take. With it,
the longest turn of `make adversarial` takes 2 to 6 ms, not 730 (docs/adr/0038)."""
WORK_AT_ONCE_US = 250
"""Work of one connection in one turn: a quarter of the turn."""
FIRST_WORK_US = 60
"""Work of a connection that has not worked in this turn: one request, read and begun, and no
more, so that sixteen others have theirs in the same turn."""
READ_SHIFT = 12
"""To take 4 KiB from the system and copy them takes 1 µs: bytes read, shifted by this."""
READ_BYTES = 64 * 1024
"""One read, the size that libuv suggests; it repeats a full one up to 32 times on a connection."""
READ_BYTES_AT_ONCE = 256 * 1024
"""One read into the place of a large body: some 50 µs, with new memory 150."""
READ_BYTES_LATE = 8 * 1024
"""One read in a turn whose work is done. Whatever a peer has sent, each of thousands is read once
before it can be told to wait: 4,096 full reads would be 256 MiB in a turn (docs/adr/0038)."""
COPY_SHIFT = 13
"""To move 8 KiB that have outgrown their memory takes 1 µs, and much more where memory is new."""
FILL_SHIFT = 13
"""To fill 8 KiB of memory for the first time takes 1 µs besides reading them."""
HUGE_FILL_SHIFT = 11
"""A huge page (2 MiB) is cleared as a whole, when its first byte comes: that takes 0.5 ms, and
3.5 ms where a hypervisor has to find the memory. By this it fills a turn."""
SMALL_READ_BYTES = 2048
"""Size of a usual call; a larger read belongs to a large one."""
READ_US = 40
"""Assumed work of a connection that is read again in this turn, about one request's; it limits
them to 25 a turn."""
_ASKED_AT_US = WORK_AT_ONCE_US // 2
"""A turn with less work, in microseconds, is not worth a callback to reset the count."""


class Waiter(Protocol):
    """A connection with more work."""

    def take_turn(self, work_us: int) -> None:
        """Continues, for `work_us` or a little more."""


class LoopTurns:
    """The turns of one event loop.

    Attributes:
        number: of the turn; it changes only while there is work to count.
        worked_us: by all connections in this turn; added to by them.
    """

    __slots__ = ("_asked", "_fresh", "_small", "_waiting", "number", "worked_us")

    def __init__(self) -> None:
        self.number = self.worked_us = 0
        self._asked = False
        self._small: deque[Waiter] = deque()
        self._fresh: deque[Waiter] = deque()
        self._waiting: deque[Waiter] = deque()

    @property
    def is_busy(self) -> bool:
        """True if this turn is long: much was done in it, or connections wait for the next."""
        return self._asked

    def count(self, work_us: int) -> None:
        """Counts finished work."""
        worked_us = self.worked_us = self.worked_us + work_us
        if worked_us >= _ASKED_AT_US and not self._asked:
            self._ask()

    def wait(self, connection: Waiter, *, is_fresh: bool, is_small: bool = False) -> None:
        """Schedules a connection for a later turn.

        Args:
            connection: not waiting yet.
            is_fresh: True if it has not worked in this turn.
            is_small: True if little of it was read.
        """
        fresh = self._small if is_small else self._fresh
        (fresh if is_fresh else self._waiting).append(connection)
        if not self._asked:
            self._ask()

    def _ask(self) -> None:
        self._asked = True
        asyncio.get_running_loop().call_soon(self._begin)

    @property
    def _waits(self) -> bool:
        return bool(self._small or self._fresh or self._waiting)

    def _begin(self) -> None:
        """Begins a new turn."""
        self._asked = False
        self.number += 1
        self.worked_us = 0
        queues = (
            (self._small, FIRST_WORK_US),
            (self._fresh, FIRST_WORK_US),
            (self._waiting, WORK_AT_ONCE_US),
        )
        if self._waits:
            lend_lock()
        try:
            for queue, work_us in queues:
                for place in range(len(queue)):
                    if place and self.worked_us >= WORK_A_TURN_US:
                        break
                    queue.popleft().take_turn(work_us)
        finally:
            if self._waits and not self._asked:
                self._ask()
