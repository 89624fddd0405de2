"""One server-side HTTP/2 connection: reads header blocks and DATA, writes frames.

Source: RFC 9113; the numbers in brackets below are its sections. `GrpcConnection` implements the
calls.

Rules:
- a peer that breaks the protocol gets GOAWAY or RST_STREAM, and no other peer is affected;
- the event loop has its turn after `CALLS_A_TURN` calls and `FRAMES_A_TURN` frames, so that no
  flood of frames, whole calls or broken-off ones, holds up the neighbours for longer;
- nothing is read while the peer does not read what is written to it.
"""

import abc
import asyncio
import contextlib

from services.wire.body import part_of
from services.wire.byte_budget import ByteBudget
from services.wire.http2 import calm as http2_calm
from services.wire.http2.frames import (
    ACK,
    CALL_WINDOW,
    CONTINUATION,
    DATA,
    END_HEADERS,
    FIRST_FRAME_BYTES,
    FIRST_WINDOW,
    GOAWAY,
    HAS_PRIORITY,
    HEAD,
    HEAD_BYTES,
    HEADER_TABLE_SIZE,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    MAX_CONCURRENT_STREAMS,
    MAX_FRAME_BYTES,
    MAX_FRAME_SIZE,
    MAX_HEADER_LIST_SIZE,
    MAX_OTHER_FRAME_BYTES,
    MAX_WINDOW,
    PADDED,
    PIECES_FROM_BYTES,
    PING,
    PREFACE,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    ConnectionFaultError,
    Fault,
    frame,
    goaway,
    number,
    read_settings,
    settings,
    unpadded,
    window_update,
)
from services.wire.http2.headers import EMPTY_TABLE, MAX_BLOCK_BYTES, MAX_FIELDS_BYTES
from services.wire.http2.reading import ReadingConnection
from services.wire.http2.sending import Sender, Sending
from services.wire.loop_turns import FIRST_WORK_US, READ_US, WORK_A_TURN_US, LoopTurns

MAX_CALLS = 4096
"""Calls open at once on one connection; clients are told, and delay further ones."""
CALLS_A_TURN = 32
"""A call that begins takes some 20 µs of the loop, so that a full round stays under 1 ms."""
FRAMES_A_TURN = 512
FIRST_CALLS, FIRST_FRAMES = 4, 64
"""In a turn in which others have done much."""
CALL_FRAMES = 25
"""A call that begins costs as much as so many frames, of a microsecond each."""
FIRST_TABLE_BYTES = 4096
"""Size of each side's table of header fields until the peer reduces it (RFC 7541, 6.5.2)."""
PARTING = b"flambeau"
"""The PING whose answer says that the peer has read our first GOAWAY."""

_GREETING = settings(
    {
        MAX_CONCURRENT_STREAMS: MAX_CALLS,
        INITIAL_WINDOW_SIZE: CALL_WINDOW,
        MAX_FRAME_SIZE: MAX_FRAME_BYTES,
        MAX_HEADER_LIST_SIZE: MAX_FIELDS_BYTES,
    }
) + window_update(0, MAX_WINDOW - FIRST_WINDOW)
_JOINED_BYTES = 4096
"""Largest answer that waits for others of its turn."""
_ACKNOWLEDGED = frame(SETTINGS, ACK, 0)
_WORDS = b"this port speaks gRPC (HTTP/2); REST is on the other, http_port\n"
_NOT_HTTP2 = (
    b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-type: text/plain\r\n"
    b"content-length: %d\r\n\r\n%b" % (len(_WORDS), _WORDS)
)
_SIZES = {PRIORITY: 5, RST_STREAM: 4, PING: 8, WINDOW_UPDATE: 4}
"""Frames of one size."""
_NAMES = {PRIORITY: "priority", GOAWAY: "goaway"}


class Http2Connection(ReadingConnection):
    """The frames of one connection; methods at the end of this class handle calls.

    Attributes:
        peer: the other end, as gRPC names it.
        sending: output within the peer's windows.
        last: the newest stream that the peer has begun.
        calls_begun: in this turn of the event loop.
        unfinished_bytes: received of messages that are not whole, or wait for their call's end.
        moved_bytes: received of messages that came in pieces, since the connection began.
        calm: remaining budget of useless frames of the peer.
    """

    __slots__ = (
        "_answers", "_block", "_block_cost", "_block_of", "_frames", "_greeted", "_left_bytes",
        "_prefaced", "_table_note", "calls_begun", "calm", "last", "moved_bytes", "peer", "sending",
        "unfinished_bytes",
    )  # fmt: skip

    def __init__(self, read_buffer: memoryview, turns: LoopTurns, budget: ByteBudget) -> None:
        super().__init__(read_buffer, turns, budget)
        self.peer = ""
        self._frames = 0
        self._prefaced = self._greeted = False
        # A header block that goes on, what its frames cost, and its stream and flags.
        self._block = bytearray()
        self._block_cost = 0
        self._block_of = (0, 0)
        # In front of our next block; the first one gives the table up, whatever SETTINGS follow.
        self._table_note = EMPTY_TABLE
        self.last = self.calls_begun = self.unfinished_bytes = self.moved_bytes = 0
        # What the peer had not read at the last sweep, and answers that leave in one write.
        self._left_bytes = 0
        self._answers: list[bytes] = []
        self.calm = http2_calm.Calm(self._since)

    # Called by the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Handles a new connection."""
        self._transport = transport  # type: ignore[assignment]  # uvloop's has no base class
        self.peer = _name_of(transport.get_extra_info("peername"))
        self.sending = Sending(self.write, self.answered)

    def connection_lost(self, exc: Exception | None) -> None:
        """Handles the loss of the connection."""
        self._closing = True
        self._data, self._position = b"", 0
        self._answers.clear()
        self.drop_calls()
        self._forget_held()

    def pause_writing(self) -> None:
        """Pauses writing: the peer does not read."""
        self.sending.is_paused = True
        super().pause_writing()

    def resume_writing(self) -> None:
        """Resumes writing: the peer has read."""
        self._write_paused = self.sending.is_paused = False
        self.sending.resume()
        self._set_reading()
        self.settle_unsent()

    # Frames.

    def write(self, data: bytes | memoryview) -> None:
        """Writes frames that no window holds back, behind answers that wait."""
        if self._answers:
            self._write_answers()
        self._transport.write(data)

    def write_answer(self, data: bytes, *, is_alone: bool) -> None:
        """Writes the only frames of a call; small ones in one write with others of the turn.

        A batch has several answers for a connection, and each write takes some 2.5 µs.

        Args:
            data: frames.
            is_alone: True if no other call is open, so that nothing may come behind it.
        """
        if self._answers or not (is_alone or len(data) > _JOINED_BYTES):
            if not self._answers:
                asyncio.get_running_loop().call_soon(self._write_answers)
            self._answers.append(data)
        else:
            self._transport.write(data)

    def _write_answers(self) -> None:
        answers, self._answers = self._answers, []
        if answers and not self._transport.is_closing():
            self._transport.write(b"".join(answers))

    def greet(self) -> None:
        """Sends the server's connection preface, [3.4]."""
        self.write(_GREETING)

    def _advance(self, work_us: int = 0) -> None:
        """Takes what was read, as far as it goes and for as long as a turn lasts.

        Args:
            work_us: allowed now; 0 for as much as the turn has left.
        """
        turns = self._turns
        if self._turn != turns.number:
            self._turn, self._frames, self.calls_begun = turns.number, 0, 0
        if not work_us and turns.worked_us >= WORK_A_TURN_US:
            self._wait_turn(turns, is_fresh=True, size=len(self._data))
            return
        if work_us == FIRST_WORK_US:
            # Those that wait longer have their turn, too: only so much is left of it for this one.
            self.calls_begun = max(self.calls_begun, CALLS_A_TURN - FIRST_CALLS)
            self._frames = max(self._frames, FRAMES_A_TURN - FIRST_FRAMES)
        before_us = self._frames + CALL_FRAMES * self.calls_begun
        try:
            if self._prefaced or self._take_preface():
                self._take_frames()
        except ConnectionFaultError as error:
            self.end(error.fault, str(error))
            return
        finally:
            turns.count(self._frames + CALL_FRAMES * self.calls_begun - before_us)
        if self._position == len(self._data):
            self._data, self._position = b"", 0
        if self._data or self.unfinished_bytes or self._block or self._held_bytes:
            self.settle_unsent()
        if self._read_paused:
            self._set_reading()

    def _take_preface(self) -> bool:
        """Checks that the peer speaks HTTP/2; tells one that does not, where it can read that."""
        start = self._data[: len(PREFACE)]
        if start == PREFACE:
            self._prefaced, self._position = True, len(PREFACE)
            self.greet()
            return True
        if not PREFACE.startswith(start):
            if b" HTTP/1." in self._data[:FIRST_FRAME_BYTES]:
                self.write(_NOT_HTTP2)
            self.hang_up()
        return False

    def _take_frames(self) -> None:
        if self._frame_stream and not self._continue_data():
            return
        data, position = self._data, self._position
        size = len(data)
        while self._frames < FRAMES_A_TURN:
            if size - position < HEAD_BYTES:
                return
            high, low, kind, flags, stream = HEAD.unpack_from(data, position)
            length = high << 8 | low
            if length > (MAX_FRAME_BYTES if kind == DATA else MAX_OTHER_FRAME_BYTES):
                raise ConnectionFaultError(Fault.FRAME_SIZE_ERROR, f"a frame of {length} bytes")
            end = position + HEAD_BYTES + length
            if end > size:
                is_plain = kind == DATA and not flags & PADDED and not self._block_of[0]
                if is_plain and length >= PIECES_FROM_BYTES and stream & MAX_WINDOW:
                    self._position = position + HEAD_BYTES
                    self._begin_data(flags, stream & MAX_WINDOW, length)
                return
            if self.calls_begun >= CALLS_A_TURN:
                break
            self._frames += 1
            begin = position + HEAD_BYTES
            self._position = position = end
            if kind == DATA and not self._block_of[0]:
                self.take_data(flags, stream & MAX_WINDOW, part_of(data, begin, end))
            elif kind == HEADERS and not self._block_of[0] and self._greeted:
                self._take_headers(flags, stream & MAX_WINDOW, data[begin:end])
            else:
                self._take_other(kind, flags, stream & MAX_WINDOW, data[begin:end])
            if self._closing:
                return
        self._wait_turn(self._turns, is_fresh=False)

    def take_turn(self, work_us: int) -> None:
        """Continues with read input."""
        self._waits_turn = False
        if not self._closing:
            self._advance(work_us)
        self._turns.worked_us += READ_US

    def _take_headers(self, flags: int, stream: int, payload: bytes) -> None:
        if flags & PADDED:
            payload = unpadded(payload)
        if flags & HAS_PRIORITY:
            if len(payload) < _SIZES[PRIORITY]:
                raise ConnectionFaultError(Fault.FRAME_SIZE_ERROR, "HEADERS without its priority")
            payload = payload[_SIZES[PRIORITY] :]
        if flags & END_HEADERS:
            self.take_block(flags, stream, payload)
            return
        self._block_of = stream, flags
        self._block += payload
        self._block_cost = len(payload)
        if not stream:
            raise ConnectionFaultError(Fault.PROTOCOL_ERROR, "HEADERS on stream 0")

    def _take_other(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        """Handles a frame other than a whole call's, [6]."""
        if not self._greeted and (kind != SETTINGS or flags & ACK):
            raise ConnectionFaultError(Fault.PROTOCOL_ERROR, "SETTINGS must come first")
        if (kind == CONTINUATION) != bool(self._block_of[0]):
            raise ConnectionFaultError(Fault.PROTOCOL_ERROR, "CONTINUATION out of order")
        if len(payload) != _SIZES.get(kind, len(payload)):
            raise ConnectionFaultError(Fault.FRAME_SIZE_ERROR, f"a frame of kind {kind}, malformed")
        if kind in (SETTINGS, PING, GOAWAY) and stream:
            raise ConnectionFaultError(Fault.PROTOCOL_ERROR, f"kind {kind} on stream {stream}")
        if kind == CONTINUATION:
            self._take_continuation(flags, stream, payload)
        elif kind == WINDOW_UPDATE:
            increment = number(payload)
            if increment < http2_calm.SMALL_INCREMENT:
                self.spend("window_update")
            self._take_window_update(stream, increment)
        elif kind == SETTINGS:
            self.spend("settings", http2_calm.cost_of_settings(payload, self.sending.waiting))
            self._take_settings(flags, payload)
        elif kind == PING:
            self.spend("ping")
            self._take_ping(flags, payload)
        elif kind == RST_STREAM:
            self.spend("reset")
            self.take_reset(stream)
        elif kind == PRIORITY and not stream:
            raise ConnectionFaultError(Fault.PROTOCOL_ERROR, "PRIORITY on stream 0")
        elif kind == PUSH_PROMISE:
            raise ConnectionFaultError(Fault.PROTOCOL_ERROR, "PUSH_PROMISE from a client")
        else:  # other kinds are to be passed over, [5.5]
            self.spend(_NAMES.get(kind, "unknown"))

    def count_work(self, work_us: int) -> None:
        """Counts the time of moving a message that is not whole to new memory."""
        self._frames += work_us

    def spend(self, reason: str, cost: int = 1) -> None:
        """Charges a useless frame.

        Args:
            reason: its kind, as it is counted.
            cost: in frames.

        Raises:
            ConnectionFaultError: it has sent too many.
        """
        calm = self.calm
        calm.left -= cost
        if calm.left < 0:
            try:
                calm.refill(self._now(), reason)
            except ConnectionFaultError:
                self.count_flood(reason)
                raise

    def _take_continuation(self, flags: int, stream: int, payload: bytes) -> None:
        first, first_flags = self._block_of
        if stream != first:
            raise ConnectionFaultError(Fault.PROTOCOL_ERROR, "CONTINUATION of another call")
        self._block += payload
        self._block_cost += HEAD_BYTES + len(payload)  # an empty one is not for nothing
        if self._block_cost > MAX_BLOCK_BYTES:
            raise ConnectionFaultError(
                Fault.ENHANCE_YOUR_CALM, f"metadata over {MAX_BLOCK_BYTES} bytes"
            )
        if flags & END_HEADERS:
            block, self._block, self._block_of = bytes(self._block), bytearray(), (0, 0)
            self.take_block(first_flags, first, block)

    def _take_settings(self, flags: int, payload: bytes) -> None:
        if flags & ACK:
            if payload:
                raise ConnectionFaultError(Fault.FRAME_SIZE_ERROR, "SETTINGS ACK with a payload")
            return
        self._greeted = True
        self._frames += http2_calm.ANSWER_FRAMES
        found = dict(read_settings(payload))
        # Acknowledged first: what the new windows let through may not come before, nor may
        # anything come behind it if it ends the connection.
        self.write(_ACKNOWLEDGED)
        if found.get(HEADER_TABLE_SIZE, FIRST_TABLE_BYTES) < FIRST_TABLE_BYTES:
            self._table_note = EMPTY_TABLE
        if self.sending.waiting:
            self.calls_begun = CALLS_A_TURN  # all calls that wait are looked at
        self.sending.take_settings(found.get(INITIAL_WINDOW_SIZE), found.get(MAX_FRAME_SIZE))

    def _take_ping(self, flags: int, payload: bytes) -> None:
        if not flags & ACK:
            self._frames += http2_calm.ANSWER_FRAMES
            self.write(frame(PING, ACK, 0, payload))
        elif payload == PARTING:
            self.take_parting()

    def _take_window_update(self, stream: int, increment: int) -> None:
        if stream:
            self.widen(stream, increment)
        elif increment:
            self.sending.widen(increment)
        else:
            raise ConnectionFaultError(Fault.PROTOCOL_ERROR, "WINDOW_UPDATE by 0")

    # What it holds.

    def _holds(self) -> tuple[int, bool]:
        sending = self.sending
        held = len(self._data) - self._position + len(self._block) + self.unfinished_bytes
        # Bytearrays grow by an eighth in advance, and the memory that they outgrow lies in between.
        held += self.unfinished_bytes // 4
        held += sending.unsent_bytes + self._left_bytes
        return held, bool(held or self._write_paused)

    def _moved(self) -> int:
        return self.moved_bytes + self.sending.sent_bytes

    def _sweep_left(self) -> None:
        """Counts output that the socket has not accepted yet."""
        left_bytes = self._transport.get_write_buffer_size()
        if left_bytes or self._left_bytes:
            self._left_bytes = left_bytes
            self.settle_unsent()

    # The end.

    def end(self, fault: Fault, words: str) -> None:
        """Drops all calls and sends the peer the reason."""
        self._closing = True
        self.write(goaway(self.last, fault, words))
        self.drop_calls()
        self.hang_up()

    def hang_up(self) -> None:
        """Closes, once what is written has gone out and the peer had a chance to read it."""
        self._write_answers()
        self._closing, self._since = True, self._now()
        self._data, self._position = b"", 0
        if self._transport.can_write_eof():
            with contextlib.suppress(OSError):  # the peer has disconnected
                self._transport.write_eof()
            self._set_reading()
        else:
            self._transport.close()

    def beginning(self, stream: int, block: bytes, flags: int = 0) -> bytes:
        """Encodes the first HEADERS frame of a response."""
        if self._table_note:
            block, self._table_note = self._table_note + block, b""
        return frame(HEADERS, END_HEADERS | flags, stream, block)

    # What is said of calls.

    @abc.abstractmethod
    def take_block(self, flags: int, stream: int, block: bytes) -> None:
        """Handles a complete header block."""

    @abc.abstractmethod
    def widen(self, stream: int, increment: int) -> None:
        """Widens the window of a call; an increment of 0 is a fault."""

    @abc.abstractmethod
    def take_reset(self, stream: int) -> None:
        """Handles the peer's reset of a call."""

    @abc.abstractmethod
    def count_flood(self, reason: str) -> None:
        """Counts a connection ended for a flood of frames."""

    @abc.abstractmethod
    def take_parting(self) -> None:
        """Handles the peer's answer to the PING behind our first GOAWAY."""

    @abc.abstractmethod
    def answered(self, call: Sender) -> None:
        """Handles a call whose status and all output before it are written."""

    @abc.abstractmethod
    def drop_calls(self) -> None:
        """Drops all calls: the peer has disconnected."""


def _name_of(address: object) -> str:
    """Returns gRPC's name of a peer."""
    if not isinstance(address, tuple):
        return "unix:"
    host, port = address[:2]
    return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"
