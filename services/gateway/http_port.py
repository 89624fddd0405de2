"""What all connections of one HTTP port share: limits, known heads, the clock, one read buffer."""

import asyncio
from dataclasses import dataclass
from email.utils import formatdate
from typing import TYPE_CHECKING

from services.errors import ServingError
from services.gateway.http_body import Body
from services.gateway.http_compression import CompressionThreads
from services.gateway.http_errors import HeadTooLargeError
from services.gateway.http_exchange import Exchange, Opener, Router
from services.gateway.http_head import MAX_HEAD_BYTES, Head, parse_head
from services.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from services.gateway.http_protocol import HttpConnection

READ_BYTES = 64 * 1024
"""One read; the loop has its turn after 32 of them on one connection."""
MAX_KNOWN_HEADS = 1024
MAX_KNOWN_HEAD_BYTES = 4096
_NEW_EACH_TIME = (b"x-request-id", b"traceparent")
"""Headers that differ from request to request: such heads are not worth remembering."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """The limits of one HTTP port."""

    max_request_bytes: int
    """Largest body, before and after decompression."""
    max_connections: int
    """Connections open at once; the next one is refused with 503."""
    keep_alive_timeout_s: float
    """How long a connection may stay open without a request."""
    receive_timeout_s: float
    """How long a request may take to arrive, from its first byte to its last; and how long a peer
    may take to read nothing of what is written to it."""


class HttpPort:
    """One port; made and kept by `HttpServer`.

    Attributes:
        limits: never changed.
        heads: known heads by their bytes, with what opens their exchange; none of them announces
            a body over the limit.
        read_buffer: where every connection reads; emptied before the next one does.
        connections: all that are open.
        now: the event loop's time, renewed by the server's timer.
        date: the Date header, with its CRLF; renewed likewise.
        stopping: whether connections end with their next answer.
        empty: set while no connection is open.
        threads: for what zlib should not do on the loop.
        metrics: where refusals are counted.
    """

    def __init__(self, router: Router, limits: HttpLimits, metrics: Metrics) -> None:
        self.limits = limits
        self.heads: dict[bytes, tuple[Head, Opener]] = {}
        self.read_buffer = memoryview(bytearray(READ_BYTES))
        self.connections: set[HttpConnection] = set()
        self.now = 0.0
        self.date = b""
        self.stopping = False
        self.empty = asyncio.Event()
        self.empty.set()
        self.threads = CompressionThreads()
        self._router = router
        self.metrics = metrics

    def tick(self) -> None:
        """Renews the clock."""
        self.now = asyncio.get_running_loop().time()
        self.date = f"date: {formatdate(usegmt=True)}\r\n".encode()

    def opened(self, connection: "HttpConnection") -> None:
        """A connection was made."""
        self.connections.add(connection)
        self.empty.clear()

    def closed(self, connection: "HttpConnection") -> None:
        """A connection was lost."""
        self.connections.discard(connection)
        if not self.connections:
            self.empty.set()

    def learn(self, data: bytes) -> tuple[Head, Opener] | None:
        """Parses a head that is not in `heads`, and puts it there if it may come again.

        Args:
            data: the bytes up to and with the empty line.

        Returns:
            The head and its opener; None for nothing but empty lines.

        Raises:
            ServingError: it is too large, not HTTP, or can be read in two ways.
        """
        if len(data) > MAX_HEAD_BYTES:
            raise head_too_large()
        lines = data.lstrip(b"\r\n")
        if not lines:
            return None
        head = parse_head(lines)
        known = head, self._router(head)
        if (
            len(lines) == len(data) <= MAX_KNOWN_HEAD_BYTES
            and (head.body_bytes or 0) <= self.limits.max_request_bytes
            and not any(name in head.by_name for name in _NEW_EACH_TIME)
        ):
            if len(self.heads) >= MAX_KNOWN_HEADS:
                del self.heads[next(iter(self.heads))]
            self.heads[data] = known
        return known

    def decompress(self, exchange: Exchange, body: Body) -> None:
        """Begins an exchange once its body is plain."""

        def begin(outcome: Body | ServingError) -> None:
            if isinstance(outcome, ServingError):
                exchange.refuse(outcome)
            elif exchange.response is None:
                exchange.begin(outcome)

        limit = self.limits.max_request_bytes
        self.threads.decompress(body, exchange.head.encoding, limit, begin)

    def count_refusal(self, error: ServingError) -> None:
        """Counts a request or connection that a limit or the protocol's rules refused."""
        self.metrics.refusals.labels(type(error).__name__).inc()


def head_too_large() -> HeadTooLargeError:
    """The error of a head over the limit."""
    return HeadTooLargeError(
        f"the URL and headers are over {MAX_HEAD_BYTES} bytes, the limit; send fewer"
    )
