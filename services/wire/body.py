"""Receives bodies of HTTP/1 requests: of a known length, or chunked.

In: pieces, cut anywhere. Out: the whole body, still in its Content-Encoding. A body of a known
length is received straight into its final buffer (10 MB: a quarter of the CPU that
collecting and joining pieces takes), and takes memory as its bytes arrive, not as announced.
"""

import re

import numpy as np

from services.errors import InvalidRequestError, PayloadTooLargeError
from services.wire.loop_turns import COPY_SHIFT, FILL_SHIFT, HUGE_FILL_SHIFT

Body = bytes | bytearray | memoryview

SMALL_BODY_BYTES = 8 * 1024
"""Limit for requests that need no body, and for those of open endpoints."""
MIN_VIEWED_BYTES = 32 * 1024
"""A part of a read of at least this size, half of a read, is viewed and not copied."""

_FIRST_BYTES = 4 * 1024
"""First allocation for a body that has not begun to arrive."""
_GROWTH = 4
_WHOLE_FROM_BYTES = 192 * 1024
"""Fewer than four first reads bring: else 1 MiB would be filled and copied once more."""
PAGE_BYTES = 2 * 2**20
"""Size of the pages that the system provides, where it has huge pages."""
_HUGE_FROM_BYTES = 4 * 2**20
"""Size from which NumPy asks the system for huge pages."""
_MAX_LINE_BYTES = 1024
"""A chunk's size with its extensions, or one trailer."""
_MAX_TRAILER_BYTES = 8 * 1024
_LINES_AT_ONCE = 64
"""Lines between and behind chunks that are read in one turn: some 100 µs."""
LINE_US = 2
_LINE_SHIFT = 6
_MANY_CHUNKS = 4096
_LEAST_CHUNK_BYTES = 16
"""Least average size of many chunks: each costs as much as 8 KiB of content."""
_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_EXTENSION = rb";%b(?:=(?:%b|\"[\t !#-\[\]-~\x80-\xff]*\"))?" % (_TOKEN, _TOKEN)
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})(?:%b)*\r\n" % _EXTENSION)
_TRAILER = re.compile(rb"%b:[\t -~\x80-\xff]*\r\n" % _TOKEN)


def part_of(data: bytes, start: int, end: int) -> bytes | memoryview:
    """Returns a part of read bytes; a small one as a copy, which does not keep all alive."""
    if end - start < MIN_VIEWED_BYTES:
        return data[start:end]
    return memoryview(data)[start:end]


class SizedBody:
    """A body of a known length.

    Args:
        size: bytes, at least 1; the caller has checked it against its limit.

    Attributes:
        content: the body, once it is complete.
        held_bytes: memory that it takes, whole pages of the system: it lies anywhere in the first.
        received_bytes: those that are here.
        work_us: of memory that `feed` filled for the first time.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self.content = memoryview(b"")
        self.held_bytes = self.received_bytes = self.work_us = self._in_page = self._counted = 0
        self._grow(min(size, _FIRST_BYTES // _GROWTH))

    @property
    def complete(self) -> bool:
        """True once the whole body has arrived."""
        return self.received_bytes == self._size

    @property
    def missing_bytes(self) -> int:
        """Those that have not arrived."""
        return self._size - self.received_bytes

    def room(self, at_most: int) -> memoryview:
        """Returns the buffer for the next bytes; call `received` with their number."""
        start = self.received_bytes
        if start == len(self.content):
            self._grow(start)
        return self.content[start : start + at_most]

    def room_there(self, at_most: int) -> memoryview:
        """The part of it that has its memory; perhaps nothing, where more takes up to 0.5 ms."""
        start = self.received_bytes
        return self.content[start : min(start + at_most, self.held_bytes)]

    def received(self, count: int) -> int:
        """Bytes were written into `room`.

        Returns:
            Microseconds that it takes to fill memory for the first time.
        """
        self.received_bytes += count
        self._measure()
        more = self.held_bytes - self._counted
        self._counted = self.held_bytes
        is_huge = len(self.content) >= _HUGE_FROM_BYTES
        return more >> (HUGE_FILL_SHIFT if is_huge else FILL_SHIFT)

    def feed(self, data: Body, position: int) -> int:
        """Consumes its bytes from `data[position:]`; returns the position behind them."""
        taken = memoryview(data)[position : position + self._size - self.received_bytes]
        end = self.received_bytes + len(taken)
        if end > len(self.content):
            self._grow(end)
        self.content[self.received_bytes : end] = taken
        self.work_us += self.received(len(taken))
        return position + len(taken)

    def _grow(self, least: int) -> None:
        """Grows the buffer beyond `least` bytes.

        The whole of it has its memory once `_WHOLE_FROM_BYTES` are here: it is left as it is found,
        so that the system provides a page when its first byte comes. Steps up to the end would be
        slower for honest bodies: 10 MB take 3.4 ms in one piece, 4.7 ms in steps of 4 to 16 times.
        """
        before = self.content
        size = min(self._size, _GROWTH * least) if least < _WHOLE_FROM_BYTES else self._size
        room = np.empty(size, np.uint8)
        if size > _GROWTH * _WHOLE_FROM_BYTES:
            self._in_page = room.ctypes.data % PAGE_BYTES
        self.content = memoryview(room.data)
        self.content[: self.received_bytes] = before[: self.received_bytes]
        self._measure()

    def _measure(self) -> None:
        room = len(self.content)
        if room > _GROWTH * _WHOLE_FROM_BYTES:
            room = min(room, paged(self._in_page, self.received_bytes))
        self.held_bytes = room


def paged(in_page: int, size: int) -> int:
    """Returns the resident bytes of a buffer, where the system provides `PAGE_BYTES` at a time.

    Args:
        in_page: offset of the buffer in its first page.
        size: bytes written, from its beginning.
    """
    return -(-(in_page + size) // PAGE_BYTES) * PAGE_BYTES - in_page if size else 0


class ChunkedBody:
    """A body in chunks (RFC 9112, 7.1). Extensions and trailers are read and dropped."""

    def __init__(self, max_bytes: int, *, is_of_call: bool = False) -> None:
        self.content = bytearray()
        self.complete = False
        self._max_bytes = max_bytes
        self._is_of_call = is_of_call
        self._line = b""
        self._chunk_left = 0
        self._in_trailer = False
        self._trailer_left = _MAX_TRAILER_BYTES
        self._chunks = self._copied_us = 0
        self.lines = 0
        """Lines read so far; long ones count for several."""

    @property
    def work_us(self) -> int:
        """Time spent so far on lines and on moving received bytes, beside reading."""
        return LINE_US * self.lines + self._copied_us

    @property
    def received_bytes(self) -> int:
        """Those that are here."""
        return len(self.content)

    @property
    def held_bytes(self) -> int:
        """Memory of the body in bytes."""
        return self.content.__alloc__()

    def feed(self, data: bytes, position: int) -> int:
        """Consumes bytes from `data[position:]`, perhaps not all; returns the position behind them.

        Raises:
            PayloadTooLargeError: it is over the limit.
            InvalidRequestError: the chunks are malformed.
        """
        last = self.lines + _LINES_AT_ONCE
        while not self.complete and position < len(data) and self.lines < last:
            if self._chunk_left > 2:
                content = data[position : position + self._chunk_left - 2]
                room = self.content.__alloc__()
                self.content += content
                if self.content.__alloc__() != room:
                    self._copied_us += len(self.content) >> COPY_SHIFT
                self._chunk_left -= len(content)
                position += len(content)
                continue
            end = data.find(b"\n", position) + 1
            self._line += data[position : end or len(data)]
            if len(self._line) > _MAX_LINE_BYTES:
                raise InvalidRequestError(
                    f"a line between the chunks is over {_MAX_LINE_BYTES} bytes, the limit"
                )
            if not end:
                return len(data)
            position = end
            self.lines += 1 + (len(self._line) >> _LINE_SHIFT)
            line, self._line = self._line, b""
            self._read_line(line)
        return position

    def _read_line(self, line: bytes) -> None:
        if self._chunk_left:
            if line != b"\r\n":
                raise InvalidRequestError("a chunk is longer than its size says")
            self._chunk_left = 0
        elif not self._in_trailer:
            self._begin_chunk(line)
        elif line == b"\r\n":
            self.complete = True
        else:
            self._trailer_left -= len(line)
            if self._trailer_left < 0 or not _TRAILER.fullmatch(line):
                raise InvalidRequestError("the trailers after the chunks are invalid or too long")

    def _begin_chunk(self, line: bytes) -> None:
        found = _SIZE.fullmatch(line)
        if found is None:
            raise InvalidRequestError(f"{line[:40]!r} is not the size of a chunk")
        size = int(found[1], 16)
        if len(self.content) + size > self._max_bytes:
            raise too_large(self._max_bytes, is_of_call=self._is_of_call)
        self._chunks += 1
        least = _LEAST_CHUNK_BYTES * (self._chunks - 1)  # this one has nothing yet
        if self._chunks > _MANY_CHUNKS and len(self.content) < least:
            raise InvalidRequestError(
                f"the body has {self._chunks} chunks for {len(self.content)} bytes; beyond "
                f"{_MANY_CHUNKS}, chunks must have {_LEAST_CHUNK_BYTES} bytes on average"
            )
        self._in_trailer = size == 0
        self._chunk_left = size + 2 if size else 0


def too_large(max_bytes: int, *, is_of_call: bool = False) -> PayloadTooLargeError:
    """Returns the error of a body over the limit, compressed or not.

    Args:
        max_bytes: the limit.
        is_of_call: True if it is the path's or call's own, and no setting raises it.
    """
    if is_of_call or max_bytes <= SMALL_BODY_BYTES:
        words = "the limit of what this path or call reads; send less"
    else:
        words = "the limit (max_request_bytes; of a training service max_bundle_bytes); send less"
    return PayloadTooLargeError(f"the body is over {max_bytes} bytes, {words}")
