"""Answers of an HTTP/1 connection: written in the order of the requests, as the peer reads.

In: responses of exchanges, whole or in pieces. Out: bytes to the transport, those of one turn of
the event loop in one write.

Rules:
- a response waits for those before it; one in pieces (`response_stream.py`) is written piece by
  piece once its turn has come, and not while the peer does not read;
- after the last response the connection closes, but not before its output is sent;
- nothing is written to a transport that closes: its peer has gone, or will read no more.
"""

import abc
import asyncio

from services.wire.http1.charges import ChargedConnection
from services.wire.http1.exchange import Exchange


class AnsweringConnection(ChargedConnection):
    """The answers of one `HttpConnection`, which has the state that is declared here."""

    __slots__ = ("_advancing", "_ended", "_flush_asked", "_out", "_position", "_unread")

    _advancing: bool
    _ended: bool
    _flush_asked: bool
    _out: list[bytes | memoryview]
    _position: int
    _unread: bool

    @abc.abstractmethod
    def _advance(self, work_us: int = 0) -> None:
        """Takes requests from what was read."""

    def ends_with(self, exchange: Exchange) -> bool:
        """Ends the connection with this exchange, unless further requests follow it."""
        newest = bool(self._waiting) and self._waiting[-1] is exchange
        nothing_left = self._position >= len(self._data) and not self._partial
        if newest and nothing_left and self._incoming is None:
            self._ended = True
        return newest and self._ended

    def finish(self, exchange: Exchange, response: list[bytes | memoryview]) -> None:
        """Queues the response of an exchange."""
        waiting, out = self._waiting, self._out
        self._budget.held_bytes -= exchange.held_bytes
        exchange.held_bytes = 0
        if not waiting or waiting[0] is not exchange or self._closing:
            if waiting and not self._closing:
                self._hold_answer(exchange, sum(map(len, response)))
            return  # its turn will come, or the peer has gone
        if len(waiting) == 1 and not out and not self._advancing:
            waiting.clear()
            self._write(response)
            return
        while waiting and (ready := waiting[0].response) is not None:
            out += ready
            self._budget.held_bytes -= waiting.popleft().held_bytes
        if waiting and (stream := waiting[0].stream) is not None:
            stream.proceed()
        if self._advancing:
            return
        if not waiting:
            self._flush()
        elif not self._flush_asked:
            self._flush_asked = True
            asyncio.get_running_loop().call_soon(self._flush_later)

    def _flush_later(self) -> None:
        self._flush_asked = False
        if self._out and not self._closing:
            self._flush()

    def _flush(self) -> None:
        """Writes the responses whose turn has come, and continues reading."""
        out, self._out = self._out, []
        self._write(out)

    def _write(self, parts: list[bytes | memoryview]) -> None:
        transport = self._transport
        if transport.is_closing() or (self._write_paused and self._is_over_share()):
            return
        if len(parts) == 1:
            transport.write(parts[0])
        else:
            transport.writelines(parts)
        if self._write_paused:
            self.settle_unsent()
        if not self._waiting:
            self._since = self.port.now
            if self._ended:
                self._hang_up()
                return
            if self.port.stopping:
                self.close_if_idle()
        if self._data or self._read_paused:
            self._advance()

    def _hang_up(self) -> None:
        """Closes after the last response, once all output is sent."""
        self._closing, self._since = True, self._now()
        self._unsent_bytes = self._transport.get_write_buffer_size()
        if self._unread and self._transport.can_write_eof():
            self._transport.write_eof()
            self._set_reading()
        else:
            self._transport.close()

    def resume_writing(self) -> None:
        """Resumes writing: the peer has read."""
        self._write_paused = False
        self._since = self._now()
        self.settle_unsent()
        if self._waiting and (stream := self._waiting[0].stream) is not None:
            stream.proceed()
        self._advance()

    # Responses in pieces.

    def may_write(self, exchange: Exchange) -> bool:
        """Returns True if it is an exchange's turn to be answered, and the peer reads."""
        waiting = self._waiting
        is_first = bool(waiting) and waiting[0] is exchange
        gone = self._closing or self._transport.is_closing()
        return is_first and not self._write_paused and not gone

    def write_piece(self, piece: bytes) -> None:
        """Writes a piece of the response whose turn it is."""
        if self._out or self._advancing:
            self._out.append(piece)
        else:
            self._write([piece])

    def break_off(self) -> None:
        """Ends the connection in the middle of a response."""
        if self._out:
            self._flush()
        self._ended = True
        self._hang_up()
