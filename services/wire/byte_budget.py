"""Budget of the bytes that one process buffers for its callers, over all ports.

In: connections that charge and release bytes. Out: room, or a refusal.

Rules:
- bytes are charged when they are held, never when they are announced;
- when the budget is full, connections that wait for their peer are shed, the slowest first: those
  that send an unfinished request, or do not read a response, at the fewest bytes a second;
- a connection is judged only after `GRACE_S`, so that a request that has just begun is not slow;
- the last part of the budget (`RESERVED_PART`) is for holders of at most `SMALL_BYTES`, and half of
  that for those of at most `TINY_BYTES`, so that small requests pass while larger ones fill the
  rest.

docs/adr/0037 has the reason and the measurement.
"""

import asyncio
from typing import Protocol

from services.errors import BufferFullError
from services.wire.freed_memory import FreedMemory

GRACE_S = 1.0
"""Least time to measure a connection's rate: its first packets may still be in transit."""
SMALL_BYTES = 64 * 1024
"""One read of a connection; a holder of at most this size may use the reserved part."""
TINY_BYTES = 4 * 1024
"""More than the usual request takes."""
SHARES = 4
RESERVED_PART = 8
"""An eighth of the budget is reserved."""
_FREED_PART = 32
"""Extra room made, as a part of the budget, so that a flood of small pieces does not compare all
connections for each."""
_GIVEN_BACK_PART = 8
"""Freed memory is returned to the system once this part of the budget was held and freed."""
_RETRY_S = 0.1
"""Pause after a search that found no slow connection: a search visits all of them."""


class BudgetHolder(Protocol):
    """A connection that holds bytes, as the budget uses it."""

    def pace(self, now: float) -> float | None:
        """Returns the peer's bytes a second since the connection began to wait for it.

        Args:
            now: the event loop's time.

        Returns:
            None if it does not wait for its peer, or for less than `grace_s`.
        """

    def shed(self, error: BufferFullError) -> None:
        """Refuses the work that waits for the peer, and releases its bytes before it returns."""


class ByteBudget:
    """One budget; it belongs to the event loop.

    Args:
        limit_bytes: total limit.
        grace_s: time that a connection may wait for its peer before it may be shed.
        freed: returner of freed memory; by default one for a part of the budget.

    Attributes:
        limit_bytes: as given.
        grace_s: as given.
        held_bytes: bytes charged now. Hot paths add and subtract here themselves; a caller that
            makes it larger than `small_limit_bytes` calls `has_room_for`.
        small_limit_bytes: limit for holders of more than `TINY_BYTES`.
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
        self.waiting: set[BudgetHolder] = set()
        self._next_search = 0.0
        self._freed = freed or FreedMemory(limit_bytes // _GIVEN_BACK_PART, limit_bytes)

    def take(self, size: int, holder_bytes: int = 0) -> None:
        """Charges bytes that a holder takes.

        Args:
            size: number of bytes.
            holder_bytes: bytes charged to the holder before.

        Raises:
            BufferFullError: there is no room, nor could any be made; nothing is charged.
        """
        self.held_bytes += size
        if self.held_bytes > self._large_limit_bytes and not self.has_room_for(holder_bytes + size):
            self.held_bytes -= size
            raise self.full()
        self._freed.look(self.held_bytes)

    def has_room_for(self, holder_bytes: int) -> bool:
        """Returns True if a holder may keep `holder_bytes`, which are charged already.

        Sheds connections if there is no room.
        """
        limit = self.limit_bytes
        if holder_bytes > SMALL_BYTES:
            limit = self._large_limit_bytes
        elif holder_bytes > TINY_BYTES:
            limit = self.small_limit_bytes
        return self.held_bytes <= limit or self.make_room(limit)

    def full(self) -> BufferFullError:
        """Returns the error of a full budget."""
        return BufferFullError(
            f"this server holds {self.held_bytes} bytes of requests and answers, and "
            f"{self.limit_bytes} is the limit (max_buffered_bytes); retry later, send smaller "
            "requests, or add servers"
        )

    def give(self, size: int) -> None:
        """Releases charged bytes."""
        self.held_bytes -= size

    def reserve(self, size: int, holder_bytes: int = SMALL_BYTES) -> None:
        """Charges a holder of a large message for more bytes, or releases some if negative.

        Args:
            size: number of bytes.
            holder_bytes: bytes charged to the holder before, if the message may be a small one.

        Raises:
            BufferFullError: there is no room for them; nothing is charged.
        """
        if size > 0:
            self.take(size, holder_bytes)
        else:
            self.give(-size)

    def look_for_freed(self) -> None:
        """Returns memory to the system if much was held and has been freed."""
        self._freed.look(self.held_bytes)

    def make_room(self, limit: int) -> bool:
        """Sheds the slowest connections until the held bytes are below a limit.

        Args:
            limit: limit in bytes.

        Returns:
            True if they are.
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
