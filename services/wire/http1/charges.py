"""Charges the bytes that an HTTP/1 connection holds to the byte budget.

In: its input, its answers and its transport. Out: charges, and refusals where there is no room.
Received input and unread output are charged to the connection; the exchange of a complete request
charges it until the response is written.
"""

import abc
from collections import deque

from services.errors import BufferFullError, ServingError
from services.wire.body import ChunkedBody, SizedBody
from services.wire.http1.exchange import Exchange
from services.wire.http1.port import HttpPort
from services.wire.open_port import OpenConnection

MAX_PIPELINED = 32
"""Requests in flight on a connection."""
MAX_PIPELINED_BYTES = 64 * 1024
"""Plain bytes in flight beyond which no further request is taken."""


class ChargedConnection(OpenConnection):
    """The charges of one `HttpConnection`, which has the state that is declared here."""

    __slots__ = ("_left_bytes",)

    port: HttpPort
    _body: SizedBody | ChunkedBody | None
    _data: bytes
    _ended: bool
    _incoming: Exchange | None
    _left_bytes: int
    _partial: bytearray
    _waiting: deque[Exchange]

    @abc.abstractmethod
    def _refuse(self, error: ServingError) -> None:
        """Answers the request being received, or the connection, with an error; takes no more."""

    def _holds(self) -> tuple[int, bool]:
        body = self._body
        held = len(self._data) + len(self._partial) + self._left_bytes
        if body is not None:
            held += body.held_bytes
        if self._write_paused:
            held += self._transport.get_write_buffer_size()
        waits = bool(self._write_paused or self._left_bytes or self._partial or body is not None)
        return held, waits

    def _moved(self) -> int:
        received = self._body.received_bytes if self._body is not None else len(self._partial)
        return received - self._transport.get_write_buffer_size()

    def shed(self, error: BufferFullError) -> None:
        """Refuses the arriving request; aborts the connection of a peer that does not read."""
        if self._closing or self._write_paused or self._left_bytes:
            self._give_up_reader(error)
        else:
            self._refuse(error)

    def _may_pipeline(self) -> bool:
        """Returns True if one more request may be in flight."""
        waiting = self._waiting
        if waiting and waiting[-1].is_alone:
            return False
        if len(waiting) < 2:
            return True
        held_bytes = sum(exchange.held_bytes for exchange in waiting)
        return len(waiting) < MAX_PIPELINED and held_bytes < MAX_PIPELINED_BYTES

    def _settle_input(self) -> None:
        """Charges received bytes, or refuses them."""
        try:
            self._settle()
        except BufferFullError as error:
            if self._ended:
                self._give_up_reader(error)
            else:
                self._refuse(error)

    def _refused_full(self, exchange: Exchange) -> bool:
        """Refuses a request that the budget has no room for, unless it is answered at once."""
        budget = self._budget
        if exchange.is_quick or budget.has_room_for(exchange.held_bytes):
            return False
        error = budget.full()
        if not exchange.counts_refusals:
            self.port.count_refusal(error)
        exchange.refuse(error)
        return True

    def _hold_answer(self, exchange: Exchange, size: int) -> None:
        """Charges a response that waits for those before it."""
        budget = self._budget
        exchange.held_bytes = size
        budget.held_bytes += size
        if budget.held_bytes > budget.limit_bytes and not budget.make_room(budget.limit_bytes):
            self._give_up_reader(budget.full())

    def _sweep_left(self) -> None:
        """Charges output that the socket has not accepted yet."""
        if not self._write_paused:
            left_bytes = self._transport.get_write_buffer_size()
            if left_bytes or self._left_bytes:
                self._left_bytes = left_bytes
                self.settle_unsent()
