"""Frames of one connection: a violation ends it, or only its call, with a clear error."""

import gzip

import pytest

from services.wire.http2 import grpc_connection
from services.wire.http2.connection import FRAMES_A_TURN
from services.wire.http2.frames import (
    ACK,
    CALL_WINDOW,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HAS_PRIORITY,
    HEAD_BYTES,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    MAX_CONCURRENT_STREAMS,
    MAX_FRAME_BYTES,
    MAX_FRAME_SIZE,
    MAX_HEADER_LIST_SIZE,
    MAX_WINDOW,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Fault,
    frame,
    read_settings,
    reset,
    settings,
    window_update,
)
from services.wire.http2.reading import MAX_HELD_BYTES
from services.wire.loop_turns import READ_BYTES_LATE, WORK_A_TURN_US
from tests.unit.wire.http2_wire import (
    GREETING,
    Client,
    Frame,
    Service,
    Wire,
    begin,
    block,
    call,
    fields,
    make_port,
    message,
    wire,
)
from tests.unit.wire.http_wire import settle

HELD = call(1, path="/t/Held")
HEAD = block(fields())
SPLIT_HEAD = frame(HEADERS, END_STREAM, 3, HEAD[:9])
"""The beginning of a call's fields."""


# The first words.


async def test_server_says_first_what_it_takes() -> None:
    w = Wire(make_port())
    w.send(PREFACE[:-1])
    assert w.output == b""
    w.send(PREFACE[-1:])
    first, window = w.frames()
    values = dict(read_settings(first.payload))
    assert first.kind == SETTINGS
    assert values[INITIAL_WINDOW_SIZE] == CALL_WINDOW
    assert {MAX_CONCURRENT_STREAMS, MAX_HEADER_LIST_SIZE} <= set(values)
    assert (window.kind, window.stream) == (WINDOW_UPDATE, 0)
    w.send(frame(SETTINGS, 0, 0))
    assert w.frames()[-1] == Frame(SETTINGS, ACK, 0, b"")


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nhost: x\r\n\r\n",
        b"POST /v2/models/digits/infer HTTP/1.1\r\n",
        b"PRI * HTTP/1.1\r\n\r\n",
    ],
)
async def test_http_1_is_told_where_it_is(sent: bytes) -> None:
    w = Wire(make_port())
    w.send(sent)
    head, _, body = w.output.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"http_port" in body
    assert b"content-length: %d" % len(body) in head
    assert w.ended
    assert w.reading
    w.send(sent)  # read, and dropped


@pytest.mark.parametrize("sent", [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", b"\x00" * 30, b"PRI x"])
async def test_other_protocols_are_left_without_a_word(sent: bytes) -> None:
    w = Wire(make_port())
    w.send(sent)
    assert (w.output, w.ended) == (b"", True)


# What ends the connection.


@pytest.mark.parametrize(
    ("sent", "fault"),
    [
        (frame(DATA, 0, 0, b"x"), Fault.PROTOCOL_ERROR),
        (frame(DATA, 0, 2, b"x"), Fault.PROTOCOL_ERROR),
        (frame(DATA, 0, 3, b"x"), Fault.PROTOCOL_ERROR),
        (frame(HEADERS, END_HEADERS, 0, HEAD), Fault.PROTOCOL_ERROR),
        (frame(HEADERS, 0, 0, HEAD), Fault.PROTOCOL_ERROR),
        (frame(HEADERS, END_HEADERS, 2, HEAD), Fault.PROTOCOL_ERROR),
        (frame(HEADERS, END_HEADERS, 3, b"\xff\xff\xff"), Fault.COMPRESSION_ERROR),
        (frame(HEADERS, END_HEADERS, 3, HEAD[:-1]), Fault.COMPRESSION_ERROR),
        (frame(HEADERS, END_HEADERS | PADDED, 3, b"\xff" + HEAD[:9]), Fault.PROTOCOL_ERROR),
        (frame(HEADERS, END_HEADERS | HAS_PRIORITY, 3, b"1234"), Fault.FRAME_SIZE_ERROR),
        (frame(PRIORITY, 0, 0, b"12345"), Fault.PROTOCOL_ERROR),
        (frame(PRIORITY, 0, 3, b"1234"), Fault.FRAME_SIZE_ERROR),
        (reset(0, Fault.CANCEL), Fault.PROTOCOL_ERROR),
        (reset(3, Fault.CANCEL), Fault.PROTOCOL_ERROR),
        (frame(RST_STREAM, 0, 1, b"123"), Fault.FRAME_SIZE_ERROR),
        (frame(SETTINGS, 0, 1), Fault.PROTOCOL_ERROR),
        (frame(SETTINGS, ACK, 0, b"123456"), Fault.FRAME_SIZE_ERROR),
        (frame(SETTINGS, 0, 0, b"12345"), Fault.FRAME_SIZE_ERROR),
        (settings({INITIAL_WINDOW_SIZE: MAX_WINDOW + 1}), Fault.FLOW_CONTROL_ERROR),
        (settings({MAX_FRAME_SIZE: 1}), Fault.PROTOCOL_ERROR),
        (frame(PUSH_PROMISE, END_HEADERS, 1, b"1234"), Fault.PROTOCOL_ERROR),
        (frame(PING, 0, 1, b"12345678"), Fault.PROTOCOL_ERROR),
        (frame(PING, 0, 0, b"1234567"), Fault.FRAME_SIZE_ERROR),
        (frame(GOAWAY, 0, 1, b"12345678"), Fault.PROTOCOL_ERROR),
        (window_update(0, 0), Fault.PROTOCOL_ERROR),
        (window_update(0, MAX_WINDOW), Fault.FLOW_CONTROL_ERROR),
        (window_update(3, 1), Fault.PROTOCOL_ERROR),
        (window_update(2, 1), Fault.PROTOCOL_ERROR),
        (frame(WINDOW_UPDATE, 0, 0, b"123"), Fault.FRAME_SIZE_ERROR),
        (frame(CONTINUATION, END_HEADERS, 1, HEAD), Fault.PROTOCOL_ERROR),
        (SPLIT_HEAD + frame(CONTINUATION, END_HEADERS, 5, HEAD[9:]), Fault.PROTOCOL_ERROR),
        (SPLIT_HEAD + frame(DATA, 0, 1, b"x"), Fault.PROTOCOL_ERROR),
        (SPLIT_HEAD + frame(PING, 0, 0, b"12345678"), Fault.PROTOCOL_ERROR),
        (SPLIT_HEAD + begin(5), Fault.PROTOCOL_ERROR),
        (SPLIT_HEAD + frame(99, 0, 0), Fault.PROTOCOL_ERROR),
        (frame(99, 0, 0, b"x" * (MAX_FRAME_BYTES + 1)), Fault.FRAME_SIZE_ERROR),
    ],
)  # fmt: skip
async def test_fault_of_the_connection(sent: bytes, fault: Fault) -> None:
    service = Service()
    w = wire(service)
    w.send(HELD)
    w.send(sent)
    told = w.last_words()
    w.send(call(7))
    assert told is not None
    assert told[0] == fault
    assert told[1], "words for whoever reads it"
    assert w.frames()[-1].kind == GOAWAY
    assert w.frames()[-1].payload[:4] == (1).to_bytes(4, "big"), "the newest call that was taken"
    assert service.abandoned == service.held
    assert w.ended
    assert w.reading, "or our words would be lost to a reset"
    before = w.output
    w.send(call(9))
    service.held[0].release()
    assert (w.output, len(service.opened)) == (before, 1)


@pytest.mark.parametrize(
    "sent", [call(1), frame(PING, 0, 0, b"12345678"), frame(SETTINGS, ACK, 0), frame(DATA, 0, 1)]
)
async def test_settings_must_come_first(sent: bytes) -> None:
    w = wire(greeting=PREFACE)
    w.send(sent)
    assert w.last_words() is not None
    assert w.last_words()[0] == Fault.PROTOCOL_ERROR  # type: ignore[index]


@pytest.mark.parametrize("payload", [b"", b"\x05abc"])
async def test_padding_beyond_the_frame(payload: bytes) -> None:
    w = wire()
    w.send(begin(1) + frame(DATA, PADDED, 1, payload))
    assert w.last_words() == (Fault.PROTOCOL_ERROR, "padding beyond the frame")


# What ends one call.


@pytest.mark.parametrize(
    ("sent", "fault"),
    [
        (frame(DATA, 0, 1, b"x"), Fault.STREAM_CLOSED),
        (frame(HEADERS, END_HEADERS | END_STREAM, 1, HEAD), Fault.STREAM_CLOSED),
        (window_update(1, 0), Fault.PROTOCOL_ERROR),
        (window_update(1, MAX_WINDOW), Fault.FLOW_CONTROL_ERROR),
    ],
)
async def test_fault_of_one_call(sent: bytes, fault: Fault) -> None:
    service = Service()
    w = wire(service)
    w.send(HELD + call(3, path="/t/Held"))
    w.send(sent)
    assert w.answers()[1].reset == fault
    assert [one.id for one in service.abandoned] == [1]
    w.send(sent)  # it is forgotten: what comes later is passed over
    for one in service.held:
        one.release()
    assert w.answers()[3].status == 0
    assert 1 not in [one.stream for one in w.frames(HEADERS, DATA)]


async def test_second_head_that_is_no_end() -> None:
    service = Service()
    w = wire(service)
    w.send(begin(1) + begin(1))
    assert w.answers()[1].reset == Fault.STREAM_CLOSED
    assert len(service.abandoned) == 1


@pytest.mark.parametrize(
    "found",
    [
        [],
        [("content-type", "application/grpc")],
        fields()[1:],
        fields()[:1] + fields()[2:],
        fields()[:2] + fields()[3:],
        [*fields()[:2], *fields()[3:], (":path", "/late")],
        [(":path", "/twice"), *fields()],
        [(":status", "200"), *fields()],
        [*fields(), ("Upper", "x")],
        [*fields(), ("", "x")],
        [*fields(), ("a b", "x")],
        [*fields(), ("connection", "close")],
        [*fields(), ("transfer-encoding", "chunked")],
        [*fields(), ("te", "gzip")],
        [*fields(), ("x", "a\r\nb")],
        [*fields(), ("x", "a\0")],
    ],
)
async def test_malformed_request_is_reset(found: list[tuple[str, str]]) -> None:
    service = Service()
    w = wire(service)
    for stream in (1, 3):
        w.send(frame(HEADERS, END_HEADERS | END_STREAM, stream, block(found)))
    w.send(call(5))
    resets = [w.answers()[stream].reset for stream in (1, 3)]
    assert resets == [Fault.PROTOCOL_ERROR] * 2
    assert (w.answers()[5].status, len(service.opened)) == (0, 1)


# What is to be borne.


@pytest.mark.parametrize(
    "sent",
    [
        frame(99, 0xFF, 0, b"whatever"),
        frame(PRIORITY, 0, 9, b"12345"),
        frame(GOAWAY, 0, 0, b"12345678words"),
        frame(PING, ACK, 0, b"flambeau"),
        frame(SETTINGS, ACK, 0),
        settings({0x9999: 1}),
        window_update(0, 5),
        window_update(1, 5),
        frame(DATA, END_STREAM, 1, b"late"),
        frame(HEADERS, END_HEADERS | END_STREAM, 1, block([("x-checksum", "1")])),
        reset(1, Fault.CANCEL),
    ],
)
async def test_what_is_borne(sent: bytes) -> None:
    """Also about a call that has its answer, for it may have been on its way."""
    w = wire()
    w.send(call(1) + sent + call(3))
    assert [answer.status for answer in w.answers().values()] == [0, 0]
    assert w.last_words() is None


async def test_ping_is_answered() -> None:
    w = wire()
    w.send(frame(PING, 0, 0, b"12345678"))
    assert w.frames()[-1] == Frame(PING, ACK, 0, b"12345678")


@pytest.mark.parametrize("padding", [b"", b"\x00" * 200])
async def test_padding_and_priority(padding: bytes) -> None:
    w = wire()
    size = bytes((len(padding),))
    head = size + b"\x80\x00\x00\x00\x10" + HEAD + padding
    w.send(frame(HEADERS, END_HEADERS | PADDED | HAS_PRIORITY, 1, head))
    w.send(frame(DATA, END_STREAM | PADDED, 1, size + message(b"hello") + padding))
    assert w.answers()[1].messages == [b"hello"]


@pytest.mark.parametrize("cut", [0, 1, 9, len(HEAD)])
async def test_fields_in_pieces(cut: int) -> None:
    """Also empty ones, which mean nothing."""
    service = Service()
    w = wire(service)
    empty = frame(CONTINUATION, 0, 1)
    w.send(frame(HEADERS, END_STREAM, 1, HEAD[:cut]) + empty)
    w.send(frame(CONTINUATION, 0, 1, HEAD[cut:]) + empty)
    assert not service.opened
    w.send(frame(CONTINUATION, END_HEADERS, 1))
    assert len(service.opened) == 1
    assert w.answers()[1].status == 3, "its end came with the first piece: it has no message"
    w.send(call(3))
    assert w.answers()[3].status == 0


async def test_reserved_bits_are_passed_over() -> None:
    w = wire()
    w.send(call(1 | 1 << 31))
    assert w.answers()[1].status == 0


async def test_numbers_of_calls_may_be_left_out_and_not_go_back() -> None:
    service = Service()
    w = wire(service)
    w.send(call(9) + call(3) + call(11))
    assert [one.id for one in service.opened] == [9, 11]
    assert w.last_words() is None


# Who reads what.


async def test_peer_that_does_not_read_is_not_read_from() -> None:
    service = Service()
    w = wire(service)
    w.connection.pause_writing()
    assert not w.reading
    w.send(call(1))
    assert not service.opened
    w.connection.resume_writing()
    await settle()
    assert w.answers()[1].status == 0


async def test_what_is_read_and_not_taken_is_bounded() -> None:
    """A turn has its limits; the rest waits here, and then in the network."""
    service = Service()
    w = wire(service)
    large = begin(1, "/t/All") + frame(DATA, 0, 1, message(b"x" * 16_000)) * 100
    sent = frame(99, 0, 3) * 600 + large
    w.send(sent)
    assert not w.reading
    taken = FRAMES_A_TURN * HEAD_BYTES
    assert len(sent) - len(w.unread) <= taken + MAX_HELD_BYTES + 64 * 1024
    await settle()
    assert (w.reading, len(service.opened)) == (True, 1)


async def test_connection_that_waits_for_its_turn_is_read_once() -> None:
    """libuv repeats a read that fills its buffer, up to 32 times in one turn of the loop."""
    service = Service()
    w = wire(service)
    w.connection.port.turns.count(WORK_A_TURN_US)
    w.send(begin(1, "/t/All") + frame(DATA, 0, 1, message(b"x" * 16_000))[:READ_BYTES_LATE])
    assert not w.reading
    await settle()
    assert (w.reading, len(service.opened)) == (True, 1)


async def test_last_words_can_be_read_by_a_peer_that_is_still_sending() -> None:
    """The system would reset the connection under them if we left bytes unread."""
    w = wire()
    w.send(frame(PRIORITY, 0, 9, b"12345") * 600 + frame(DATA, 0, 0))
    w.send(b"x" * (MAX_HELD_BYTES + 1))
    assert not w.reading
    await settle()
    assert (w.reading, w.ended) == (True, True)
    w.connection.settle_unsent()
    assert not w.connection.port.budget.held_bytes, "it would stay for as long as the peer does"


async def test_window_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_connection, "GIVE_BACK_BYTES", 20_000)
    service = Service()
    w = wire(service)
    client_bytes = message(b"x" * 10_000)
    w.send(begin(1, "/t/All") + frame(DATA, 0, 1, client_bytes))
    assert not w.frames(WINDOW_UPDATE)[1:]
    w.send(frame(DATA, PADDED, 1, b"\xff" + client_bytes + b"\x00" * 255))
    given = [(f.stream, int.from_bytes(f.payload, "big")) for f in w.frames(WINDOW_UPDATE)[1:]]
    assert given == [(0, 2 * len(client_bytes) + 256), (1, 256)], "padding, too, is no message"
    w.send(frame(DATA, 0, 1, client_bytes))
    assert len(w.frames(WINDOW_UPDATE)) == 3


async def test_window_is_widened_for_a_large_message() -> None:
    service = Service()
    w = wire(service, max_request_bytes=4 * CALL_WINDOW)
    large = message(b"x" * (2 * CALL_WINDOW))
    w.send(begin(1) + frame(DATA, 0, 1, large[:10_000]))
    (given,) = w.frames(WINDOW_UPDATE)[1:]
    size = int.from_bytes(given.payload, "big")
    assert given.stream == 1
    assert CALL_WINDOW - 10_000 + size >= len(large) - 10_000, "the rest fits the window"


async def test_settings_that_answer_the_last_call_of_a_leaving_connection() -> None:
    """Nothing may be written behind the end."""
    w = wire(greeting=PREFACE + settings({INITIAL_WINDOW_SIZE: 0}))
    w.send(call(1))
    w.connection.close_if_idle()
    w.send(settings({INITIAL_WINDOW_SIZE: 10_000}))
    assert w.answers()[1].messages == [b"hello"]
    assert w.ended


async def test_compressed_call_of_a_real_client() -> None:
    client = Client(Wire(make_port()))
    stream = client.begin(grpc_encoding="gzip")
    client.data(stream, message(gzip.compress(b"plain", mtime=0), 1), ended=True)
    client.pump()
    assert client.answers[stream].messages == [b"plain"]


def test_greeting_is_what_a_client_says() -> None:
    assert GREETING.startswith(PREFACE)
