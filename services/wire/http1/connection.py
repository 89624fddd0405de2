"""One HTTP/1 connection: reads requests into exchanges, writes responses in request order.

Rules:
- responses are sent in the order of their requests, those of one turn of the loop in one write;
- a connection has few requests in flight (`http1/charges.py`), and is not read beyond them, nor
  while its peer does not read;
- the work of a connection in one turn of the event loop is limited (`loop_turns.py`);
- a refusal that leaves input unread ends the connection, but not before the peer had a chance to
  read it: closing at once would reset the connection before the response is read;
- a peer that disconnects abandons its requests, and nothing more is written to it. One that only
  ends its own direction counts as disconnected: `close` sends the same, and no client of HTTP
  half-closes a connection whose answer it wants.

A request allocates only its exchange: no task, no future, no timer. A head whose bytes have been
seen before is not parsed again (`HttpPort.heads`): callers repeat heads.
"""

import asyncio
import math
import re
from collections import deque

from services.errors import InvalidRequestError, OverloadedError, ServingError
from services.wire.body import Body, ChunkedBody, SizedBody, part_of, too_large
from services.wire.errors import too_many_connections, too_slow
from services.wire.http1.answers import AnsweringConnection
from services.wire.http1.exchange import Exchange, Opener
from services.wire.http1.head import MAX_HEAD_BYTES, NO_HEAD, Head, HeadProbe
from services.wire.http1.port import HttpPort, head_too_large
from services.wire.loop_turns import (
    READ_BYTES,
    READ_BYTES_AT_ONCE,
    READ_BYTES_LATE,
    READ_SHIFT,
    READ_US,
    WORK_A_TURN_US,
    WORK_AT_ONCE_US,
)

SPARE_CONNECTIONS = 64
"""Connections beyond the limit that still get an error response; further ones are dropped."""

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_END = b"\r\n\r\n"
MAX_EMPTY_BYTES = 256
"""Most bytes of empty lines before a request."""
HEAD_US = 20
HEAD_SHIFT = 8
"""Parsing a head takes this long, and a microsecond for each 256 bytes."""
_NO_REQUEST: tuple[bytes, Head, Opener, int] = (b"", NO_HEAD, Exchange, -1)
_LINE_END = b"\r\n"
_EMPTY_LINES = re.compile(rb"[\r\n]+")


class HttpConnection(AnsweringConnection):
    """One connection of an `HttpPort`."""

    __slots__ = (
        "_began", "_body", "_data", "_dropped_bytes", "_empty_bytes", "_in_place", "_incoming",
        "_last", "_partial", "_paused_at", "_probe", "_waiting", "port",
    )  # fmt: skip

    def __init__(self, port: HttpPort) -> None:
        super().__init__(port.now, port.budget)
        self.port = port
        # What was read and not yet understood, from `_position` on; kept only while held back.
        self._data = b""
        self._position = 0
        self._advancing = False
        # The last request that came in one piece: its head, what opens its exchange, its length.
        self._last = _NO_REQUEST
        # The beginning of a head that has not ended.
        self._partial = bytearray()
        self._probe: HeadProbe | None = None
        # The request whose body is being received, and when its first byte (or a head's) came.
        self._incoming: Exchange | None = None
        self._body: SizedBody | ChunkedBody | None = None
        self._in_place = False
        self._began = self._paused_at = 0.0
        # Requests without an answer, in order; and the answers whose turn has come.
        self._waiting: deque[Exchange] = deque()
        self._out: list[bytes | memoryview] = []
        self._flush_asked = False
        # No further request is taken, what still comes is dropped; and whether anything may come.
        self._ended = False
        self._unread = False
        self._dropped_bytes = self._empty_bytes = 0
        # What the peer had not read at the last sweep.
        self._left_bytes = 0

    # Called by the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Handles a new connection."""
        self._transport = transport  # type: ignore[assignment]  # uvloop's has no base class
        port = self.port
        self._since = self._now()
        port.opened(self)
        limit = port.limits.max_connections
        if len(port.connections) > limit + SPARE_CONNECTIONS:
            self.abort()
        elif len(port.connections) > limit and not port.replace_idle(self):
            self._refuse(too_many_connections(limit))

    @property
    def peer(self) -> str:
        """The address of the client; empty if it is unknown."""
        name = self._transport.get_extra_info("peername")
        return str(name[0]) if isinstance(name, tuple) else ""

    @property
    def is_receiving(self) -> bool:
        """True while a request arrives, or nothing can be dropped."""
        return self._incoming is not None or bool(self._partial) or math.isinf(self.waits_since)

    @property
    def waits_since(self) -> float:
        """The loop's time since which it waits for its peer; infinite while it does not."""
        if self._closing or (self._waiting and not self._write_paused):
            return math.inf
        return self._began if self._incoming is not None or self._partial else self._since

    def get_buffer(self, sizehint: int) -> memoryview:
        """A body of known length is read into its place, all else into the buffer all share.

        In a turn whose work is done, only where it has its memory: thousands may be read in it.
        """
        is_late = self.port.turns.worked_us >= WORK_A_TURN_US
        self._in_place = False
        if type(self._body) is SizedBody:
            body = self._body
            room = body.room_there(READ_BYTES_LATE) if is_late else body.room(READ_BYTES_AT_ONCE)
            if room:
                self._in_place = True
                return room
        return self.port.read_buffer[:READ_BYTES_LATE] if is_late else self.port.read_buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Handles received bytes."""
        if self._in_place:
            body = self._body
            assert type(body) is SizedBody, "it was read into"
            fill_us = body.received(nbytes)
            if body.complete:
                self._advance()
            else:
                if body.held_bytes != self._held_bytes:
                    self._settle_input()
                self.port.turns.worked_us += fill_us
                self._count_read(nbytes)
        elif self._ended:
            self._drop(nbytes)
            self._count_read(nbytes)
        elif self._partial:
            self._extend_partial(bytes(self.port.read_buffer[:nbytes]))
            self._count_read(nbytes)
        else:
            data = bytes(self.port.read_buffer[:nbytes])
            if self._data:
                data = self._data[self._position :] + data
            elif self._body is None and self._took_whole(data):
                return
            self._data, self._position = data, 0
            self._advance()

    def connection_lost(self, exc: Exception | None) -> None:
        """Handles the loss of the connection."""
        abandoned = [exchange for exchange in self._waiting if exchange.response is None]
        if self._incoming is not None:
            abandoned.append(self._incoming)
            self._waiting.append(self._incoming)
        self._ended = self._closing = True
        self._out.clear()
        self._forget_input()
        self._forget_held()
        for exchange in self._waiting:
            if not exchange.outlives_caller:
                self._budget.held_bytes -= exchange.held_bytes
                exchange.held_bytes = 0
        self._waiting.clear()
        self.port.closed(self)
        for exchange in abandoned:
            exchange.abandon()

    # Requests.

    def _took_whole(self, data: bytes) -> bool:
        """Takes what nearly every read is: one whole request, whose head has been seen before.

        It does nothing that `_advance` would not do; it is 1.5 µs shorter.
        """
        lines, head, open_exchange, length = self._last
        if length != len(data) or not data.startswith(lines):
            lines = data[: data.find(_END) + 4]
            known = self.port.heads.get(lines)
            if known is None or known[0].body_bytes != len(data) - len(lines):
                return False
            head, open_exchange = known
            self._last = lines, head, open_exchange, len(data)
        turns = self.port.turns
        if self._waiting or head.encoding or turns.worked_us >= WORK_A_TURN_US:
            return False
        exchange = open_exchange(self, head)
        if not exchange.is_paced:
            turns.count(exchange.work_us + exchange.header_us * len(head.headers))
        self._empty_bytes = 0
        self._waiting.append(exchange)
        if exchange.last:
            self._ended = True
        budget = self._budget
        size = exchange.held_bytes = len(data)
        budget.held_bytes += size
        if budget.held_bytes > budget.small_limit_bytes and self._refused_full(exchange):
            return True
        exchange.begin(part_of(data, len(lines), size))
        return True

    def _advance(self, work_us: int = 0) -> None:
        """Takes as many requests from what was read as may be in flight, and as a turn allows.

        Args:
            work_us: allowed now; 0 for as much as the turn has left.
        """
        if self._advancing or self._waits_turn or self._transport.is_closing():
            return
        turns = self.port.turns
        if self._turn != turns.number:
            self._turn, self._worked_us = turns.number, 0
        before_us = self._worked_us
        if not work_us and turns.worked_us < WORK_A_TURN_US:
            work_us = WORK_AT_ONCE_US
        self._advancing = True
        try:
            while self._takes_more():
                if self._worked_us >= work_us:
                    self._wait_turn(turns, is_fresh=not self._worked_us, size=len(self._data))
                    break
                if not self._step():
                    break
        except ServingError as error:
            self._refuse(error)
        finally:
            self._advancing = False
        turns.count(self._worked_us - before_us)
        if self._position == len(self._data):
            self._data, self._position = b"", 0
        if self._data or self._partial or self._body or self._held_bytes or self._left_bytes:
            self._settle_input()
        if self._out:
            self._flush()
        if self._data or self._write_paused or self._read_paused:
            self._set_reading()

    def _takes_more(self) -> bool:
        return (
            (self._position < len(self._data) or self._body is not None)
            and not self._ended
            and not self._write_paused
            and self._may_pipeline()
        )

    def _step(self) -> bool:
        """Takes a head, with its body if that is there, or a piece of a body.

        Returns:
            Whether there may be more to take.
        """
        if self._body is not None:
            return self._step_body(self._body)
        data, position, port = self._data, self._position, self.port
        if data[position] in _LINE_END:
            self._skip_empty()
            return True
        end = data.find(_END, position) + 4
        if end < 4:
            self._position = len(data)
            self._worked_us += HEAD_US
            self._begin_partial(data[position:])
            return False
        lines = data[position:end]
        known, own_bytes = port.heads.get(lines), 0
        if known is None:
            self._worked_us += HEAD_US + (len(lines) >> HEAD_SHIFT)
            known = port.learn(lines)
            own_bytes = known[0].memory_bytes
        head, open_exchange = known
        size = head.body_bytes
        is_whole = size is not None and size <= len(data) - end
        if head.expects_continue and self._waiting and not is_whole:
            return False  # an interim answer may not overtake the answers before it
        exchange = open_exchange(self, head)
        exchange.held_bytes = own_bytes
        self._budget.held_bytes += own_bytes
        if size is None or not is_whole:
            self._position = end
            self._begin_body(exchange)
            return True
        self._position = position = end + size
        if size > port.limits.max_request_bytes:
            self._incoming = exchange
            raise too_large(port.limits.max_request_bytes)
        self._take(exchange, part_of(data, end, position))
        return True

    def _skip_empty(self) -> None:
        """Passes over empty lines before a request, of which there may be a few (RFC 9112, 2.2)."""
        found = _EMPTY_LINES.match(self._data, self._position)
        assert found is not None, "there is one"
        self._empty_bytes += found.end() - self._position
        self._position = found.end()
        if self._empty_bytes > MAX_EMPTY_BYTES:
            raise InvalidRequestError(
                f"there are over {MAX_EMPTY_BYTES} bytes of empty lines before a request; send none"
            )

    def _begin_body(self, exchange: Exchange) -> None:
        """Starts receiving an incomplete body."""
        self._incoming, self._began = exchange, self._now()
        limit = exchange.body_limit(self.port.limits.max_request_bytes)
        is_of_call = limit < self.port.limits.max_request_bytes
        size = exchange.head.body_bytes
        if size is None:
            self._body = ChunkedBody(limit, is_of_call=is_of_call)
        elif size > limit:
            raise too_large(limit, is_of_call=is_of_call)
        else:
            self._body = SizedBody(size)
        if exchange.head.expects_continue and self._position == len(self._data):
            self._out.append(_CONTINUE)  # behind the answers that are about to be written

    def _step_body(self, body: SizedBody | ChunkedBody) -> bool:
        before, work_us = self._position, body.work_us
        self._position = body.feed(self._data, before)
        self._worked_us += (self._position - before >> READ_SHIFT) + body.work_us - work_us
        if not body.complete:
            return self._position < len(self._data)
        exchange, self._incoming, self._body = self._incoming, None, None
        assert exchange is not None
        self._forget_held()  # the request is charged for it from now on
        self._take(exchange, body.content)
        return True

    def _take(self, exchange: Exchange, body: Body) -> None:
        """Handles a complete request."""
        self._empty_bytes = 0
        self._worked_us += exchange.work_us + exchange.header_us * len(exchange.head.headers)
        self._waiting.append(exchange)
        if exchange.last:
            self._ended = True
        budget = self._budget
        exchange.held_bytes += len(body)
        budget.held_bytes += len(body)
        if budget.held_bytes > budget.small_limit_bytes and self._refused_full(exchange):
            return
        if exchange.head.encoding and exchange.decompresses:
            self.port.decompress(exchange, body)
        else:
            exchange.begin(body)

    def _begin_partial(self, start: bytes) -> None:
        self._began, self._probe = self._now(), HeadProbe()
        self._partial += start
        self._probe.feed(start)

    def _extend_partial(self, data: bytes) -> None:
        """More of a head, which may end here; a start that no head can have is not waited on."""
        assert self._probe is not None
        searched = max(0, len(self._partial) - len(_END))
        self._partial += data
        if self._partial.find(_END, searched) >= 0:
            self._data, self._position = bytes(self._partial), 0
            self._partial = bytearray()
            self._probe = None
            self._forget_held()  # nothing of it waits for the peer: it is not to make room
            self._advance()
            return
        try:
            if len(self._partial) > MAX_HEAD_BYTES:
                raise head_too_large()
            self._probe.feed(data)
        except ServingError as error:
            self._refuse(error)
        else:
            self._settle_input()

    def _refuse(self, error: ServingError) -> None:
        """Answers the request being received, or the connection, with an error; takes no more."""
        exchange = self._incoming or self.port.unread(self, NO_HEAD)
        self._forget_input()
        self.settle_unsent()
        exchange.last = self._ended = self._unread = True
        self._waiting.append(exchange)
        if not (exchange.counts_refusals and isinstance(error, OverloadedError)):
            self.port.count_refusal(error)
        exchange.refuse(error)

    def _forget_input(self) -> None:
        self._data, self._position, self._partial = b"", 0, bytearray()
        self._probe = self._incoming = self._body = None

    def take_turn(self, work_us: int) -> None:
        """Continues with read input, and resumes reading."""
        self._waits_turn = False
        self._advance(work_us)
        self.port.turns.worked_us += READ_US

    def _drop(self, nbytes: int) -> None:
        """Discards input behind the last request, so that no reset loses the response."""
        self._dropped_bytes += nbytes
        if self._dropped_bytes > self.port.limits.max_request_bytes + READ_BYTES:
            if self._closing:
                self._transport.close()
            else:
                self._set_reading()

    # Flow and time.

    def _set_reading(self) -> None:
        """Starts or stops reading, as the state requires."""
        wanted = not self._write_paused and not self._data and not self._waits_turn
        if self._ended and not self._closing:
            # Reading on is how a peer that hangs up is seen.
            wanted = self._dropped_bytes <= self.port.limits.max_request_bytes + READ_BYTES
            wanted = wanted and not self._waits_turn
        if self._read(wanted):
            now = self._now()
            if wanted:  # what was not read was not late
                self._began += now - max(self._began, self._paused_at)
            else:
                self._paused_at = now

    def sweep(self) -> None:
        """Enforces timeouts; called by the port's timer."""
        now, limits = self.port.now, self.port.limits
        self._sweep_left()
        if self.peer_has_left():
            self.abort()  # no read would say so
            return
        if self._last[0] not in self.port.heads:
            self._last = _NO_REQUEST
        if self._closing or self._write_paused:
            self.sweep_unsent(now, limits.receive_timeout_s)
        elif self._incoming is not None or self._partial:
            if not self._read_paused and now - self._began > limits.receive_timeout_s:
                self._refuse(too_slow(limits.receive_timeout_s))
        elif not self._waiting and now - self._since > limits.keep_alive_timeout_s:
            self._hang_up()

    def close_if_idle(self) -> None:
        """Closes unless a request is in flight or arriving."""
        if not (self._waiting or self._incoming or self._partial or self._data or self._closing):
            self._hang_up()
