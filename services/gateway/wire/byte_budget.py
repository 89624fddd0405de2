"""The bytes of callers that one process holds, over all its ports.

In: connections that take bytes and give them back. Out: room, or a refusal.

Rules kept here:
- bytes are charged when they are held, never when they are announced;
- when the budget is full, connections that wait for their peer make room, the slowest first: those
  that send an unfinished request, or do not read an answer, at the fewest bytes a second;
- a connection is judged only after `GRACE_S`, so that a request that has just begun is not slow;
- the last part of the budget (`RESERVED_PART`) is for holders of at most `SMALL_BYTES`, and half of
  that for those of at most `TINY_BYTES`, so that small requests pass while larger ones fill the
  rest.

docs/adr/0037 says why the slowest, and how it was measured.
"""

import asyncio
from typing import Protocol

from services.errors import BufferFullError
from services.gateway.wire.freed_memory import FreedMemory

GRACE_S = 1.0
"""A connection's rate over less than this says nothing: its first packets may be on their way."""
SMALL_BYTES = 64 * 1024
"""One read of a connection; a holder of at most so much may use the reserved part."""
TINY_BYTES = 4 * 1024
"""More than the usual request takes."""
SHARES = 4
RESERVED_PART = 8
"""An eighth of the budget is reserved."""
_FREED_PART = 32
"""Room is made for this part of the budget beyond what was asked for, so that a flood of small
pieces does not have all connections compared for each."""
_GIVEN_BACK_PART = 8
"""Memory goes back to the system when this part of the budget was held and has been freed."""
_RETRY_S = 0.1
"""After a search that found no slow connection, the next one: a search looks at all of them."""


class Holder(Protocol):
    """A connection that holds bytes, as far as the budget deals with it."""

    def pace(self, now: float) -> float | None:
        """The bytes a second that its peer has moved since the connection began to wait for it.

        Args:
            now: the event loop's time.

        Returns:
            None if it does not wait for its peer, or for less than `grace_s`.
        """

    def shed(self, error: BufferFullError) -> None:
        """Refuses what waits for the peer, and gives its bytes back, before it returns."""


class ByteBudget:
    """One budget; it belongs to the event loop.

    Args:
        limit_bytes: of everything together.
        grace_s: how long a connection may wait for its peer before it is judged.
        freed: gives back what was held; one for a part of the budget by default.

    Attributes:
        limit_bytes: as given.
        grace_s: as given.
        held_bytes: charged now. Where it is hot, callers add and subtract here themselves; whoever
            has made it larger than `small_limit_bytes` calls `has_room_for`.
        small_limit_bytes: for holders of more than `TINY_BYTES`.
        share_bytes: that one connection may hold of answers that its peer has not read, and begin
            another, and of messages that are not whole.
        waiting: connections that may wait for their peer; they add and remove themselves.
    """

    __slots__ = (
        "_freed", "_large_limit_bytes", "_next_search", "grace_s", "held_bytes", "limit_bytes",
        "share_bytes", "small_limit_bytes", "waiting",
    )  # fmt: skip

    def __init__(
        self, limit_bytes: int, grace_s: float = GRACE_S, freed: FreedMemory | None = None
    ) -> None:
        self.limit_bytes = limit_bytes
        self.grace_s = grace_s
        self._large_limit_bytes = limit_bytes - limit_bytes // RESERVED_PART
        self.small_limit_bytes = limit_bytes - limit_bytes // RESERVED_PART // 2
        self.share_bytes = limit_bytes // SHARES
        self.held_bytes = 0
        self.waiting: set[Holder] = set()
        self._next_search = 0.0
        self._freed = freed or FreedMemory(limit_bytes // _GIVEN_BACK_PART, limit_bytes)

    def take(self, size: int, holder_bytes: int = 0) -> None:
        """Charges bytes that are held from now on.

        Args:
            size: how many.
            holder_bytes: what their holder has been charged for before.

        Raises:
            BufferFullError: there is no room for them, nor could any be made; nothing is charged.
        """
        self.held_bytes += size
        if self.held_bytes > self._large_limit_bytes and not self.has_room_for(holder_bytes + size):
            self.held_bytes -= size
            raise self.full()
        self._freed.look(self.held_bytes)

    def has_room_for(self, holder_bytes: int) -> bool:
        """Whether a holder of so many bytes, which are charged already, may keep them.

        Room is made for it if there is none.
        """
        limit = self.limit_bytes
        if holder_bytes > SMALL_BYTES:
            limit = self._large_limit_bytes
        elif holder_bytes > TINY_BYTES:
            limit = self.small_limit_bytes
        return self.held_bytes <= limit or self.make_room(limit)

    def full(self) -> BufferFullError:
        """The refusal of what there is no room for."""
        return BufferFullError(
            f"this server holds {self.held_bytes} bytes of requests and answers, and "
            f"{self.limit_bytes} is the limit (max_buffered_bytes); retry later, send smaller "
            "requests, or add servers"
        )

    def give(self, size: int) -> None:
        """Gives back what was charged."""
        self.held_bytes -= size

    def look_for_freed(self) -> None:
        """Gives memory back to the system if much was held and is no more."""
        self._freed.look(self.held_bytes)

    def make_room(self, limit: int) -> bool:
        """Sheds the slowest connections until what is held is below a limit.

        Args:
            limit: in bytes.

        Returns:
            Whether it is.
        """
        now = asyncio.get_running_loop().time()
        if now >= self._next_search:
            aim = limit - self.limit_bytes // _FREED_PART
            paces = [(pace, one) for one in self.waiting if (pace := one.pace(now)) is not None]
            paces.sort(key=lambda found: found[0])
            for pace, holder in paces:
                if self.held_bytes <= aim:
                    break
                if holder not in self.waiting:
                    continue  # it has gone while another was shed
                holder.shed(
                    BufferFullError(
                        f"this server's buffers are full (max_buffered_bytes), and this connection "
                        f"moved {pace:.0f} bytes/s, the fewest; retry later"
                    )
                )
            if self.held_bytes > aim:
                self._next_search = now + _RETRY_S
        return self.held_bytes <= limit
