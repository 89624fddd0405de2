"""Content-Encoding: requests are decompressed within one limit, answers compressed on demand.

zlib holds the event loop for about 10 ms a megabyte but not the interpreter's lock, so whatever is
large goes to a thread.
"""

import asyncio
import re
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import TypeVar

from services.errors import InvalidRequestError, PayloadTooLargeError, ServingError
from services.gateway.wire.http_body import Body, too_large

MIN_COMPRESSED_BYTES = 1024
"""Smaller answers cost more to compress than to send."""
INLINE_BYTES = 64 * 1024
"""What is larger, before or after, is left to a thread."""

_GZIP_OR_ZLIB = zlib.MAX_WBITS | 32
_WINDOWS = {"gzip": zlib.MAX_WBITS | 16, "deflate": zlib.MAX_WBITS}
_NEVER = re.compile(r"q=0(\.0*)?")
"""The weight by which a caller says that it cannot read an encoding."""
_MAX_ACCEPT_BYTES = 1024
"""Of a list of encodings; a longer one, whose 64 KiB would take 60 ms, is not read."""
_THREADS = 2

T = TypeVar("T")


def decompress(body: Body, encoding: str, max_bytes: int) -> bytes:
    """Undoes `gzip` or `deflate`, never producing more than the limit.

    Raises:
        PayloadTooLargeError: more would come out.
        InvalidRequestError: unknown encoding, or broken data.
    """
    if encoding not in _WINDOWS:
        raise InvalidRequestError(
            f"Content-Encoding '{encoding[:40]}' is not understood; use gzip, deflate or none"
        )
    stream = zlib.decompressobj(_GZIP_OR_ZLIB)
    try:
        data = stream.decompress(body, max_bytes + 1)
    except zlib.error as error:
        raise InvalidRequestError(f"the body is not valid {encoding} data: {error}") from error
    if len(data) > max_bytes:
        raise too_large(max_bytes)
    if not stream.eof:
        raise InvalidRequestError(f"the {encoding} data of the body ends too early")
    if stream.unused_data:
        raise InvalidRequestError(
            f"the body goes on after its {encoding} data ends; send one stream"
        )
    return data


@lru_cache(maxsize=256)
def accepted_encoding(accept_encoding: str) -> str:
    """The encoding to answer in; empty for none.

    Args:
        accept_encoding: the header's value.
    """
    if len(accept_encoding) > _MAX_ACCEPT_BYTES:
        return ""
    choices = (part.partition(";") for part in accept_encoding.lower().split(","))
    accepted = {name.strip() for name, _, q in choices if not _NEVER.fullmatch(q.strip())}
    return next((encoding for encoding in _WINDOWS if encoding in accepted), "")


def compress(parts: Sequence[bytes | memoryview], encoding: str) -> list[bytes]:
    """Compresses an answer with `gzip` or `deflate`, fast rather than small."""
    stream = zlib.compressobj(level=1, wbits=_WINDOWS[encoding])
    return [*map(stream.compress, parts), stream.flush()]


class CompressionThreads:
    """The threads for what is large; each call answers on the event loop, perhaps at once."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, "zlib")

    def decompress(
        self, body: Body, encoding: str, max_bytes: int, done: Callable[[Body | ServingError], None]
    ) -> None:
        """Runs `decompress` on a body of any size.

        Args:
            body: compressed.
            encoding: as in `decompress`.
            max_bytes: as in `decompress`.
            done: takes the plain body, or what `decompress` raised.
        """
        if len(body) <= INLINE_BYTES:
            # A small body may still be a large one in disguise: look no further than the limit.
            inline = _plain_or_error(body, encoding, min(INLINE_BYTES, max_bytes))
            if max_bytes <= INLINE_BYTES or not isinstance(inline, PayloadTooLargeError):
                done(inline)
                return
        self._run(lambda: _plain_or_error(body, encoding, max_bytes), done)

    def compress(
        self,
        parts: Sequence[bytes | memoryview],
        encoding: str,
        done: Callable[[list[bytes]], None],
    ) -> None:
        """Runs `compress` on an answer of any size."""
        if sum(map(len, parts)) <= INLINE_BYTES:
            done(compress(parts, encoding))
        else:
            self._run(lambda: compress(parts, encoding), done)

    def close(self) -> None:
        """Takes nothing more; what runs is not waited for."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _run(self, work: Callable[[], T], done: Callable[[T], None]) -> None:
        future = asyncio.get_running_loop().run_in_executor(self._threads, work)

        def ended(finished: asyncio.Future[T]) -> None:
            if not finished.cancelled():
                done(finished.result())

        future.add_done_callback(ended)


def _plain_or_error(body: Body, encoding: str, max_bytes: int) -> Body | ServingError:
    try:
        return decompress(body, encoding, max_bytes)
    except ServingError as error:
        return error
