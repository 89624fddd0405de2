"""Messages parsed from bytes that arrive in arbitrary pieces."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flambeau.replay.errors import FramingError
from flambeau.replay.http1_messages import MAX_HEAD_BYTES, Message, MessageParser

CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
ANSWERS = (
    b"HTTP/1.1 100 Continue\r\n\r\n"
    b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\nX-A: 1\r\nx-a: 2\r\n\r\nabc"
    + CHUNKED
    + b"2\r\nde\r\n1;x=y\r\nf\r\n0\r\ntrailer: t\r\n\r\n"
    b"HTTP/1.1 204 No Content\r\n\r\n"
    b"HTTP/1.1 500 No\r\n\r\nto the end"
)


class Taken:
    """The messages of a parser, without limits."""

    def __init__(self, *, answers: bool, heads: int = 0, most_bytes: int = 2**30) -> None:
        self.found: list[Message] = []
        self.parser = MessageParser(
            answers=answers,
            begin=lambda: Message(keeps=lambda size: size <= most_bytes),
            done=self.found.append,
            has_no_body=lambda: len(self.found) < heads,
        )

    @property
    def bodies(self) -> list[bytes]:
        return [bytes(message.body) for message in self.found]


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(min(c, len(data)) for c in cuts), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


def feed_often(taken: Taken, more: bytes) -> None:
    for _ in range(2 * MAX_HEAD_BYTES // len(more)):
        taken.parser.feed(more)


@given(st.lists(st.integers(0, len(ANSWERS))))
def test_answers_arrive_in_any_pieces(cuts: list[int]) -> None:
    taken = Taken(answers=True)
    for piece in pieces(ANSWERS, cuts):
        taken.parser.feed(piece)
    assert not taken.parser.is_between
    assert taken.parser.end()
    assert taken.bodies == [b"abc", b"def", b"", b"to the end"]
    assert [message.status for message in taken.found] == [200, 200, 204, 500]
    assert taken.found[0].headers[1:] == (("x-a", "1"), ("x-a", "2"))
    assert taken.found[1].headers == (("transfer-encoding", "chunked"),), "trailers are none"


HEADS = (
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n"
    b"HTTP/1.1 404 No\r\ncontent-length: 0\r\n\r\n"
    b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nab"
)


@given(st.lists(st.integers(0, len(HEADS))))
def test_answers_to_head_have_no_body(cuts: list[int]) -> None:
    taken = Taken(answers=True, heads=2)
    for piece in pieces(HEADS, cuts):
        taken.parser.feed(piece)
    assert taken.parser.is_between
    assert taken.bodies == [b"", b"", b"ab"]


def test_requests_follow_each_other() -> None:
    taken = Taken(answers=False)
    taken.parser.feed(b"POST /a?b=c HTTP/1.1\r\ncontent-length: 2\r\n\r\nxyGET / HTTP/1.1\r\n\r\n")
    assert [(m.method, m.target, bytes(m.body)) for m in taken.found] == [
        ("POST", b"/a?b=c", b"xy"), ("GET", b"/", b""),
    ]  # fmt: skip


def test_an_answer_that_is_cut_off_is_not_whole() -> None:
    for data in (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc", CHUNKED + b"2\r\nab\r\n"):
        taken = Taken(answers=True)
        taken.parser.feed(data)
        assert not taken.parser.end()
        assert taken.found == []


def test_a_body_that_is_not_kept_is_dropped_whole() -> None:
    taken = Taken(answers=True, most_bytes=2)
    taken.parser.feed(CHUNKED + b"2\r\nab\r\n3\r\nabc\r\n1\r\nd\r\n0\r\n\r\n")
    (message,) = taken.found
    assert message.is_cut
    assert message.body == b""


@pytest.mark.parametrize(
    ("head", "more"),
    [
        (b"HTTP/1.1 200 OK\r\n", b"x: " + b"y" * 1000 + b"\r\n"),
        (b"HTTP/1.1 200 OK\r\nx: ", b"y" * 1000),
        (CHUNKED + b"1", b";x=" + b"y" * 1000),
        (CHUNKED + b"1\r\na\r\n0\r\n", b"x: " + b"y" * 1000 + b"\r\n"),
    ],
    ids=["headers", "a header", "an extension", "trailers"],
)
def test_framing_has_an_end(head: bytes, more: bytes) -> None:
    taken = Taken(answers=True)
    taken.parser.feed(head)
    with pytest.raises(FramingError, match="beside its body"):
        feed_often(taken, more)


def test_small_chunks_are_no_attack() -> None:
    taken = Taken(answers=True)
    taken.parser.feed(CHUNKED)
    for _ in range(100):
        taken.parser.feed(b"1\r\na\r\n" * 1000)
    taken.parser.feed(b"0\r\n\r\n")
    assert taken.bodies == [b"a" * 100_000]


def test_endless_headers_of_an_answer_to_head_are_refused() -> None:
    taken = Taken(answers=True, heads=1)
    with pytest.raises(FramingError, match="longer than"):
        feed_often(taken, b"x" * 1000)


@pytest.mark.parametrize(
    "data",
    [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01",
        b"nonsense\r\n\r\n",
        b"GET / HTTP/1.1\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n",
        b"CONNECT a:1 HTTP/1.1\r\n\r\n",
    ],
)
def test_what_is_no_http1_is_said_to_be_none(data: bytes) -> None:
    with pytest.raises(FramingError):
        Taken(answers=False).parser.feed(data)


@given(st.binary())
def test_any_bytes_are_parsed_or_refused(data: bytes) -> None:
    for answers in (True, False):
        taken = Taken(answers=answers)
        try:
            taken.parser.feed(data)
            taken.parser.end()
        except FramingError:
            assert taken.found == [] or data
