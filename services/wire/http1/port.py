"""State shared by the connections of one HTTP port: known heads, and the state of any port."""

import math
from email.utils import formatdate

from services.errors import OverloadedError, ServingError
from services.wire.body import Body
from services.wire.byte_budget import ByteBudget
from services.wire.compression import INFLATE_SHIFT, INLINE_BYTES, CompressionThread
from services.wire.errors import HeadTooLargeError, too_many_connections
from services.wire.http1.exchange import Exchange, Opener, Router
from services.wire.http1.head import MAX_HEAD_BYTES, Head, parse_head
from services.wire.loop_turns import LoopTurns
from services.wire.open_port import OpenConnection, OpenPort, PortLimits, PortMetrics

MAX_KNOWN_HEADS = 1024
MAX_KNOWN_BYTES = 8 * 2**20
"""Memory of all known heads: 1024 heads of 1 KiB with 36 headers each."""
MAX_KNOWN_HEAD_BYTES = 16 * 1024
"""Memory of one known head (`Head.memory_bytes`): 4 KiB with 50 headers."""
_NEW_EACH_TIME = (b"x-request-id", b"traceparent")
"""Headers that differ from request to request: such heads are not cached."""


class HttpPort(OpenPort):
    """One port.

    Args:
        router: function from a head to the opener of its exchange.
        limits: limits of a connection and a request.
        metrics: counters of refusals by limits.
        budget: budget of the bytes that the process buffers.
        turns: turns of the event loop, shared with other ports.
        compression: compression of large bodies, shared with other ports.
        unread: opens an exchange for what is no request, which is refused.

    Attributes:
        heads: known heads by their bytes, with the opener of their exchange; none of them announces
            a body over the limit. Their number and their memory are limited.
        date: the Date header, with its CRLF; renewed with the clock.
    """

    def __init__(
        self,
        router: Router,
        limits: PortLimits,
        metrics: PortMetrics,
        budget: ByteBudget,
        turns: LoopTurns | None = None,
        compression: CompressionThread | None = None,
        unread: Opener = Exchange,
    ) -> None:
        super().__init__(limits, metrics, budget, turns, compression)
        self.heads: dict[bytes, tuple[Head, Opener]] = {}
        self._known_bytes = 0
        self.date = b""
        self._router = router
        self.unread = unread

    def tick(self) -> None:
        """Renews the clock."""
        super().tick()
        self.date = f"date: {formatdate(usegmt=True)}\r\n".encode()

    def replace_idle(self, newest: OpenConnection) -> bool:
        """Makes room for a connection over the limit, if the port may.

        Args:
            newest: the connection.

        Returns:
            True if a connection was dropped: the one that waited longest for its peer, or one whose
            peer has left.
        """
        if not self.limits.replaces_idle:
            return False
        others = [one for one in self.connections if one is not newest]
        # Idle ones first: a request that arrives is not idle.
        idle = min(others, key=lambda one: (one.is_receiving, one.waits_since), default=None)
        if idle is not None and idle.waits_since == math.inf:
            idle = next((one for one in others if one.peer_has_left()), None)
        if idle is None:
            return False
        self.count_refusal(too_many_connections(self.limits.max_connections))
        idle.abort()
        return True

    def learn(self, data: bytes) -> tuple[Head, Opener]:
        """Parses a head that is not in `heads`, and caches it if it may repeat.

        Args:
            data: the bytes up to and with the empty line.

        Returns:
            The head and its opener.

        Raises:
            ServingError: it is too large, not HTTP, or can be read in two ways.
        """
        if len(data) > MAX_HEAD_BYTES:
            raise head_too_large()
        head = parse_head(data)
        known = head, self._router(head)
        if (
            head.memory_bytes <= MAX_KNOWN_HEAD_BYTES
            and (head.body_bytes or 0) <= self.limits.max_request_bytes
            and not any(name in head.by_name for name in _NEW_EACH_TIME)
        ):
            self._known_bytes += head.memory_bytes
            while len(self.heads) >= MAX_KNOWN_HEADS or self._known_bytes > MAX_KNOWN_BYTES:
                oldest, _ = self.heads.pop(next(iter(self.heads)))
                self._known_bytes -= oldest.memory_bytes
            self.heads[data] = known
        return known

    def _refuse_body(self, exchange: Exchange, error: ServingError) -> None:
        if isinstance(error, OverloadedError) and not exchange.counts_refusals:
            self.count_refusal(error)
        exchange.refuse(error)

    def decompress(self, exchange: Exchange, body: Body) -> None:
        """Decompresses a body, and then begins its exchange."""
        budget = self.budget

        def begin(outcome: Body | ServingError) -> None:
            if exchange.response is not None:
                return
            if isinstance(outcome, ServingError):
                self._refuse_body(exchange, outcome)
                return
            size = len(outcome)
            if size <= INLINE_BYTES:
                self.turns.count(size >> INFLATE_SHIFT)
            budget.held_bytes += size - exchange.held_bytes
            exchange.held_bytes = size
            if budget.held_bytes > budget.small_limit_bytes and not budget.has_room_for(size):
                # Not by `begin` itself: who refers to itself waits for the garbage collector.
                self._refuse_body(exchange, budget.full())
            else:
                exchange.begin(outcome)

        try:
            limit = exchange.body_limit(self.limits.max_request_bytes)
        except ServingError as error:
            exchange.refuse(error)
            return
        self.compression.decompress(
            body,
            exchange.head.encoding,
            limit,
            budget=budget,
            is_wanted=lambda: exchange.response is None,
            done=begin,
        )


def head_too_large() -> HeadTooLargeError:
    """Returns the error of a head over the limit."""
    return HeadTooLargeError(
        f"the URL and headers are over {MAX_HEAD_BYTES} bytes, the limit; send fewer"
    )
