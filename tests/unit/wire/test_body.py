"""Bodies that arrive in arbitrary pieces; chunks are parsed as by llhttp, or more strictly."""

import itertools

import httptools
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.errors import InvalidRequestError, PayloadTooLargeError, ServingError
from services.wire.body import MIN_VIEWED_BYTES, PAGE_BYTES, ChunkedBody, SizedBody, part_of
from services.wire.http2.message_pieces import MessagePieces
from services.wire.loop_turns import WORK_A_TURN_US
from tests.unit.wire.http_wire import chunked

MAX = 10_000
HEAD = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(min(c, len(data)) for c in cuts), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


def chunks_of(body: bytes, sizes: list[int], trailer: bytes = b"") -> bytes:
    return chunked(body, sizes, trailer=trailer).partition(b"\r\n\r\n")[2]


def feed(body: ChunkedBody, pieces: list[bytes]) -> bytes:
    """Feeds pieces; returns what is left behind the end of the body."""
    for index, piece in enumerate(pieces):
        position = before = 0
        while not body.complete and (position := body.feed(piece, before)) > before:
            before = position
        if body.complete:
            return piece[position:] + b"".join(pieces[index + 1 :])
        assert position == len(piece)
    return b""


def test_only_a_large_part_is_viewed() -> None:
    data = b"head" + b"x" * MIN_VIEWED_BYTES + b"next"
    large = part_of(data, 4, len(data) - 4)
    assert isinstance(large, memoryview)
    assert large.obj is data
    assert large == b"x" * MIN_VIEWED_BYTES
    assert part_of(data, 5, len(data) - 4) == b"x" * (MIN_VIEWED_BYTES - 1)
    assert type(part_of(data, 5, len(data) - 4)) is bytes


@given(st.binary(min_size=1, max_size=300), st.lists(st.integers(0, 300)), st.binary(max_size=9))
def test_sized_body(data: bytes, cuts: list[int], tail: bytes) -> None:
    body, left = SizedBody(len(data)), b""
    for number, piece in enumerate(cut(data + tail, cuts)):
        if number % 2:  # as the transport does
            room = body.room(len(piece))
            room[:] = piece[: len(room)]
            body.received(len(room))
            left += piece[len(room) :]
        else:
            left += piece[body.feed(piece, 0) :]
    assert body.complete
    assert bytes(body.content) == data
    assert left == tail


@pytest.mark.parametrize("first", [65_383, 65_536])
def test_sized_body_is_not_moved_again_near_its_end(first: int) -> None:
    """Whatever part of the first read was the head: 256 KiB are moved at most."""
    body = SizedBody(2**20)
    body.feed(b"x" * first, 0)
    moved = 0
    while not body.complete:
        before = body.content
        body.received(len(body.room(65_536)))
        if body.content is not before:
            moved += len(before)
    assert moved <= 4 * 65_536


@pytest.mark.parametrize("received", [1, 2**20, 3 * 2**20, 2**22 + 1, 2**23])
def test_sized_body_is_charged_for_whole_pages(received: int) -> None:
    """The system provides 2 MiB at a time, of which some may lie before the body."""
    page, size = 2 * 2**20, 2**26
    body = SizedBody(size)
    while left := received - body.received_bytes:
        body.received(len(body.room(left)))
    address = np.frombuffer(body.content, np.uint8).ctypes.data
    touched = address + received - 1
    end = (touched // page + 1) * page
    assert address + body.held_bytes >= min(end, address + len(body.content))
    assert body.held_bytes <= received + page


@given(
    st.binary(max_size=300),
    st.lists(st.integers(1, 90), max_size=8),
    st.sampled_from([b"", b"x-sum: 1\r\n", b"a:\r\nb: \xff\r\n"]),
    st.lists(st.integers(0, 600), max_size=20),
    st.sampled_from([b"", b"GET / HTTP/1.1\r\n", b"\r\n"]),
)
def test_chunks_cut_anywhere(
    data: bytes, sizes: list[int], trailer: bytes, cuts: list[int], tail: bytes
) -> None:
    body = ChunkedBody(MAX)
    left = feed(body, cut(chunks_of(data, sizes, trailer) + tail, cuts))
    assert body.complete
    assert bytes(body.content) == data
    assert left == tail


BROKEN = {
    "no size": b"\r\nabc\r\n0\r\n\r\n",
    "no hexadecimal": b"g\r\nabc\r\n0\r\n\r\n",
    "prefix": b"0x3\r\nabc\r\n0\r\n\r\n",
    "sign": b"+3\r\nabc\r\n0\r\n\r\n",
    "minus": b"-1\r\nabc\r\n0\r\n\r\n",
    "underscore": b"1_0\r\n" + b"a" * 16 + b"\r\n0\r\n\r\n",
    "space before": b" 3\r\nabc\r\n0\r\n\r\n",
    "space behind": b"3 \r\nabc\r\n0\r\n\r\n",
    "bare LF": b"3\nabc\r\n0\r\n\r\n",
    "bare CR": b"3\rabc\r\n0\r\n\r\n",
    "LF in an extension": b"3;a\nabc\r\n0\r\n\r\n",
    "CR in an extension": b"3;a\rb\r\nabc\r\n0\r\n\r\n",
    "NUL in an extension": b"3;a\0\r\nabc\r\n0\r\n\r\n",
    "too long": b"3\r\nabcd\r\n0\r\n\r\n",
    "too short": b"3\r\nab\r\n0\r\n\r\n",
    "no CR behind the chunk": b"3\r\nabc\n0\r\n\r\n",
    "no end of the chunk": b"3\r\nabc0\r\n\r\n",
    "bare LF at the end": b"3\r\nabc\r\n0\r\n\n",
    "folded trailer": b"0\r\na: b\r\n c\r\n\r\n",
    "trailer without a colon": b"0\r\nab\r\n\r\n",
    "trailer without a name": b"0\r\n: b\r\n\r\n",
    "space in a trailer's name": b"0\r\na b: c\r\n\r\n",
    "size beyond 64 bits": b"fffffffffffffffff\r\nabc\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize("piecewise", [True, False])
def test_broken_chunks(data: bytes, piecewise: bool) -> None:
    pieces = [data[i : i + 1] for i in range(len(data))] if piecewise else [data]
    with pytest.raises(InvalidRequestError):
        feed(ChunkedBody(MAX), pieces)


@pytest.mark.parametrize(
    "data",
    [b"3;" + b"a" * 2000, b"0" * 2000, b"0\r\na: " + b"b" * 2000, b"0\r\n" + b"a: b\r\n" * 2000],
)
def test_lines_that_never_end(data: bytes) -> None:
    with pytest.raises(InvalidRequestError):
        feed(ChunkedBody(MAX), [data])


def test_limit_is_told_before_the_chunk_is_read() -> None:
    body = ChunkedBody(10)
    assert feed(body, [b"a\r\n0123456789\r\n"]) == b""
    with pytest.raises(PayloadTooLargeError, match="over 10 bytes"):
        body.feed(b"1\r\n", 0)
    with pytest.raises(PayloadTooLargeError):
        ChunkedBody(10).feed(b"fffffffffffffff\r\n", 0)


@pytest.mark.parametrize(
    ("is_of_call", "said"),
    [
        (True, "the limit of what this path"),
        (False, r"the limit \(max_request_bytes"),
    ],
)
def test_the_limit_that_is_told_is_the_one_in_force(is_of_call: bool, said: str) -> None:
    size = 2**23
    words = f"over {size} bytes, {said}"
    with pytest.raises(PayloadTooLargeError, match=words):
        ChunkedBody(size, is_of_call=is_of_call).feed(b"800001\r\n", 0)
    prefix = b"\0" + (size + 1).to_bytes(4, "big")
    with pytest.raises(PayloadTooLargeError, match=words):
        MessagePieces(size, is_of_call=is_of_call).add(prefix)


class Judge:
    """llhttp's own view of a chunked body."""

    def __init__(self) -> None:
        self.body, self.complete = b"", False

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        self.complete = True


ODD = [b"0", b"3", b"g", b";", b";a", b";a=b", b';a="b"', b'"', b"=", b" ", b"\t", b"\r\n", b"\n",
    b"\r", b":", b"abc", b"\0", b"\xff", b"\\", b"-", b"_"]  # fmt: skip
STREAM = b"3\r\nabc\r\nF;n=v\r\n0123456789abcde\r\n0\r\na: b\r\n\r\n"


@settings(max_examples=500)
@given(
    st.lists(
        st.tuples(st.integers(0, len(STREAM)), st.integers(0, 3), st.sampled_from(ODD)), max_size=3
    )
)
def test_nothing_llhttp_refuses_is_taken(edits: list[tuple[int, int, bytes]]) -> None:
    data = STREAM
    for position, removed, inserted in edits:
        data = data[:position] + inserted + data[position + removed :]
    body = ChunkedBody(MAX)
    try:
        left = feed(body, [data])
    except ServingError:
        return
    if body.complete:
        judge = Judge()
        parser = httptools.HttpRequestParser(judge)
        parser.feed_data(HEAD + data[: len(data) - len(left)])
        assert judge.complete
        assert judge.body == bytes(body.content)


def test_chunks_that_outgrow_their_memory_take_more_of_a_turn() -> None:
    """The received bytes are moved each time."""
    body, worked = ChunkedBody(2**24), []
    for _ in range(250):
        before_us = body.work_us
        assert feed(body, [b"%x\r\n%b\r\n" % (65_000, bytes(65_000))]) == b""
        worked.append(body.work_us - before_us)
    assert 1000 < max(worked) < 3000
    assert sorted(worked)[125] < 20, "most chunks fit in"


@pytest.mark.parametrize("size", [1, 300, 1000])
def test_a_small_body_is_never_moved(size: int) -> None:
    """Its memory is taken once: it fills that exactly."""
    body = SizedBody(size)
    memory = body.content
    assert len(memory) == size
    body.feed(b"x" * (size // 2), 0)
    body.feed(b"x" * size, 0)
    assert body.complete
    assert body.content is memory


def test_memory_that_is_filled_for_the_first_time_takes_a_turn_a_huge_page() -> None:
    """The system clears a huge page as a whole, when its first byte comes."""
    body = SizedBody(2**24)
    pages, before_us = 0, 0
    while not body.complete:
        body.feed(bytes(2**16), 0)
        pages += body.work_us - before_us >= WORK_A_TURN_US
        before_us = body.work_us
    assert pages == pytest.approx(2**24 / PAGE_BYTES, abs=1)
