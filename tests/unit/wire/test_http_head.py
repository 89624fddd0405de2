"""Request heads: parsed fields, and rejection of all that two servers could parse differently."""

import contextlib
import itertools
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.errors import InvalidRequestError, ServingError, UnsupportedError
from services.wire.http1.head import HeadProbe, parse_head


def head(*lines: str | bytes) -> bytes:
    raw = [line if isinstance(line, bytes) else line.encode() for line in lines]
    return b"\r\n".join([*raw, b"", b""])


def test_everything_a_head_says() -> None:
    found = parse_head(
        head(
            "POST /v2/models/a%20b/infer?x=1&y=%2F HTTP/1.1", "Host: h", "Content-Length: 12",
            "Accept: a", "ACCEPT: b", "X-Empty:", "Content-Encoding: GZIP",
        )
    )  # fmt: skip
    assert (found.method, found.path) == ("POST", "/v2/models/a b/infer")
    assert (found.raw_path, found.query) == (b"/v2/models/a%20b/infer", b"x=1&y=%2F")
    assert found.headers[2:4] == ((b"accept", b"a"), (b"accept", b"b"))
    assert (found.text("accept"), found.text("x-empty"), found.text("none")) == ("a", "", None)
    assert (found.body_bytes, found.encoding, found.version) == (12, "gzip", "1.1")
    assert found.keep_alive
    assert not found.expects_continue


@pytest.mark.parametrize(
    ("lines", "keep_alive"),
    [
        (["GET / HTTP/1.1", "host: x"], True),
        (["GET / HTTP/1.1", "host: x", "connection: close"], False),
        (["GET / HTTP/1.1", "host: x", "connection: Keep-Alive, Close"], False),
        (["GET / HTTP/1.0"], False),
        (["GET / HTTP/1.0", "connection: keep-alive"], True),
    ],
)
def test_keep_alive(lines: list[str], keep_alive: bool) -> None:
    assert parse_head(head(*lines)).keep_alive is keep_alive


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        ("/", "/", b""),
        ("http://host/a?b", "/a", b"b"),
        ("http://host", "/", b""),
        ("*", "*", b""),
        ("/a#b", "/a", b""),
        ("/%C3%A9%00%0D%0A", "/é\0\r\n", b""),
        ("/%ff%zz", "/\ufffd%zz", b""),
        ("//double//", "//double//", b""),
        ("/a%2Fb/%2f", "/a%2Fb/%2F", b""),
        ("/%252F/..%2F%2e", "/%2F/..%2F.", b""),
    ],
)
def test_targets(target: str, path: str, query: bytes) -> None:
    found = parse_head(head(f"GET {target} HTTP/1.1", "host: x"))
    assert (found.path, found.query) == (path, query)


def test_chunked_and_expect() -> None:
    found = parse_head(
        head("PUT / HTTP/1.1", "host: x", "Transfer-Encoding: Chunked", "Expect: 100-Continue")
    )
    assert found.body_bytes is None
    assert found.expects_continue


def test_offered_upgrade_is_ignored() -> None:
    found = parse_head(
        head(
            "POST / HTTP/1.1", "host: x", "connection: Upgrade, HTTP2-Settings", "upgrade: h2c",
            "http2-settings: AAMAAABk", "content-length: 3",
        )
    )  # fmt: skip
    assert (found.body_bytes, found.keep_alive) == (3, True)


SMUGGLED = {
    "both framings": ["content-length: 3", "transfer-encoding: chunked"],
    "both framings, turned": ["transfer-encoding: chunked", "content-length: 3"],
    "two lengths": ["content-length: 3", "content-length: 4"],
    "one length twice": ["content-length: 3", "content-length: 3"],
    "list of lengths": ["content-length: 3, 3"],
    "signed length": ["content-length: +3"],
    "negative length": ["content-length: -3"],
    "hexadecimal length": ["content-length: 0x3"],
    "empty length": ["content-length:"],
    "huge length": ["content-length: 99999999999999999999"],
    "space in a length": ["content-length: 1 2"],
    "chunked twice": ["transfer-encoding: chunked, chunked"],
    "chunked in two lines": ["transfer-encoding: chunked", "transfer-encoding: chunked"],
    "chunked not last": ["transfer-encoding: chunked, gzip"],
    "near to chunked": ["transfer-encoding: xchunked"],
    "tab before chunked": ["transfer-encoding: \x0bchunked"],
    "identity": ["transfer-encoding: identity"],
    "space before the colon": ["content-length : 3"],
    "folded line": ["x: y", " content-length: 3"],
    "folded first line": [" x: y"],
    "bare LF": [b"x: y\ncontent-length: 3"],
    "bare CR": [b"x: y\rcontent-length: 3"],
    "NUL in a value": [b"x: a\0b"],
    "NUL in a name": [b"x\0: a"],
    "no name": [": x"],
    "no colon": ["xy"],
    "host twice": ["host: y"],
    "encoding twice": ["content-encoding: gzip", "content-encoding: gzip"],
    "binary length twice": ["inference-header-content-length: 1"] * 2,
    "timeout twice": ["x-request-timeout-ms: 1"] * 2,
}


@pytest.mark.parametrize("lines", SMUGGLED.values(), ids=SMUGGLED)
@pytest.mark.parametrize("upgrade", [(), ("connection: upgrade", "upgrade: h2c")])
def test_what_can_be_read_in_two_ways_is_refused(
    lines: list[str | bytes], upgrade: tuple[str, ...]
) -> None:
    with pytest.raises((InvalidRequestError, UnsupportedError)):
        parse_head(head("POST / HTTP/1.1", "host: x", *upgrade, *lines))


@pytest.mark.parametrize(
    "line",
    [
        "GET / HTTP/2.0", "GET / HTTP/0.9", "GET /", "GET / RTSP/1.0", "GET / HTTP/1.2",
        "GET /a b HTTP/1.1", "get / HTTP/1.1", "FOO / HTTP/1.1",
        b"GET /\xc3\xa9 HTTP/1.1", "GET / HTTP/1.1 ", "",
        b"\x16\x03\x01 this is not HTTP", "GET  HTTP/1.1", "PRI * HTTP/2.0",
    ],
)  # fmt: skip
def test_what_is_no_http_is_refused(line: str | bytes) -> None:
    with pytest.raises(InvalidRequestError, match=r"HTTP/1\.1"):
        parse_head(head(line, "host: x"))


def test_other_transfer_codings_are_not_offered() -> None:
    with pytest.raises(UnsupportedError, match="gzip, chunked"):
        parse_head(head("POST / HTTP/1.1", "host: x", "transfer-encoding: gzip, chunked"))


def test_http_1_0_has_no_chunks() -> None:
    with pytest.raises(InvalidRequestError, match=r"HTTP/1\.0 has no Transfer-Encoding"):
        parse_head(head("POST / HTTP/1.0", "transfer-encoding: chunked"))


def test_host_is_needed() -> None:
    with pytest.raises(InvalidRequestError, match="Host"):
        parse_head(head("GET / HTTP/1.1"))


@given(st.binary(max_size=200))
def test_any_bytes_are_parsed_or_refused(data: bytes) -> None:
    line_end = data.find(b"\r\n\r\n")
    whole = data[: line_end + 4] if line_end >= 0 else data + b"\r\n\r\n"
    with contextlib.suppress(ServingError):
        assert parse_head(whole).version in ("1.0", "1.1")


@given(st.binary(max_size=40), st.lists(st.integers(0, 80), max_size=5))
def test_probe_refuses_no_head_that_parses(tail: bytes, cuts: list[int]) -> None:
    whole = head("POST /a HTTP/1.1", "host: x", b"x-any: " + tail.replace(b"\r\n", b""))
    try:
        parse_head(whole)
    except ServingError:
        return
    probe = HeadProbe()
    edges = [0, *sorted(cuts), len(whole) - 4]
    for start, end in itertools.pairwise(edges):
        probe.feed(whole[start : min(end, len(whole) - 4)])


def test_probe_keeps_nothing_of_a_head() -> None:
    lines = head(
        "GET / HTTP/1.1", "host: x", *(f"x-{number}: {'y' * 200}" for number in range(250))
    )
    probe = HeadProbe()
    tracemalloc.start()
    probe.feed(lines[:-4])
    kept_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept_bytes < 2000


@pytest.mark.parametrize("count", [0, 20, 250])
@pytest.mark.parametrize("value_bytes", [1, 200])
def test_memory_of_a_head_is_not_underestimated(count: int, value_bytes: int) -> None:
    fields = [f"x-{number}: {'y' * value_bytes}" for number in range(count)]
    lines = head("GET /a?b HTTP/1.1", "host: x", *fields)
    tracemalloc.start()
    parsed = [parse_head(lines) for _ in range(50)]
    taken_bytes = tracemalloc.get_traced_memory()[0] / len(parsed)
    tracemalloc.stop()
    assert taken_bytes < parsed[0].memory_bytes < 3 * taken_bytes


def test_probe_refuses_early() -> None:
    with pytest.raises(InvalidRequestError, match="not valid HTTP"):
        HeadProbe().feed(b"\x16\x03\x01\x02")
