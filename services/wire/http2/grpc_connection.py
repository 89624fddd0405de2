"""One connection of a gRPC port: its open calls and their time limits.

Rules:
- every call ends once: by its status, by its caller's reset, or with the connection;
- the bytes of incomplete messages on a connection are limited;
- a closing connection announces it (GOAWAY), and closes when its last call is over.

A call allocates only its `Call`: no task, no future, no timer. A header block whose bytes have been
seen before, with the same table, is not decoded again: callers repeat blocks.
"""

import asyncio
import random

from services.errors import BufferFullError, OverloadedError, ServingError, UnreadAnswersError
from services.wire.body import SizedBody
from services.wire.byte_budget import SHARES, SMALL_BYTES
from services.wire.errors import TooManyConnectionsError, too_slow
from services.wire.http2.calm import AN_ANSWER, CAPACITY, FAULT_COST, SMALL_DATA_BYTES
from services.wire.http2.connection import MAX_CALLS, PARTING, Http2Connection
from services.wire.http2.frames import (
    END_STREAM,
    MAX_WINDOW,
    PADDED,
    PING,
    ConnectionFaultError,
    Fault,
    frame,
    goaway,
    reset,
    unpadded,
    window_update,
)
from services.wire.http2.grpc_call import Call
from services.wire.http2.grpc_head import GrpcHead, MalformedError
from services.wire.http2.grpc_port import GrpcPort
from services.wire.http2.headers import HeaderBlocks
from services.wire.http2.sending import Sender
from services.wire.loop_turns import READ_BYTES

UNFINISHED_MESSAGES = 4
"""Number of messages of the largest size that a connection may hold in pieces, within its share of
the budget; also the limit on bytes of unread responses, above which its next calls are refused."""
MAX_SHED_CALLS = 32
"""Calls refused one by one to make room; a connection with more of them is closed."""
CALL_BYTES = 8 * 1024
"""Charged for a call that waits for its caller: its memory, and its part of a pause of Python's
garbage collector. 500,000 calls made one of 150 ms; so many find no room."""
MAX_SILENT_CALLS = 8
"""Calls that wait for their caller without a charge to the budget."""
MAX_KNOWN_BYTES = 32 * 1024
"""Bytes of cached heads."""
FIELDS_A_CALL = 6
BLOCK_BYTES_A_CALL = 512
"""Bytes of a header block that count as one more call in a turn, for their decoding time."""
MAX_KNOWN_BLOCK_BYTES = 4096
PARTING_S = 1.0
"""Time for calls that were in transit at our GOAWAY to arrive."""
GIVE_BACK_BYTES = MAX_WINDOW // 2
"""Received bytes after which the window of the connection is widened by as many."""
_FIELD_BYTES = 200
"""Memory of a cached field, beside its name and value."""


class GrpcConnection(Http2Connection):
    """One connection of a `GrpcPort`.

    Attributes:
        share_bytes: bytes of unread responses beyond which no further one begins.
        port: port that it belongs to.
    """

    __slots__ = (
        "_age_s", "_calls", "_headers", "_heads", "_known_bytes", "_left_at", "_limit_bytes",
        "_opened", "_read_bytes", "_silent_bytes", "_told", "_unheard", "port", "share_bytes",
    )  # fmt: skip
    port: GrpcPort

    def __init__(self, port: GrpcPort) -> None:
        super().__init__(port.read_buffer, port.turns, port.budget)
        self.port = port
        self._headers = HeaderBlocks()
        self._heads: dict[bytes, GrpcHead] = {}
        self._calls: dict[int, Call] = {}
        # Streams of calls that have their status, on which the caller may still speak.
        self._unheard: set[int] = set()
        self._read_bytes = self._known_bytes = self._silent_bytes = 0
        largest = port.limits.max_request_bytes
        share = port.budget.share_bytes
        self.share_bytes = min(UNFINISHED_MESSAGES * largest, share)
        self._limit_bytes = min(UNFINISHED_MESSAGES * largest, max(share, largest + READ_BYTES))
        # When the end was announced, and the last stream that is still taken.
        self._left_at: float | None = None
        self._told = MAX_WINDOW
        self._opened = port.now
        self._age_s = port.limits.max_age_s * random.uniform(0.9, 1.1)  # noqa: S311  # not a secret

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Handles a new connection."""
        super().connection_made(transport)
        port = self.port
        port.opened(self)
        limit = port.limits.max_connections
        if len(port.connections) > limit:
            # Without a word: who has been greeted comes back at once, and others wait longer and
            # longer (gRPC's connection backoff).
            error = TooManyConnectionsError(f"{limit} connections are open (max_connections)")
            port.count_refusal(error)
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Handles the loss of the connection; held bytes stay charged until the calls drop."""
        self.port.keep_charge(self._held_bytes)
        super().connection_lost(exc)
        self._forget_heads()
        self.port.closed(self)

    def abort(self) -> None:
        """Drops the connection and its calls; their received bytes are freed at once."""
        for call in self._calls.values():
            call.forget_input()
        super().abort()

    # Frames of calls.

    def take_data(self, flags: int, stream: int, payload: bytes | memoryview) -> None:
        """Handles a piece of a call's messages."""
        self._count_data(len(payload))
        call = self._calls.get(stream)
        if flags & PADDED:
            size = len(payload)
            payload = unpadded(bytes(payload))
            if call is not None and not flags & END_STREAM:
                self.write(window_update(stream, size - len(payload)))
        if (call is None or len(payload) <= SMALL_DATA_BYTES) and not flags & END_STREAM:
            self.spend("data")
        if call is None:
            self._check_known(stream)
            if stream in self._unheard:
                self._unheard.remove(stream)
                if not flags & END_STREAM:
                    self.write(reset(stream, Fault.NO_ERROR))
            return  # of a call that has its status
        if call.has_ended:
            self._take_fault(call, Fault.STREAM_CLOSED)
            return
        call.receive(payload, bool(flags & END_STREAM))
        self._limit_unfinished(call)

    def place_of(self, stream: int, size: int) -> SizedBody | None:
        """Returns the buffer of a message that takes the next `size` bytes of DATA, if any."""
        call = self._calls.get(stream)
        return None if call is None else call.place(size)

    def take_in_place(self, stream: int, size: int) -> None:
        """Handles a piece of a message that was read into its place."""
        self._count_data(size)
        call = self._calls[stream]
        call.received_in_place(size)
        self._limit_unfinished(call)

    def _count_data(self, size: int) -> None:
        """Widens the window of the connection once much was received."""
        self._read_bytes += size
        if self._read_bytes >= GIVE_BACK_BYTES:
            self.write(window_update(0, self._read_bytes))
            self._read_bytes = 0

    def _limit_unfinished(self, call: Call) -> None:
        """Refuses a call if the connection holds too much of incomplete messages."""
        limit = self._limit_bytes
        if self.unfinished_bytes > limit:
            call.refuse(
                OverloadedError(
                    f"this connection has sent {limit} bytes of incomplete messages, the limit "
                    f"({UNFINISHED_MESSAGES} x max_request_bytes, max_buffered_bytes / {SHARES}); "
                    "finish them first"
                )
            )

    def take_block(self, flags: int, stream: int, block: bytes) -> None:
        """Handles a header block: a call begins, or ends by its trailers."""
        head = self._heads.get(block) or self._learn(block)
        call = self._calls.get(stream)
        ended = bool(flags & END_STREAM)
        if call is not None:
            if call.has_ended or not ended:
                self._take_fault(call, Fault.STREAM_CLOSED)
            else:
                call.receive(b"", True)
            return
        if not stream & 1:
            raise ConnectionFaultError(Fault.PROTOCOL_ERROR, f"a call on stream {stream}")
        if stream <= self.last or stream > self._told:
            self.calls_begun += 1  # to read the block took as long
            self.spend("headers", FAULT_COST)
            return  # trailers of a call that has its status; or begun after our last GOAWAY
        self.last = stream
        self.calls_begun += 1
        if head is None:
            self.spend("headers", FAULT_COST)
            self.write(reset(stream, Fault.PROTOCOL_ERROR))
        elif len(self._calls) >= MAX_CALLS:
            self.spend("headers")
            self.write(reset(stream, Fault.REFUSED_STREAM))
        else:
            self._begin(head, stream, ended)

    def widen(self, stream: int, increment: int) -> None:
        """Widens the window of a call's response."""
        call = self._calls.get(stream)
        if call is None:
            self._check_known(stream)
        elif not increment:
            self._take_fault(call, Fault.PROTOCOL_ERROR)
        elif not self.sending.widen_call(call, increment):
            self._take_fault(call, Fault.FLOW_CONTROL_ERROR)

    def take_reset(self, stream: int) -> None:
        """Cancels a call that its caller reset."""
        self._check_known(stream)
        self._unheard.discard(stream)
        call = self._calls.pop(stream, None)
        if call is not None:
            was_open = not call.is_over
            self._drop(call)
            self._rest()
            if was_open:
                self.spend("reset")  # what was begun for it was for nothing

    def count_flood(self, reason: str) -> None:
        """Counts it by the kind of the last frame."""
        self.port.floods.labels(reason).inc()

    def take_parting(self) -> None:
        """Handles the arrival of all calls that were in transit at our GOAWAY."""
        if self._left_at is not None:
            self._leave_now()

    def write_whole(self, data: bytes) -> None:
        """Writes all frames of a small answer, perhaps with others of this turn."""
        self.write_answer(data, is_alone=len(self._calls) == 1)

    def write_soon(self, data: bytes) -> None:
        """Writes all frames of a message that is not the last, with others of this turn."""
        self.write_answer(data, is_alone=False)

    def answered(self, call: Sender) -> None:
        """Removes a call that has its status."""
        over = self._calls.pop(call.id, None)
        calm = self.calm
        if calm.left < CAPACITY:
            calm.left += AN_ANSWER
        if over is not None:
            self._budget.held_bytes -= over.held_bytes
            over.held_bytes = 0
            if self.unfinished_bytes:
                over.forget_input()
            if not over.has_ended:
                self._leave_unheard(call.id)
        self._rest()

    def drop_calls(self) -> None:
        """Drops all calls: the peer has disconnected."""
        calls, self._calls = self._calls, {}
        waiting = [call for call in calls.values() if not call.is_over]
        over = [call for call in calls.values() if call.is_over]
        for call in waiting:
            call.is_over = True  # none is answered from now on
        self.port.drop(waiting, over)

    def _check_known(self, stream: int) -> None:
        """Refuses frames of calls that were never begun, [5.1].

        After our last GOAWAY there are calls that were begun and not taken.
        """
        if not stream & 1 or (stream > self.last and self._told == MAX_WINDOW):
            raise ConnectionFaultError(Fault.PROTOCOL_ERROR, f"a frame of no call, {stream}")

    def _begin(self, head: GrpcHead, stream: int, ended: bool) -> None:
        if head.http_status:
            call = self._calls[stream] = Call(self, head, stream)
            call.has_ended = ended
            call.answer_http(head.http_status)
            return
        call = self._calls[stream] = head.open(self, head, stream)
        refusal = head.refusal
        if self.sending.unsent_bytes > self.share_bytes:
            refusal = self.unread()
        if refusal is not None:
            self.calls_begun += 1  # to say why takes as long as to begin one
            call.has_ended = ended
            call.refuse(refusal)
        elif ended:
            call.receive(b"", True)

    def _learn(self, block: bytes) -> GrpcHead | None:
        """Reads a block that is not known; None if it begins no call."""
        fields, lasts = self._headers.read(block)
        self.calls_begun += len(fields) // FIELDS_A_CALL + len(block) // BLOCK_BYTES_A_CALL
        if not lasts:
            self._forget_heads()
        try:
            head = self.port.head_of(fields)
        except MalformedError:
            return None
        if lasts and head.is_usual and len(block) <= MAX_KNOWN_BLOCK_BYTES:
            size = len(block) + sum(_FIELD_BYTES + len(n) + len(v) for n, v in fields)
            if self._known_bytes + size > MAX_KNOWN_BYTES:
                self._forget_heads()
            self._heads[block] = head
            self._known_bytes += size
            self._budget.held_bytes += size
        return head

    def _forget_heads(self) -> None:
        self._heads.clear()
        self._budget.held_bytes -= self._known_bytes
        self._known_bytes = 0

    def _leave_unheard(self, stream: int) -> None:
        """A call has its status while its caller still speaks: the rest is passed over.

        Who goes on for long is told to stop, [8.1]; to be told at once keeps some from reading
        the status (curl 7.88).
        """
        self._unheard.add(stream)
        if len(self._unheard) > MAX_CALLS:
            self.write(reset(self._unheard.pop(), Fault.NO_ERROR))

    def _take_fault(self, call: Call, fault: Fault) -> None:
        """Ends a call whose peer breaks the rules of streams, at the cost of its own reset."""
        self._reset(call, fault)
        self.spend("reset", FAULT_COST)

    def _reset(self, call: Call, fault: Fault) -> None:
        """Ends a call: its peer breaks the rules of streams, or says nothing."""
        del self._calls[call.id]
        self.write(reset(call.id, fault))
        self._drop(call)
        self._rest()

    def _drop(self, call: Call) -> None:
        """Abandons a call that the connection has removed."""
        was_over, call.is_over = call.is_over, True
        self.release(call)
        if not was_over:
            call.abandon()

    def release(self, call: Call) -> None:
        """Releases the bytes of a call."""
        self.sending.forget(call)
        call.forget_input()
        if not call.outlives_caller:
            self._budget.held_bytes -= call.held_bytes
            call.held_bytes = 0

    # What it holds.

    def _holds(self) -> tuple[int, bool]:
        held, waits = super()._holds()
        return held + self._silent_bytes, waits or bool(self._silent_bytes)

    def unread(self) -> UnreadAnswersError:
        """Returns the error of calls whose peer does not read."""
        return UnreadAnswersError(
            f"{self.share_bytes} bytes of answers on this connection wait for their caller, the "
            f"limit ({UNFINISHED_MESSAGES} x max_request_bytes, max_buffered_bytes / {SHARES}); "
            "take them first"
        )

    def shed(self, error: BufferFullError) -> None:
        """Refuses calls that wait for their caller, or closes the connection if too many."""
        calls = [call for call in self._calls.values() if call.unsent or not call.has_ended]
        if len(calls) <= MAX_SHED_CALLS and not (self._closing or self._write_paused):
            for call in calls:
                if call.unsent or call.is_over:
                    self.port.count_refusal(error)
                    self._reset(call, Fault.ENHANCE_YOUR_CALM)
                else:
                    self.refuse(call, error)
        if self._holds()[0] > SMALL_BYTES or self._closing or self._write_paused:
            self._give_up_reader(error)
        else:
            self.settle_unsent()

    def refuse(self, call: Call, error: ServingError) -> None:
        """Refuses a call because of a limit, and counts that."""
        if not call.counts_refusals:
            self.port.count_refusal(error)
        call.refuse(error)

    # The end, and time.

    def _rest(self) -> None:
        """Handles the end of a call; closes a leaving connection after the last one."""
        if not self._calls:
            self._since = self.port.now
            if self._left_at is not None and not self._closing:
                self._leave_now()

    def close_if_idle(self) -> None:
        """Sends GOAWAY, and closes the connection when the last call is over, [6.8]."""
        if self._left_at is not None or self._closing:
            return
        self._left_at = self.port.now
        if not self._prefaced:
            self.greet()
        if self._calls:
            # Calls that are on their way here may still come: until the PING is answered.
            self.write(goaway(MAX_WINDOW, Fault.NO_ERROR) + frame(PING, 0, 0, PARTING))
        else:
            self._leave_now()

    def _leave_now(self) -> None:
        """Stops accepting calls."""
        if self._told == MAX_WINDOW:
            self._told = self.last
            self.write(goaway(self.last, Fault.NO_ERROR))
        if not self._calls:
            self.hang_up()

    def sweep(self) -> None:
        """Enforces timeouts; called by the port's timer."""
        now, limits = self.port.now, self.port.limits
        self._sweep_left()
        if self._closing or self._write_paused:
            self.sweep_unsent(now, limits.receive_timeout_s)
        elif not self._greeted:
            if now - self._opened > limits.receive_timeout_s:
                self.hang_up()
        elif self._calls:
            self._sweep_calls(now, limits.receive_timeout_s)
        elif now - self._since > limits.keep_alive_timeout_s:
            self.close_if_idle()
        if not self._closing:
            self._sweep_age(now)

    def _sweep_calls(self, now: float, limit_s: float) -> None:
        """Ends calls whose caller sends nothing, or reads nothing of the response."""
        if len(self._calls) > MAX_SILENT_CALLS or self._silent_bytes:
            calls = self._calls.values()
            silent = sum(not call.has_ended or call.unsent is not None for call in calls)
            self._silent_bytes = CALL_BYTES * silent if silent > MAX_SILENT_CALLS else 0
            self.settle_unsent()
        for call in tuple(self._calls.values()):
            if call.has_moved:
                call.has_moved, call.since = False, now
            if now - call.since <= limit_s:
                continue
            if not call.has_ended and not call.is_over and not call.may_be_silent:
                call.refuse(too_slow(limit_s, "message"))
            elif call.unsent is not None:
                self._reset(call, Fault.CANCEL)

    def _sweep_age(self, now: float) -> None:
        if self._left_at is None:
            if self._age_s and now - self._opened > self._age_s:
                self.close_if_idle()
        elif now - self._left_at > PARTING_S:
            self._leave_now()
            grace_s = self.port.limits.grace_s
            if grace_s and now - self._left_at > grace_s and not self._closing:
                self.end(
                    Fault.NO_ERROR, "the connection and its calls have reached their age limit"
                )
