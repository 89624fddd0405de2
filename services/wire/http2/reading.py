"""Reads of one HTTP/2 connection: into the message that they belong to, or into a shared buffer.

In: reads of the transport. Out: bytes to take frames from, and pieces of a DATA frame, which may be
larger than a read: it is not collected, but handed to its call as it comes. If the rest of a frame
is large, it is read into its place in the message, with the head of the next frame behind it, which
the next read then overwrites: only the kernel copies it.
"""

import abc

from services.wire.body import SizedBody, part_of
from services.wire.byte_budget import ByteBudget
from services.wire.http2.frames import END_STREAM, HEAD_BYTES
from services.wire.loop_turns import (
    READ_BYTES_AT_ONCE,
    READ_BYTES_LATE,
    READ_SHIFT,
    WORK_A_TURN_US,
    LoopTurns,
)
from services.wire.open_port import OpenConnection

MAX_HELD_BYTES = READ_BYTES_LATE
"""Read by a connection that waits for its turn; with as many nothing more is read. libuv repeats a
read that fills its buffer up to 32 times: 200 connections made turns of 36 ms."""
_LEAST_IN_PLACE_BYTES = 32 * 1024
"""Rest of a frame that is read into its place: a shorter one leaves room for others in a read."""


class ReadingConnection(OpenConnection):
    """The input of one `Http2Connection`."""

    __slots__ = (
        "_data", "_frame_flags", "_frame_left", "_frame_stream", "_place", "_position",
        "_read_buffer", "_turns",
    )  # fmt: skip

    def __init__(self, read_buffer: memoryview, turns: LoopTurns, budget: ByteBudget) -> None:
        super().__init__(self._now(), budget)
        self._read_buffer = read_buffer
        self._turns = turns
        # What was read and not yet understood, from `_position` on.
        self._data = b""
        self._position = 0
        # A DATA frame that goes on, and the buffer that is being read into.
        self._frame_flags = self._frame_left = self._frame_stream = 0
        self._place: SizedBody | None = None

    def get_buffer(self, sizehint: int) -> memoryview:
        """Returns the place of what comes, or the buffer that all connections share.

        In a turn whose work is done, only a place that has its memory: thousands may be read in it.
        """
        left = self._frame_left
        is_late = self._turns.worked_us >= WORK_A_TURN_US
        if left >= _LEAST_IN_PLACE_BYTES and not self._waits_turn:
            place = self.place_of(self._frame_stream, left)
            if place is not None:
                at_most = READ_BYTES_LATE if is_late else READ_BYTES_AT_ONCE
                find = place.room_there if is_late else place.room
                if room := find(min(left + HEAD_BYTES, at_most)):
                    self._place = place
                    return room
        return self._read_buffer[:READ_BYTES_LATE] if is_late else self._read_buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Handles received bytes."""
        place, self._place = self._place, None
        if self._closing:
            return  # read, so that our last words are not lost to a reset
        left = memoryview(self._data)[self._position :]  # large frames come in several reads
        self._turns.worked_us += (nbytes + len(left)) >> READ_SHIFT
        if place is not None:
            data = self._received(place, nbytes)
        elif left:
            data = b"".join((left, self._read_buffer[:nbytes]))
        else:
            data = bytes(self._read_buffer[:nbytes])
        self._data, self._position = data, 0
        if not self._waits_turn:
            self._advance()
        elif len(data) >= MAX_HELD_BYTES:
            self._set_reading()

    def _received(self, place: SizedBody, nbytes: int) -> bytes:
        """Bytes were read into their place; returns those behind the frame."""
        taken = min(nbytes, self._frame_left)
        start = place.received_bytes + taken
        behind = bytes(place.content[start : start + nbytes - taken])
        self._frame_left -= taken
        self.take_in_place(self._frame_stream, taken)
        return behind

    def _begin_data(self, flags: int, stream: int, length: int) -> None:
        """Takes what is there of a DATA frame that is not whole."""
        self._frame_flags, self._frame_stream, self._frame_left = flags, stream, length
        self._continue_data()

    def _continue_data(self) -> bool:
        """Takes more of a DATA frame that goes on. Returns True at its end."""
        position = self._position
        size = min(len(self._data) - position, self._frame_left)
        self._position = position + size
        self._frame_left -= size
        flags, stream = self._frame_flags, self._frame_stream
        is_end = not self._frame_left
        if is_end:
            self._frame_stream = 0
        elif not size:
            return False
        self.take_data(
            flags if is_end else flags & ~END_STREAM,
            stream,
            part_of(self._data, position, position + size),
        )
        return is_end

    def _set_reading(self) -> None:
        """Starts or stops reading, as the state requires."""
        held = len(self._data) - self._position
        self._read(not self._write_paused and (not self._waits_turn or held < MAX_HELD_BYTES))

    @abc.abstractmethod
    def _advance(self, work_us: int = 0) -> None:
        """Takes frames from what was read."""

    @abc.abstractmethod
    def take_data(self, flags: int, stream: int, payload: bytes | memoryview) -> None:
        """Handles DATA, perhaps padded, or a piece of it, of which the last has `END_STREAM`."""

    @abc.abstractmethod
    def place_of(self, stream: int, size: int) -> SizedBody | None:
        """Returns the buffer of a message that takes the next `size` bytes of DATA, if any."""

    @abc.abstractmethod
    def take_in_place(self, stream: int, size: int) -> None:
        """Handles DATA that was read into its place."""
