"""Calls: messages cut anywhere, compressed or not; one status each."""

import gzip
import itertools
import zlib
from functools import partial
from urllib.parse import unquote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.errors import ModelNotReadyError, RateLimitedError, ServingError
from services.wire.body import Body
from services.wire.http2.connection import MAX_CALLS
from services.wire.http2.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    MAX_FRAME_BYTES,
    PADDED,
    PING,
    Fault,
    frame,
    reset,
)
from services.wire.http2.grpc_call import Call, UnaryCall
from services.wire.http2.grpc_head import GrpcHead
from services.wire.http2.simple_call import SimpleCall
from tests.unit.wire.http2_wire import (
    GREETING,
    Answer,
    Client,
    EchoAll,
    Service,
    Wire,
    begin,
    block,
    call,
    make_port,
    message,
    read_frames,
    wire,
)
from tests.unit.wire.http_wire import MAX_REQUEST_BYTES, on_loop, settle

INVALID_ARGUMENT, RESOURCE_EXHAUSTED = 3, 8
TRAILERS = block([("x-checksum", "1")])


async def answered(w: Wire, stream: int) -> Answer:
    """Returns a call's response; waits for threads."""
    while not w.answers().get(stream, Answer()).ended:
        await settle()
    return w.answers()[stream]


# Cut anywhere.

CONTENTS = st.one_of(st.binary(max_size=50), st.just(b"x" * 40_000))


@st.composite
def calls(draw: st.DrawFn) -> tuple[list[bytes], list[bytes], bool]:
    """Draws a call's frames without stream number, its expected response, and its kind."""
    many = draw(st.booleans())
    contents = draw(st.lists(CONTENTS, min_size=0 if many else 1, max_size=4 if many else 1))
    encoded = draw(st.booleans())
    stream = b"".join(
        message(gzip.compress(content, mtime=0), 1)
        if encoded and draw(st.booleans())
        else message(content)
        for content in contents
    )
    cuts = sorted({draw(st.integers(0, len(stream))) for _ in range(draw(st.integers(0, 6)))})
    edges, most = [0, *cuts, len(stream)], draw(st.sampled_from([16_000, MAX_FRAME_BYTES - 8]))
    pieces = [
        stream[start:end][at : at + most]
        for start, end in itertools.pairwise(edges)
        for at in range(0, max(1, end - start), most)
    ]
    return pieces, contents, many


def frames_of(pieces: list[bytes], stream: int, style: str) -> list[bytes]:
    """DATA of these pieces, ended by the last, by an empty one, or by trailers."""
    padded = [b"\x07" + piece + b"\x00" * 7 for piece in pieces]
    if style == "padded":
        found = [frame(DATA, PADDED, stream, piece) for piece in padded]
    else:
        found = [frame(DATA, 0, stream, piece) for piece in pieces]
    if style == "trailers":
        return [*found, frame(HEADERS, END_HEADERS | END_STREAM, stream, TRAILERS)]
    if style == "last":
        return [*found[:-1], frame(DATA, END_STREAM, stream, pieces[-1])]
    return [*found, frame(DATA, END_STREAM, stream)]


@settings(max_examples=150)
@given(st.data(), st.lists(calls(), min_size=1, max_size=5))
def test_calls_cut_anywhere(
    data: st.DataObject, asked: list[tuple[list[bytes], list[bytes], bool]]
) -> None:
    """Whichever way frames of several calls are mixed, and bytes of frames are cut."""
    lines = []
    for index, (pieces, _, many) in enumerate(asked):
        stream = 2 * index + 1
        head = begin(stream, "/t/All" if many else "/t/Echo", grpc_encoding="gzip")
        style = data.draw(st.sampled_from(["last", "padded", "trailers", "empty"]))
        lines.append([head, *frames_of(pieces, stream, style)])
    sent = [line.pop(0) for line in lines]  # streams begin in order
    while lines := [line for line in lines if line]:
        sent.append(data.draw(st.sampled_from(lines)).pop(0))
    whole = GREETING + b"".join(sent)
    cuts = data.draw(st.lists(st.integers(0, len(whole)), max_size=12))

    async def test() -> None:
        w = wire(greeting=b"")
        w.connection.sending.widen(2**30)
        w.connection.sending.take_settings(2**30, None)
        for start, end in itertools.pairwise([0, *sorted(cuts), len(whole)]):
            w.send(whole[start:end])
        await settle()
        for index, (_, contents, _) in enumerate(asked):
            answer = w.answers()[2 * index + 1]
            assert (answer.status, answer.reset) == (0, None)
            assert answer.messages == contents
        assert w.connection.unfinished_bytes == 0

    on_loop(test)


async def test_last_piece_that_looks_like_a_message() -> None:
    w = wire()
    content = b"ab" + message(b"x")
    w.send(begin(1) + frame(DATA, 0, 1, message(content)[:7]))
    w.send(frame(DATA, END_STREAM, 1, message(b"x")))
    assert w.answers()[1].messages == [content]


async def test_one_byte_at_a_time() -> None:
    w = wire(greeting=b"")
    for byte in (
        GREETING
        + call(1)
        + call(3, b"")
        + begin(5, "/t/All")
        + frame(DATA, END_STREAM, 5, message(b"a") + message(b"b"))
    ):
        w.send(bytes((byte,)))
    assert [a.messages for a in w.answers().values()] == [[b"hello"], [b""], [b"a", b"b"]]


# One message in, one out.


@pytest.mark.parametrize(
    ("sent", "status", "words"),
    [
        (frame(DATA, END_STREAM, 1), INVALID_ARGUMENT, "has no message"),
        (frame(HEADERS, END_HEADERS | END_STREAM, 1, TRAILERS), INVALID_ARGUMENT, "no message"),
        (frame(DATA, END_STREAM, 1, message(b"a") * 2), INVALID_ARGUMENT, "a second message"),
        (frame(DATA, 0, 1, message(b"a") * 3), INVALID_ARGUMENT, "a second message"),
        (frame(DATA, END_STREAM, 1, message(b"abc")[:-1]), INVALID_ARGUMENT, "within a message"),
        (frame(DATA, END_STREAM, 1, b"\x00\x00"), INVALID_ARGUMENT, "within a message"),
        (frame(DATA, END_STREAM, 1, message(b"a") + b"\x00"), INVALID_ARGUMENT, "within a mess"),
        (frame(DATA, 0, 1, message(b"a", 1)), INVALID_ARGUMENT, "does not say how"),
        (frame(DATA, END_STREAM, 1, message(b"a", 2)), INVALID_ARGUMENT, "does not say how"),
        (frame(DATA, 0, 1, b"\x00" + (MAX_REQUEST_BYTES + 1).to_bytes(4, "big")),
         RESOURCE_EXHAUSTED, f"over {MAX_REQUEST_BYTES} bytes"),
        (frame(DATA, END_STREAM, 1, b"\x00\xff\xff\xff\xffab"), RESOURCE_EXHAUSTED, "over"),
    ],
)  # fmt: skip
async def test_refused_call(sent: bytes, status: int, words: str) -> None:
    service = Service()
    w = wire(service)
    w.send(begin(1) + sent)
    answer = w.answers()[1]
    assert (answer.status, answer.ended) == (status, True)
    assert words in unquote(answer.words)
    ended = any(one.flags & END_STREAM for one in read_frames(sent))
    assert answer.reset is None, "a caller that still speaks might not read its status"
    assert len(service.refused) == 1
    assert not service.abandoned
    assert w.connection.unfinished_bytes == 0
    if not ended:
        w.send(frame(DATA, END_STREAM, 1, b"what was on its way"))
    w.send(call(3))
    assert w.answers()[3].status == 0


async def test_caller_who_goes_on_after_its_status_is_told_to_stop() -> None:
    w = wire(max_request_bytes=1024)
    w.send(begin(1) + frame(DATA, 0, 1, b"\x00\x00\xff\xff\xff"))
    assert w.answers()[1].status == RESOURCE_EXHAUSTED
    assert w.answers()[1].reset is None
    w.send(frame(DATA, 0, 1, b"more"))
    assert w.answers()[1].reset == Fault.NO_ERROR
    sent = len(w.written)
    w.send(frame(DATA, 0, 1, b"and more") + frame(DATA, END_STREAM, 1, b"which was on its way"))
    assert len(w.written) == sent, "told once"


async def test_callers_who_never_end_are_told_to_stop() -> None:
    """The state kept for them is limited."""
    w = wire(max_request_bytes=1024)
    for number in range(MAX_CALLS + 1):
        w.send(begin(2 * number + 1) + frame(DATA, 0, 2 * number + 1, b"\x00\x00\xff\xff\xff"))
        await settle()
    resets = [answer.reset for answer in w.answers().values()]
    assert resets.count(Fault.NO_ERROR) == 1


@pytest.mark.parametrize("size", [1023, 1024, 1025, 16_000])
async def test_limit_holds_for_a_message_in_one_frame(size: int) -> None:
    w = wire(max_request_bytes=1024)
    w.send(call(1, b"x" * size))
    assert w.answers()[1].status == (0 if size <= 1024 else RESOURCE_EXHAUSTED)


async def test_largest_message() -> None:
    client = Client(Wire(make_port()))
    client.widen(10**6)
    stream = client.begin()
    client.widen(10**6, stream)
    client.data(stream, message(b"x" * MAX_REQUEST_BYTES), ended=True)
    client.pump()
    assert client.answers[stream].messages == [b"x" * MAX_REQUEST_BYTES]
    stream = client.call(b"x" * (MAX_REQUEST_BYTES + 1))
    assert client.answers[stream].status == RESOURCE_EXHAUSTED


async def test_call_begins_when_it_has_been_said_to_the_end() -> None:
    service = Service()
    w = wire(service)
    w.send(begin(1, "/t/Held") + frame(DATA, 0, 1, message(b"a")))
    assert not service.held
    w.send(frame(DATA, END_STREAM, 1))
    assert [one.message for one in service.held] == [b"a"]


async def test_caller_that_leaves_abandons_its_call_once() -> None:
    service = Service()
    w = wire(service)
    w.send(call(1, path="/t/Held") + begin(3) + frame(DATA, 0, 3, b"\x00\x00"))
    w.send(reset(1, Fault.CANCEL) + reset(3, Fault.CANCEL) + reset(1, Fault.CANCEL))
    assert [one.id for one in service.abandoned] == [1, 3]
    service.held[0].release()
    w.lose()
    assert [one.id for one in service.abandoned] == [1, 3]
    assert not w.answers()
    assert w.connection.unfinished_bytes == 0


async def test_peer_that_is_gone_abandons_what_it_waits_for() -> None:
    service = Service()
    w = wire(service)
    w.send(call(1) + call(3, path="/t/Held") + begin(5) + frame(DATA, 0, 5, b"\x00\x00"))
    w.lose()
    assert [one.id for one in service.abandoned] == [3, 5]
    service.held[0].release()
    assert w.connection.unfinished_bytes == 0
    assert not w.connection.port.connections


# Compressed.


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
@pytest.mark.parametrize("size", [0, 10, 150_000])
@pytest.mark.parametrize("path", ["/t/Echo", "/t/Held", "/t/All"])
async def test_compressed_message(encoding: str, size: int, path: str) -> None:
    """Small ones are undone at once, large ones in a thread; answered at once, or later."""
    service = Service()
    w = wire(service)
    w.connection.sending.widen(2**30)
    w.connection.sending.take_settings(2**30, None)
    plain = b"x" * size
    packed = gzip.compress(plain, mtime=0) if encoding == "gzip" else zlib.compress(plain)
    w.send(begin(1, path, grpc_encoding=encoding))
    w.send(frame(DATA, END_STREAM, 1, message(packed, 1)))
    while path == "/t/Held" and not service.held:
        await settle()
    for one in service.held:
        one.release()
    answer = await answered(w, 1)
    assert (answer.status, answer.messages) == (0, [plain])


async def test_many_small_compressed_messages() -> None:
    service = Service()
    w = wire(service)
    packed = gzip.compress(b"a", mtime=0)
    count = 16_000 // len(message(packed))
    w.send(begin(1, "/t/All", grpc_encoding="gzip"))
    for _ in range(4):
        w.send(frame(DATA, 0, 1, message(packed, 1) * count))
    w.send(frame(DATA, END_STREAM, 1))
    assert w.answers()[1].messages == [b"a"] * 4 * count


@pytest.mark.parametrize("at_once", [True, False])
async def test_plain_message_does_not_overtake_one_in_a_thread(at_once: bool) -> None:
    service = Service()
    w = wire(service)
    large = gzip.compress(b"x" * 150_000, mtime=0)
    w.connection.sending.widen(2**30)
    w.connection.sending.take_settings(2**30, None)
    w.send(begin(1, "/t/All", grpc_encoding="gzip") + frame(DATA, 0, 1, message(large, 1)))
    last = message(b"last")
    if at_once:
        w.send(frame(DATA, END_STREAM, 1, last))
    else:
        w.send(frame(DATA, 0, 1, last[:3]) + frame(DATA, END_STREAM, 1, last[3:]))
    answer = await answered(w, 1)
    assert answer.messages == [b"x" * 150_000, b"last"]


async def test_second_message_behind_one_in_a_thread() -> None:
    service = Service()
    w = wire(service)
    large = gzip.compress(b"x" * 150_000, mtime=0)
    w.send(begin(1, "/t/Held", grpc_encoding="gzip") + frame(DATA, 0, 1, message(large, 1)))
    w.send(frame(DATA, END_STREAM, 1, message(b"second")))
    assert "a second message" in unquote((await answered(w, 1)).words)
    assert not service.held


@pytest.mark.parametrize("path", ["/t/Held", "/t/All"])
@pytest.mark.parametrize("ending", ["reset", "lost"])
async def test_caller_that_leaves_while_its_message_is_in_a_thread(ending: str, path: str) -> None:
    service = Service()
    w = wire(service)
    large = gzip.compress(b"x" * 150_000, mtime=0)
    w.send(begin(1, path, grpc_encoding="gzip"))
    w.send(frame(DATA, END_STREAM, 1, message(large, 1)))
    if ending == "reset":
        w.send(reset(1, Fault.CANCEL))
    else:
        w.lose()
    while w.connection.unfinished_bytes:
        await settle()
    assert (len(service.abandoned), service.held) == (1, [])
    (left,) = service.opened
    assert left.got == []


@pytest.mark.parametrize(
    ("packed", "status", "words"),
    [
        (b"nonsense", INVALID_ARGUMENT, "not valid gzip"),
        (gzip.compress(b"abc", mtime=0)[:-1], INVALID_ARGUMENT, "is truncated"),
        (gzip.compress(b"abc", mtime=0) + b"more", INVALID_ARGUMENT, "one stream"),
        (gzip.compress(b"\0" * (MAX_REQUEST_BYTES + 1), mtime=0), RESOURCE_EXHAUSTED, "over"),
    ],
)
async def test_compressed_message_that_is_none(packed: bytes, status: int, words: str) -> None:
    service = Service()
    w = wire(service)
    w.send(begin(1, grpc_encoding="gzip") + frame(DATA, END_STREAM, 1, message(packed, 1)))
    answer = await answered(w, 1)
    assert answer.status == status
    assert words in unquote(answer.words)
    assert w.connection.unfinished_bytes == 0


# What is answered.


def failing(error: Exception) -> Service:
    """Returns a service whose calls all fail."""

    def start(_: object, __: SimpleCall) -> None:
        raise error

    class Failing(Service):
        def route(self, head: object) -> None:
            head.open = lambda *args: SimpleCall(start, *args)  # type: ignore[attr-defined]

    return Failing()


@pytest.mark.parametrize(
    ("error", "status", "words", "retry"),
    [
        (ServingError("50% of it, naïve\n"), 13, "50% of it, naïve\n", None),
        (ModelNotReadyError("loading"), 14, "loading", "1"),
        (RateLimitedError("too much", 2.5), 8, "too much", "3"),
        (ValueError("secret"), 13, "failed on this request (ValueError)", None),
        (ServingError("lone \ud800 half"), 13, "lone ? half", None),
    ],
)
async def test_error_is_told_in_words(
    error: Exception, status: int, words: str, retry: str | None
) -> None:
    w = wire(failing(error))
    w.send(call(1))
    answer = w.answers()[1]
    assert (answer.fields[":status"], answer.status, answer.ended) == ("200", status, True)
    assert words in unquote(answer.words)
    assert "secret" not in answer.words
    assert answer.words.isascii()
    assert answer.words.isprintable()
    assert answer.fields.get("retry-after") == retry
    pushback = None if retry is None else retry + "000"
    assert answer.fields.get("grpc-retry-pushback-ms") == pushback


@pytest.mark.parametrize("words", ["x" * 100_000, "\u20ac" * 100_000])
async def test_long_words_are_cut(words: str) -> None:
    w = wire(failing(ServingError(words)))
    w.send(call(1))
    told = w.answers()[1].words
    assert 1000 < len(told) <= 6 * 1024
    assert words.startswith(unquote(told))


async def test_call_has_one_status() -> None:
    service = Service()
    w = wire(service)
    w.send(call(1, path="/t/Held"))
    (held,) = service.held
    held.release()
    before = w.output
    held.release()
    held.fail(ServingError("late"))
    held.send(b"late")
    held.finish()
    assert w.output == before


async def test_messages_behind_the_end_of_a_call_are_not_taken() -> None:
    class Once(EchoAll):
        def take(self, message: Body) -> None:
            super().take(message)
            self.finish()

    class Route(Service):
        def route(self, head: GrpcHead) -> None:
            head.open = partial(Once, self)

    service = Route()
    w = wire(service)
    w.send(begin(1) + frame(DATA, END_STREAM, 1, message(b"a") + message(b"b")))
    (once,) = service.opened
    assert (once.got, w.answers()[1].messages, w.answers()[1].status) == ([b"a"], [b"a"], 0)
    assert w.connection.unfinished_bytes == 0


async def test_status_behind_messages() -> None:
    service = Service()
    w = wire(service)
    w.send(begin(1, "/t/All") + frame(DATA, 0, 1, message(b"a") + message(b"b", 7)))
    answer = w.answers()[1]
    assert (answer.messages, answer.status) == ([b"a"], INVALID_ARGUMENT)
    assert [one.flags & END_STREAM for one in w.frames(HEADERS)] == [0, END_STREAM]


async def test_stream_without_messages() -> None:
    w = wire()
    w.send(begin(1, "/t/All", END_STREAM))
    answer = w.answers()[1]
    assert (answer.status, answer.messages, answer.fields[":status"]) == (0, [], "200")


@pytest.mark.parametrize("kind", [Call, UnaryCall])
async def test_kind_of_call_must_say_what_it_does(kind: type[Call]) -> None:
    class Route(Service):
        def route(self, head: object) -> None:
            head.open = kind  # type: ignore[attr-defined]

    with pytest.raises(NotImplementedError):
        wire(Route()).send(call(1))


async def test_small_answers_of_a_turn_leave_in_one_write() -> None:
    service = Service()
    w = wire(service)
    w.send(b"".join(call(stream, b"x", "/t/Held") for stream in (1, 3, 5, 7)))
    writes = w.write_calls
    for one in service.held[:2]:
        one.release()
    assert w.write_calls == writes, "others may follow"
    await settle()
    assert w.write_calls == writes + 1
    service.held[2].release()
    w.send(frame(PING, 0, 0, bytes(8)))
    assert [one.kind for one in w.frames()[-4:]] == [HEADERS, DATA, HEADERS, PING]
    service.held[3].release()
    assert all(w.answers()[stream].status == 0 for stream in (1, 3, 5, 7)), "the last at once"
