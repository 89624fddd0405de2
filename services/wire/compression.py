"""Content-Encoding: decompresses requests within one limit, compresses responses on demand.

zlib takes about 10 ms a megabyte without the interpreter lock, so large bodies are processed in a
thread, a slice at a time: between slices the budget is charged for the output, and other bodies
have their turn.

One thread serves all ports of a process. A second one starves the event loop: CPython makes a
thread release the lock only if it had it for 5 ms without a break, and two threads that pass it to
each other between calls of zlib never do. Four of them blocked the loop for 30 to 50 ms.
"""

import asyncio
import contextlib
import mmap
import re
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import TypeVar

import numpy as np

from services.errors import (
    BufferFullError,
    InvalidRequestError,
    PayloadTooLargeError,
    ServingError,
)
from services.low_priority_thread import STEPS_BELOW_LOOP, lower_priority
from services.wire.body import PAGE_BYTES, Body, paged, too_large
from services.wire.byte_budget import ByteBudget

MIN_COMPRESSED_BYTES = 1024
"""Smaller responses cost more to compress than to send."""
INFLATE_SHIFT = 8
"""Decompressing 256 plain bytes takes 1 µs."""
INLINE_BYTES = 64 * 1024
"""Larger bodies, before or after, are processed in the thread."""

_GZIP_OR_ZLIB = zlib.MAX_WBITS | 32
_WINDOWS = {"gzip": zlib.MAX_WBITS | 16, "deflate": zlib.MAX_WBITS}
_NEVER = re.compile(r"q=0(\.0*)?")
"""Weight of an encoding that a caller cannot read."""
_MAX_ACCEPT_BYTES = 1024
"""Longest list of encodings; a longer one, whose 64 KiB would take 60 ms, is ignored."""
_SLICE_BYTES = 1024 * 1024
"""Output of a slice: some 2 to 10 ms of the thread; the hop to the event loop is short."""
_INPUT_BYTES = 64 * 1024
_OUTPUT_BYTES = 64 * 1024
"""Output of one zlib call: small enough that the allocator reuses its memory for the next."""

_UNWANTED = ServingError("the caller has disconnected")
"""Outcome of an abandoned body, which is never delivered."""

T = TypeVar("T")


class Inflation:
    """The decompression of one body, never to more than the limit.

    Args:
        body: compressed.
        encoding: `gzip` or `deflate`.
        max_bytes: the limit.

    Attributes:
        size: bytes of output so far.
        is_over: True once the output is complete.

    Raises:
        InvalidRequestError: another encoding.
    """

    __slots__ = (
        "_body", "_encoding", "_in_page", "_max_bytes", "_pages", "_position", "_room", "_stream",
        "is_over", "size",
    )  # fmt: skip

    def __init__(self, body: Body, encoding: str, max_bytes: int) -> None:
        if encoding not in _WINDOWS:
            raise InvalidRequestError(
                f"Content-Encoding '{encoding[:40]}' is not supported; use gzip, deflate or none"
            )
        self._body = memoryview(body)
        self._encoding, self._max_bytes = encoding, max_bytes
        self._position = 0
        self._stream = zlib.decompressobj(_GZIP_OR_ZLIB)
        self._room = memoryview(b"")
        self._pages: mmap.mmap | None = None
        self._in_page = 0
        self.size = 0
        self.is_over = False

    def take(self) -> memoryview:
        """Returns the output and drops its own reference."""
        plain, self._room, self._body = self._room[: self.size], memoryview(b""), memoryview(b"")
        if self._pages is not None:
            start = -(-self.size // mmap.PAGESIZE) * mmap.PAGESIZE
            if start < len(self._pages):
                self._pages.madvise(mmap.MADV_DONTNEED, start)
            self._pages = None
        return plain

    @property
    def held_bytes(self) -> int:
        """Memory of the output until it is taken."""
        if self._pages is None:
            return len(self._room)
        return paged(self._in_page, self.size)

    def step(self, at_most: int) -> None:
        """Decompresses about `at_most` more bytes.

        Raises:
            PayloadTooLargeError: more than the limit came out.
            InvalidRequestError: broken data.
        """
        stream, body, enough = self._stream, self._body, self.size + at_most
        try:
            while self.size < enough and not stream.eof:
                piece: Body = stream.unconsumed_tail
                if not piece:
                    # A little at a time: zlib copies what it has not used up.
                    piece = body[self._position : self._position + _INPUT_BYTES]
                    self._position += len(piece)
                at_end = self._position == len(body)
                out = stream.decompress(piece, min(enough - self.size, _OUTPUT_BYTES))
                self._add(out)
                if at_end and not out and not stream.unconsumed_tail and not stream.eof:
                    raise InvalidRequestError(f"the {self._encoding} data of the body is truncated")
        except zlib.error as error:
            raise InvalidRequestError(
                f"the body is not valid {self._encoding} data: {error}"
            ) from error
        if self.size > self._max_bytes:
            raise too_large(self._max_bytes)
        if stream.eof:
            if stream.unused_data or self._position < len(body):
                raise InvalidRequestError(
                    f"the body continues after its {self._encoding} data ends; send one stream"
                )
            self.is_over = True

    def _add(self, out: bytes) -> None:
        """Appends output.

        The room for all that may come is taken at once and left as it is found, so that the system
        provides a page when its first byte comes, and takes all of them back at the end. Pages are
        large, for small ones take 0.6 ms a megabyte; what the last one has too much goes back.
        """
        if not out:
            return
        end = self.size + len(out)
        if end > len(self._room):
            if end <= _OUTPUT_BYTES:
                more = memoryview(bytearray(end))
            else:
                self._pages = _large_pages(max(end, self._max_bytes + _OUTPUT_BYTES + 1))
                self._in_page = np.frombuffer(self._pages, np.uint8).ctypes.data % PAGE_BYTES
                more = memoryview(self._pages)
            more[: self.size] = self._room[: self.size]
            self._room = more
        self._room[self.size : end] = out
        self.size = end


def _large_pages(size: int) -> mmap.mmap:
    """Maps memory that the system provides on write, by `PAGE_BYTES` where it can."""
    room = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # of a system without large pages
            room.madvise(mmap.MADV_HUGEPAGE)
    return room


def decompress(body: Body, encoding: str, max_bytes: int) -> memoryview:
    """Decompresses `gzip` or `deflate` at once, never to more than the limit.

    Raises:
        PayloadTooLargeError: more would come out.
        InvalidRequestError: unknown encoding, or broken data.
    """
    inflation = Inflation(body, encoding, max_bytes)
    while not inflation.is_over:
        inflation.step(max_bytes + 1)
    return inflation.take()


@lru_cache(maxsize=256)
def accepted_encoding(accept_encoding: str) -> str:
    """Returns the encoding of the response; empty for none.

    Args:
        accept_encoding: the header's value.
    """
    if len(accept_encoding) > _MAX_ACCEPT_BYTES:
        return ""
    choices = (part.partition(";") for part in accept_encoding.lower().split(","))
    accepted = {name.strip() for name, _, q in choices if not _NEVER.fullmatch(q.strip())}
    return next((encoding for encoding in _WINDOWS if encoding in accepted), "")


def compress(parts: Sequence[bytes | memoryview], encoding: str) -> list[bytes]:
    """Compresses a response with `gzip` or `deflate`, fast rather than small."""
    stream = zlib.compressobj(level=1, wbits=_WINDOWS[encoding])
    return [*map(stream.compress, parts), stream.flush()]


class _Decompression:
    """Decompresses one body in the thread, a slice at a time.

    Nothing of it refers to itself: what it holds, and whoever waits for it, is free when it ends.

    Args:
        inflation: of the body.
        budget: charged for what comes out.
        is_wanted: check between slices.
        done: takes the plain body, or why there is none.
        run: has a thread do the first, and the loop take its result to the second.
    """

    __slots__ = ("_budget", "_charged_bytes", "_done", "_inflation", "_is_wanted", "_run")

    def __init__(
        self,
        inflation: Inflation,
        budget: ByteBudget,
        is_wanted: Callable[[], bool],
        done: Callable[[Body | ServingError], None],
        run: Callable[
            [Callable[[], ServingError | None], Callable[[ServingError | None], None]], None
        ],
    ) -> None:
        self._inflation, self._budget = inflation, budget
        self._is_wanted, self._done, self._run = is_wanted, done, run
        self._charged_bytes = 0

    def go_on(self) -> None:
        """Submits the next slice to the thread."""
        self._run(self._step, self._stepped)

    def _step(self) -> ServingError | None:
        try:
            self._inflation.step(_SLICE_BYTES)
        except ServingError as error:
            return error
        except (MemoryError, OSError) as error:
            return _no_memory(error)
        return None

    def _stepped(self, error: ServingError | None) -> None:
        inflation, budget = self._inflation, self._budget
        more = inflation.held_bytes - self._charged_bytes
        try:
            if error is not None:
                raise error
            if not self._is_wanted():
                raise _UNWANTED
            budget.take(more, self._charged_bytes)
        except ServingError as refusal:
            inflation.take()
            budget.give(self._charged_bytes)
            self._done(refusal)
            return
        self._charged_bytes += more
        if inflation.is_over:
            budget.give(self._charged_bytes)
            self._done(inflation.take())
        else:
            self.go_on()


class CompressionThread:
    """Compresses and decompresses large bodies; calls back on the event loop, perhaps at once."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, "zlib", lower_priority, (STEPS_BELOW_LOOP,))

    def decompress(
        self,
        body: Body,
        encoding: str,
        max_bytes: int,
        *,
        budget: ByteBudget,
        is_wanted: Callable[[], bool],
        done: Callable[[Body | ServingError], None],
    ) -> None:
        """Decompresses a body of any size, in slices that bodies take in turns.

        Args:
            body: compressed.
            encoding: as in `decompress`.
            max_bytes: as in `decompress`.
            budget: charged for what comes out, until `done` is called.
            is_wanted: checked between slices; False stops the decompression.
            done: takes the plain body, or why there is none.
        """
        if len(body) <= INLINE_BYTES:
            # A small body may still be a large one in disguise: look no further than the limit.
            inline = _plain_or_error(body, encoding, min(INLINE_BYTES, max_bytes))
            if max_bytes <= INLINE_BYTES or not isinstance(inline, PayloadTooLargeError):
                done(inline)
                return
        try:
            inflation = Inflation(body, encoding, max_bytes)
        except ServingError as error:
            done(error)
            return
        _Decompression(inflation, budget, is_wanted, done, self._run).go_on()

    def compress(
        self,
        parts: Sequence[bytes | memoryview],
        encoding: str,
        done: Callable[[list[bytes]], None],
    ) -> None:
        """Runs `compress` on a response of any size."""
        if sum(map(len, parts)) <= INLINE_BYTES:
            done(compress(parts, encoding))
        else:
            self._run(lambda: compress(parts, encoding), done)

    def close(self) -> None:
        """Accepts no more work; does not wait for running work."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _run(self, work: Callable[[], T], done: Callable[[T], None]) -> None:
        future = asyncio.get_running_loop().run_in_executor(self._executor, work)

        def ended(finished: asyncio.Future[T]) -> None:
            if not finished.cancelled():
                done(finished.result())

        future.add_done_callback(ended)


def _plain_or_error(body: Body, encoding: str, max_bytes: int) -> Body | ServingError:
    try:
        return decompress(body, encoding, max_bytes)
    except ServingError as error:
        return error.with_traceback(None)  # it leads to the frame that will hold the error
    except (MemoryError, OSError) as error:
        return _no_memory(error)


def _no_memory(error: Exception) -> BufferFullError:
    return BufferFullError(f"the system has no memory for the decompressed body: {error}")
