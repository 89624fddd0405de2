"""Whatever a peer sends, nothing is raised, lost or held: random bytes, frames without sense.

Every call that began has one end: an answer, or one `abandon`.
"""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.wire.http2.frames import (
    CONTINUATION,
    DATA,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    PREFACE,
    PRIORITY,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
)
from services.wire.http2.frames import settings as settings_frame
from tests.unit.wire.http2_wire import (
    GREETING,
    Answer,
    Service,
    Wire,
    at,
    block,
    fields,
    make_port,
    message,
    wire,
)
from tests.unit.wire.http_wire import on_loop, settle

PATHS = ["/t/Echo", "/t/Held", "/t/All"]
STREAMS = st.one_of(st.sampled_from([1, 3, 5, 7, 9]), st.sampled_from([0, 2, 1001, 2**31 + 1]))
FLAGS = st.one_of(st.sampled_from([0, 1, 4, 5]), st.integers(0, 255))
BLOCKS = st.one_of(
    st.builds(
        lambda path, encoding, last: block(fields(path, grpc_encoding=encoding))[:last],
        st.sampled_from(PATHS),
        st.sampled_from(["gzip", "identity", "br"]),
        st.sampled_from([None, None, None, -1, 20]),
    ),
    st.binary(max_size=30),
)
MESSAGES = st.one_of(
    st.builds(message, st.binary(max_size=20), st.sampled_from([0, 0, 0, 1, 2])),
    st.builds(lambda a, b: message(a) + message(b)[:-1], st.binary(), st.binary()),
    st.binary(max_size=20),
    st.just(b"\x00\x7f\xff\xff\xff"),
)
NUMBERS = st.one_of(st.sampled_from([0, 1, 2**31 - 1]), st.integers(0, 100_000)).map(
    lambda number: number.to_bytes(4, "big")
)
PAYLOADS = {
    DATA: MESSAGES,
    HEADERS: BLOCKS,
    CONTINUATION: BLOCKS,
    RST_STREAM: NUMBERS,
    WINDOW_UPDATE: NUMBERS,
    PING: st.sampled_from([b"12345678", b"flambeau"]),
    PRIORITY: st.just(b"12345"),
    GOAWAY: st.just(b"12345678"),
    SETTINGS: st.dictionaries(
        st.integers(0, 7), st.sampled_from([0, 1, 100, 20_000]), max_size=3
    ).map(lambda values: settings_frame(values)[9:]),
}


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    """Draws a well-formed frame; mostly of calls."""
    kind = draw(st.one_of(st.sampled_from([HEADERS, DATA]), st.integers(0, 10)))
    payload = draw(PAYLOADS.get(kind, st.binary(max_size=10)))
    stream = draw(STREAMS)
    if kind in (SETTINGS, PING, GOAWAY) and draw(st.booleans()):
        stream = 0
    return frame(kind, draw(FLAGS), stream, payload)


async def part(w: Wire, service: Service) -> None:
    """The peer is gone: what began has ended once, and nothing is held."""
    waiting = {one.id for one in service.opened if one.is_over and one.unsent is not None}
    w.lose()
    # Who does not begin as HTTP/2 does may be answered by HTTP/1, in words.
    answers = {} if w.output.startswith(b"HTTP/1.1") else w.answers()
    abandoned = Counter(one.id for one in service.abandoned)
    assert set(abandoned.values()) <= {1}
    for one in service.opened:
        answer = answers.get(one.id, Answer())
        assert one.is_over
        assert not (answer.ended and one.id in abandoned)
        ended = answer.ended or answer.reset is not None or one.id in waiting
        assert ended or one.id in abandoned
    assert w.connection.unfinished_bytes == 0
    assert not w.connection.sending.waiting
    assert w.connection.sending.unsent_bytes == 0
    for held in service.held:
        held.release()
    await settle()
    assert w.connection.port.budget.held_bytes == 0


async def run(pieces: list[bytes], releases: list[bool]) -> None:
    """Sends it all; answers some calls in between; and is gone."""
    service = Service()
    w = wire(service, greeting=b"", max_request_bytes=1000)
    for index, piece in enumerate(pieces):
        w.send(piece)
        assert w.connection.unfinished_bytes >= 0
        if service.held and index < len(releases) and releases[index]:
            service.held.pop().release()
    await settle()
    await part(w, service)


@settings(max_examples=200)
@given(st.binary(max_size=300), st.booleans())
def test_random_bytes(noise: bytes, greeted: bool) -> None:
    on_loop(lambda: run([GREETING if greeted else PREFACE, noise], []))


@settings(max_examples=100)
@given(st.binary(max_size=100))
def test_random_bytes_without_a_preface(noise: bytes) -> None:
    on_loop(lambda: run([noise], []))


@settings(max_examples=300)
@given(st.lists(frames(), max_size=25), st.lists(st.booleans(), max_size=25))
def test_random_frames(found: list[bytes], releases: list[bool]) -> None:
    on_loop(lambda: run([GREETING, *found], releases))


@pytest.mark.parametrize("flags", [0, END_STREAM])
async def test_every_kind_on_every_stream(flags: int) -> None:
    """Each on a connection of its own, which has a call under way and one that is over."""
    for kind in (*range(12), 255):
        for stream in (0, 1, 3, 5, 2):
            await run([GREETING, *_calls(), frame(kind, flags, stream, b"\x00" * 8)], [])


def _calls() -> list[bytes]:
    head = frame(HEADERS, 4, 1, block(fields("/t/All")))
    return [head, frame(HEADERS, 5, 3, block(fields()))]


STEPS = ["release", "finish", "leave", "sweep", "pause", "settle"]


@settings(max_examples=200)
@given(st.lists(st.one_of(frames(), frames(), st.sampled_from(STEPS)), max_size=40))
def test_random_frames_while_other_things_happen(steps: list[bytes | str]) -> None:
    """Time passes, the server leaves, its calls are answered, the peer does not read."""

    async def test() -> None:
        service = Service()
        w = Wire(make_port(service, max_request_bytes=1000, receive_timeout_s=5, max_age_s=50))
        w.send(GREETING)
        seconds, paused = 0, False
        for step in steps:
            match step:
                case bytes():
                    w.send(step)
                case "release" if service.held:
                    service.held.pop().release()
                case "finish":
                    for one in service.opened:
                        one.finish()
                case "leave" if not w.lost:
                    w.connection.close_if_idle()
                case "sweep" if not w.lost:
                    seconds += 3
                    at(w, seconds)
                case "pause" if not w.is_closing():
                    paused = not paused
                    w.connection.pause_writing() if paused else w.connection.resume_writing()
                case "settle":
                    await settle()
            assert w.connection.unfinished_bytes >= 0
        await part(w, service)

    on_loop(test)
