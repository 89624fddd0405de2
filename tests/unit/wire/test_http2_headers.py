"""Header blocks: written for any reader, and interpreted by their position and time."""

import contextlib
from typing import Any

import pytest
from hpack import Decoder, Encoder
from hypothesis import given
from hypothesis import strategies as st

from services.wire.http2 import headers as http2_headers
from services.wire.http2.frames import (
    END_HEADERS,
    END_STREAM,
    HEADER_TABLE_SIZE,
    HEADERS,
    PREFACE,
    ConnectionFaultError,
    Fault,
    frame,
    settings,
)
from services.wire.http2.grpc_connection import MAX_KNOWN_BYTES
from services.wire.http2.headers import MAX_BLOCK_BYTES, HeaderBlocks
from tests.unit.wire.http2_wire import (
    GREETING,
    Service,
    begin,
    block,
    call,
    fields,
    read_block,
    wire,
)
from tests.unit.wire.http_wire import settle

NAMES = st.text(st.characters(codec="ascii", categories=["Ll", "Nd"]), min_size=1, max_size=200)
TEXTS = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=300)
INDEXED, NEW_ENTRY, TABLE_SIZE = 0x80, 0x40, 0x20
FIRST_ENTRY = 62
"""The newest field of the table, by the number that callers name it with (RFC 7541, 2.3.3)."""


# Written.


@given(st.lists(st.tuples(NAMES, TEXTS), max_size=20))
def test_written_blocks_are_read_by_others(found: list[tuple[str, str]]) -> None:
    assert read_block(Decoder(), http2_headers.write(found)) == found


@pytest.mark.parametrize("size", [0, 126, 127, 128, 254, 255, 256, 16_510, 16_511, 20_000])
def test_lengths_at_their_edges(size: int) -> None:
    found = [("name", "v" * size)]
    assert read_block(Decoder(), http2_headers.write(found)) == found


# Read.


@given(st.lists(st.lists(st.tuples(NAMES, TEXTS), max_size=10), max_size=10), st.data())
def test_blocks_of_others_are_read(
    blocks: list[list[tuple[str, str]]], data: st.DataObject
) -> None:
    """Whatever table the writer keeps; `lasts` says whether the same bytes mean the same."""
    encoder, ours = Encoder(), HeaderBlocks()
    for found in blocks:
        if data.draw(st.booleans()):
            encoder.header_table_size = data.draw(st.sampled_from([0, 100, 4096]))
        coded = encoder.encode(found, huffman=data.draw(st.booleans()))
        expected = tuple((name.encode(), value.encode()) for name, value in found)
        taken, lasts = ours.read(coded)
        assert tuple(taken) == expected
        if lasts:
            assert tuple(ours.read(coded)[0]) == expected


@given(st.binary(max_size=200))
def test_noise_is_read_or_refused(noise: bytes) -> None:
    blocks = HeaderBlocks()
    for _ in range(2):
        with contextlib.suppress(ConnectionFaultError):
            blocks.read(noise)


def test_fields_over_the_limit_are_refused() -> None:
    entry = bytes((NEW_ENTRY, 1)) + b"a" + b"\x7f\xa1\x1e" + b"v" * 4000
    HeaderBlocks().read(entry + bytes((INDEXED | FIRST_ENTRY,)) * 14)
    with pytest.raises(ConnectionFaultError, match="larger than"):
        HeaderBlocks().read(entry + bytes((INDEXED | FIRST_ENTRY,)) * (MAX_BLOCK_BYTES // 4000))


def test_block_of_nothing_but_table_sizes_is_refused() -> None:
    """Each takes more of the loop's time than a field, and counts for none."""
    HeaderBlocks().read(bytes((TABLE_SIZE, TABLE_SIZE | 10, INDEXED | 2)))
    with pytest.raises(ConnectionFaultError) as raised:
        HeaderBlocks().read(bytes((TABLE_SIZE,)) * 100)
    assert raised.value.fault == Fault.COMPRESSION_ERROR


# The same bytes again.


def entry(name: str, value: str) -> bytes:
    """Encodes a field that enters the table."""
    return b"".join(
        (bytes((NEW_ENTRY, len(name))), name.encode(), bytes((len(value),)), value.encode())
    )


def start(stream: int, coded: bytes) -> bytes:
    """Encodes a call without a message."""
    return frame(HEADERS, END_HEADERS | END_STREAM, stream, coded)


SHORT = block(fields()[:2] + fields()[3:])
"""All headers of a call except its path; without entries for the dynamic table."""
BY_NUMBER = bytes((INDEXED | FIRST_ENTRY,)) + SHORT
"""Its path is the newest field of the table."""


async def test_same_block_is_read_once() -> None:
    service = Service()
    w = wire(service)
    for stream in range(1, 20, 2):
        w.send(call(stream))
    assert len(service.heads) == 1
    assert [answer.status for answer in w.answers().values()] == [0] * 10


async def test_same_block_means_something_else_once_the_table_has_changed() -> None:
    service = Service()
    w = wire(service)
    w.send(start(1, entry(":path", "/first") + SHORT))
    w.send(start(3, BY_NUMBER) + start(5, BY_NUMBER))
    assert len(service.heads) == 2, "the second of the two was known"
    w.send(start(7, entry(":path", "/second") + SHORT))
    w.send(start(9, BY_NUMBER) + start(11, BY_NUMBER))
    paths = [call.head.path for call in service.opened]
    assert paths == ["/first"] * 3 + ["/second"] * 3


@pytest.mark.parametrize("between", [b"", start(5, bytes((TABLE_SIZE,)) + block(fields()))])
async def test_known_block_is_forgotten_with_what_it_names(between: bytes) -> None:
    service = Service()
    w = wire(service)
    w.send(start(1, entry(":path", "/first") + SHORT) + start(3, BY_NUMBER))
    # The table is emptied, and is as large as before when the block ends, or the next one.
    full = b"\x3f\xe1\x1f"
    w.send(between + start(7, (full if between else bytes((TABLE_SIZE,)) + full) + block(fields())))
    w.send(start(9, BY_NUMBER))
    assert w.last_words() == (Fault.COMPRESSION_ERROR, "Invalid table index 62")


async def test_block_that_changes_the_table_changes_it_each_time() -> None:
    service = Service()
    w = wire(service)
    first = entry(":path", "/first") + SHORT
    w.send(start(1, first) + start(3, first))
    w.send(start(5, bytes((INDEXED | FIRST_ENTRY + 1,)) + SHORT))
    assert [found.head.path for found in service.opened] == ["/first"] * 3


async def test_trailers_change_the_table_too() -> None:
    service = Service()
    w = wire(service)
    w.send(start(1, entry(":path", "/first") + SHORT) + start(3, BY_NUMBER))
    w.send(begin(5) + start(5, entry("x-checksum", "1")))
    w.send(start(7, BY_NUMBER))
    assert [found.id for found in service.opened] == [1, 3, 5], "the newest field is no path now"


async def test_known_blocks_are_bounded_and_of_usual_calls() -> None:
    service = Service()
    w = wire(service)
    stream = iter(range(1, 2000, 2))
    for number in range(300):
        w.send(call(next(stream), x_number=str(number)))
        await settle()
    budget = w.connection.port.budget
    known_bytes = budget.held_bytes
    assert 0 < known_bytes <= MAX_KNOWN_BYTES
    w.send(call(next(stream), x_request_id="1") + call(next(stream), traceparent="00-1"))
    w.send(call(next(stream), x="y" * 4100) + call(next(stream), grpc_encoding="br"))
    assert budget.held_bytes == known_bytes
    # The newest usual calls are known; few enough of them.
    known = 0
    for number in reversed(range(300)):
        count = len(service.heads)
        w.send(call(next(stream), x_number=str(number)))
        await settle()
        if len(service.heads) > count:
            break
        known += 1
    assert 1 < known < MAX_KNOWN_BYTES // 200
    # The others are read each time.
    count = len(service.heads)
    w.send(call(next(stream), x_request_id="1") + call(next(stream), x="y" * 4100))
    assert len(service.heads) == count + 2
    assert [found.head.text("x-request-id") for found in service.opened][-2:] == ["1", ""]


# Our own blocks, and the caller's table.


@pytest.mark.parametrize("path", ["/t/Echo", "/t/Web", "/nothing"])
async def test_our_first_block_gives_up_the_table(path: str) -> None:
    """A caller that says 0 takes nothing else (RFC 7541, 4.2), whatever the block answers."""
    w = wire(greeting=PREFACE + settings({HEADER_TABLE_SIZE: 0}))
    kind: dict[str, Any] = {"content_type": "text/html"} if path == "/t/Web" else {}
    for stream in (1, 3):
        w.send(call(stream, path=path, **kind))
    decoder = Decoder()
    decoder.max_allowed_table_size = 0
    first, *rest = [one.payload for one in w.frames(HEADERS)]
    assert first[:1] == http2_headers.EMPTY_TABLE
    decoder.decode(first)
    for other in rest:
        assert other[:1] != http2_headers.EMPTY_TABLE
        decoder.decode(other)


async def test_table_taken_away_before_the_trailers() -> None:
    service = Service()
    w = wire(service, GREETING)
    w.send(begin(1, "/t/All") + frame(0, 0, 1, b"\x00\x00\x00\x00\x01a"))
    w.send(settings({HEADER_TABLE_SIZE: 0}))
    w.send(frame(0, END_STREAM, 1))
    decoder = Decoder()
    first, trailers = (one.payload for one in w.frames(HEADERS))
    decoder.decode(first)
    decoder.max_allowed_table_size = 0
    assert read_block(decoder, trailers) == [("grpc-status", "0")]


async def test_table_taken_away_later_is_given_up_again() -> None:
    w = wire()
    w.send(call(1) + settings({HEADER_TABLE_SIZE: 100}) + call(3))
    firsts = [one.payload for one in w.frames(HEADERS) if not one.flags & END_STREAM]
    assert [first[:1] for first in firsts] == [http2_headers.EMPTY_TABLE] * 2
