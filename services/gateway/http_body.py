"""Bodies over HTTP: read and decompressed within one limit, compressed on demand."""

import re
import zlib

from starlette.requests import Request

from services.errors import InvalidRequestError, PayloadTooLargeError

_GZIP_OR_ZLIB = zlib.MAX_WBITS | 32
_GZIP = zlib.MAX_WBITS | 16
_NEVER = re.compile(r"q=0(\.0*)?")
"""The weight by which a caller says that it cannot read an encoding."""
MIN_COMPRESSED_BYTES = 1024
"""Smaller answers cost more to compress than to send."""


async def read_body(request: Request, max_bytes: int) -> bytes:
    """The whole body, decompressed if its Content-Encoding says so.

    Raises:
        PayloadTooLargeError: it is over the limit, before or after decompression.
        InvalidRequestError: an unknown encoding, or data that does not decompress.
    """
    declared = request.headers.get("content-length", "0")
    if declared.isdigit() and int(declared) > max_bytes:
        raise _too_large(max_bytes)
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > max_bytes:
            raise _too_large(max_bytes)
        chunks.append(chunk)
    body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    return body if encoding == "identity" else decompress(body, encoding, max_bytes)


def decompress(body: bytes, encoding: str, max_bytes: int) -> bytes:
    """Undoes `gzip` or `deflate`, never producing more than the limit.

    Raises:
        PayloadTooLargeError: more would come out.
        InvalidRequestError: unknown encoding, or broken data.
    """
    if encoding not in ("gzip", "deflate"):
        raise InvalidRequestError(
            f"Content-Encoding '{encoding[:40]}' is not understood; use gzip, deflate or none"
        )
    stream = zlib.decompressobj(_GZIP_OR_ZLIB)
    try:
        data = stream.decompress(body, max_bytes + 1)
    except zlib.error as error:
        raise InvalidRequestError(f"the body is not valid {encoding} data: {error}") from error
    if len(data) > max_bytes:
        raise _too_large(max_bytes)
    if not stream.eof:
        raise InvalidRequestError(f"the {encoding} data of the body ends too early")
    if stream.unused_data:
        raise InvalidRequestError(
            f"the body goes on after its {encoding} data ends; send one stream"
        )
    return data


def compress(content: bytes, accept_encoding: str) -> tuple[bytes, str | None]:
    """Compresses an answer if the caller accepts it and it is worth it.

    Returns:
        The bytes to send, and the Content-Encoding or None.
    """
    choices = (part.partition(";") for part in accept_encoding.lower().split(","))
    accepted = {name.strip() for name, _, q in choices if not _NEVER.fullmatch(q.strip())}
    for encoding, window in (("gzip", _GZIP), ("deflate", zlib.MAX_WBITS)):
        if encoding in accepted and len(content) >= MIN_COMPRESSED_BYTES:
            stream = zlib.compressobj(level=1, wbits=window)
            return stream.compress(content) + stream.flush(), encoding
    return content, None


def _too_large(max_bytes: int) -> PayloadTooLargeError:
    return PayloadTooLargeError(
        f"the body is over {max_bytes} bytes, the limit (max_request_bytes); send smaller batches"
    )
