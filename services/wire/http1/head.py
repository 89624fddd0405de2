"""The head of an HTTP/1 request: request line and headers, parsed and validated by llhttp.

In: the bytes up to and with the empty line. Out: a `Head`, which says how the body is framed, or
the `ServingError` that refuses it. Parsing is strict: any ambiguous head (both framings at once, a
length given twice, bare line ends) is refused, because a proxy in front of us may read it the
other way (RFC 9112, 11.2).
"""

from collections.abc import Mapping

import httptools
import msgspec

from services.errors import InvalidRequestError, UnsupportedError
from services.request_path import decoded_path
from services.wire.errors import HeadTooLargeError

MAX_HEAD_BYTES = 64 * 1024
"""Request line and headers together."""
MAX_HEADERS = 256
"""A head of 64 KiB has room for 8,000 empty ones, which take 6 ms."""
MAX_TARGET_BYTES = 8 * 1024
_HEAD_BYTES, _HEADER_BYTES = 1024, 144
"""Memory of the objects of a head, and of each of its headers, beside the bytes themselves: what
tracemalloc shows for heads of 2 to 247 headers, rounded up."""
_ONCE = (
    b"host",
    b"authorization",
    b"x-api-key",
    b"content-encoding",
    b"inference-header-content-length",
    b"x-request-timeout-ms",
)
"""Headers whose second occurrence would contradict the first; llhttp knows two more."""


class Head(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One request without its body."""

    method: str
    path: str
    """Without the query. Each segment is decoded; a separator that was encoded stays so."""
    raw_path: bytes
    query: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    """In the order given; names in lower case."""
    by_name: Mapping[bytes, bytes]
    """First value of each header."""
    body_bytes: int | None
    """Content-Length; 0 for no body, None for a chunked one."""
    version: str
    """`1.0` or `1.1`."""
    keep_alive: bool
    """True if the caller asks to keep the connection open after the response."""
    expects_continue: bool
    """True if the caller waits for `100 Continue` before it sends the body."""
    encoding: str
    """Content-Encoding of the body; empty for none."""
    plain: bool
    """True for HTTP/1.1 other than HEAD: the response is sent unchanged."""
    memory_bytes: int = 0
    """Memory that its bytes and objects take, rounded up."""

    def text(self, name: str) -> str | None:
        """Returns a header's value; None if it is absent.

        Args:
            name: name in lower case.
        """
        value = self.by_name.get(name.encode())
        return None if value is None else value.decode("latin-1")


NO_HEAD = Head(
    method="",
    path="",
    raw_path=b"",
    query=b"",
    headers=(),
    by_name={},
    body_bytes=0,
    version="1.1",
    keep_alive=False,
    expects_continue=False,
    encoding="",
    plain=True,
)
"""Stands for the head of a request whose head is unreadable."""


class _Collector:
    """Collects the callbacks of llhttp."""

    def __init__(self) -> None:
        self.url = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.keep_alive = False
        self.parser: httptools.HttpRequestParser | None = None

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        # A request without a body is complete here, after which llhttp has forgotten this.
        self.keep_alive = self.parser is not None and self.parser.should_keep_alive()
        self.parser = None


class HeadProbe:
    """Validates a head while it arrives, and keeps none of it: refuses other input early."""

    def __init__(self) -> None:
        self._parser = httptools.HttpRequestParser(object())
        self._lines = 0

    def feed(self, data: bytes) -> None:
        """Reads the next bytes of a head.

        Raises:
            HeadTooLargeError: it has too many headers.
            InvalidRequestError: this cannot begin a head.
        """
        self._lines += data.count(b"\n")
        check_lines(self._lines)
        _feed(self._parser, data)


def parse_head(data: bytes) -> Head:
    """Parses one head.

    Args:
        data: from the first byte of the request line to the empty line, inclusive.

    Raises:
        HeadTooLargeError: it has too many headers, or too long a URL.
        InvalidRequestError: it is not HTTP/1.0 or 1.1, or can be read in two ways.
        UnsupportedError: a transfer coding other than `chunked`.
    """
    check_lines(data.count(b"\n"))
    collector = _Collector()
    parser = collector.parser = httptools.HttpRequestParser(collector)
    _feed(parser, data)
    # llhttp also takes other protocols and versions.
    request_line = data[: data.find(b"\r\n")]
    if len(request_line) > MAX_TARGET_BYTES:
        raise HeadTooLargeError(
            f"the request line is over {MAX_TARGET_BYTES} bytes, the limit; send a shorter URL"
        )
    if not request_line.endswith((b" HTTP/1.1", b" HTTP/1.0")):
        raise InvalidRequestError(
            "the request line names no HTTP version that this server supports: HTTP/1.1"
        )
    version = request_line[-3:].decode()
    by_name = dict(reversed(collector.headers))
    _refuse_doubtful(collector.headers, by_name, version)
    path, query = _target(collector.url)
    # Without zeros before it: Python reads 4,300 digits at most.
    length = by_name.get(b"content-length", b"").strip().lstrip(b"0")
    body_bytes = None if b"transfer-encoding" in by_name else int(length or 0)
    encoding = by_name.get(b"content-encoding", b"").decode("latin-1").strip().lower()
    method = parser.get_method().decode()
    return Head(
        method=method,
        path=decoded_path(path),
        raw_path=path,
        query=query,
        headers=tuple(collector.headers),
        by_name=by_name,
        body_bytes=body_bytes,
        version=version,
        keep_alive=collector.keep_alive,
        expects_continue=(
            version == "1.1"
            and body_bytes != 0
            and by_name.get(b"expect", b"").lower() == b"100-continue"
        ),
        encoding="" if encoding == "identity" else encoding,
        plain=version == "1.1" and method != "HEAD",
        memory_bytes=_HEAD_BYTES + 2 * len(data) + _HEADER_BYTES * len(collector.headers),
    )


def check_lines(count: int) -> None:
    """Refuses a head with too many lines."""
    if count > MAX_HEADERS + 2:  # the request line, and the empty one
        raise HeadTooLargeError(f"there are over {MAX_HEADERS} headers, the limit; send fewer")


def _feed(parser: httptools.HttpRequestParser, data: bytes) -> None:
    try:
        parser.feed_data(data)
    except httptools.HttpParserUpgrade:
        pass  # An offer, which a server may ignore (RFC 9110, 7.8); the request stands.
    except httptools.HttpParserError as error:
        raise InvalidRequestError(f"this is not valid HTTP: {error}; send HTTP/1.1") from error


def _refuse_doubtful(
    headers: list[tuple[bytes, bytes]], by_name: Mapping[bytes, bytes], version: str
) -> None:
    if version == "1.1" and b"host" not in by_name:
        raise InvalidRequestError("the Host header is missing; HTTP/1.1 requires it")
    if len(by_name) != len(headers):
        names = [name for name, _ in headers]
        for name in _ONCE:
            if names.count(name) > 1:
                raise InvalidRequestError(f"the header {name.decode()} occurs twice; give one")
    coding = by_name.get(b"transfer-encoding", b"chunked")
    if coding.lower() != b"chunked":
        raise UnsupportedError(
            f"Transfer-Encoding '{coding[:40].decode('latin-1')}' is not supported; use chunked"
        )
    if version == "1.0" and b"transfer-encoding" in by_name:
        raise InvalidRequestError("HTTP/1.0 has no Transfer-Encoding; give a Content-Length")


def _target(url: bytes) -> tuple[bytes, bytes]:
    """Returns path and query of a request target, perhaps a whole URL (RFC 9112, 3.2.2)."""
    try:
        parsed = httptools.parse_url(url)
    except httptools.HttpParserInvalidURLError:
        return url, b""  # `*`, or the authority of a CONNECT: there is nothing at either
    return parsed.path or b"/", parsed.query or b""
