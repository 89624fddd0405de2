"""Large messages: frames larger than a read, taken in pieces or read into their place."""

import gzip
import itertools
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from services.errors import ServingError
from services.wire.http2.frames import (
    DATA,
    END_STREAM,
    HEAD_BYTES,
    HEADERS,
    MAX_FRAME_BYTES,
    MAX_OTHER_FRAME_BYTES,
    Fault,
    frame,
)
from tests.unit.wire.http2_wire import Service, begin, call, message, wire
from tests.unit.wire.http_wire import on_loop, settle


@settings(max_examples=60)
@given(
    st.lists(st.integers(65_536, 700_000), min_size=1, max_size=3),
    st.sampled_from([16_384, 100_000, MAX_FRAME_BYTES]),
    st.lists(st.integers(0, 2_200_000), max_size=12),
    st.booleans(),
)
def test_large_messages_in_frames_cut_anywhere(
    sizes: list[int], most: int, cuts: list[int], compressed: bool
) -> None:
    """Frames larger than a read are taken in pieces, some of them read into their place."""
    contents = [random.Random(size).randbytes(size) for size in sizes]
    stream = b"".join(
        message(gzip.compress(content, 1, mtime=0), 1) if compressed else message(content)
        for content in contents
    )
    frames = [
        frame(DATA, END_STREAM if at + most >= len(stream) else 0, 1, stream[at : at + most])
        for at in range(0, len(stream), most)
    ]
    whole = begin(1, "/t/All", grpc_encoding="gzip") + b"".join(frames) + call(3, b"behind")

    async def test() -> None:
        service = Service()
        w = wire(service, max_request_bytes=max(sizes) + 1000)
        w.connection.sending.widen(2**30)
        w.connection.sending.take_settings(2**30, None)
        places = {0, len(whole), *(one for one in cuts if one < len(whole))}
        for start, end in itertools.pairwise(sorted(places)):
            w.send(whole[start:end])
        while not (1 in w.answers() and w.answers()[1].ended):
            await settle()
        assert service.opened[0].got == contents
        assert w.answers()[3].messages == [b"behind"]
        assert w.connection.unfinished_bytes == 0

    on_loop(test)


async def test_rest_of_a_frame_is_read_into_its_place_with_the_next_head() -> None:
    service = Service()
    w = wire(service, max_request_bytes=2**20)
    content = random.Random(1).randbytes(2**20 - 1000)
    sent = message(content)
    frames = b"".join(
        frame(DATA, 0, 1, sent[start : start + MAX_FRAME_BYTES])
        for start in range(0, len(sent), MAX_FRAME_BYTES)
    )
    here = HEAD_BYTES + MAX_FRAME_BYTES + HEAD_BYTES + 100_000
    w.send(begin(1, "/t/Held") + frames[:here])
    room = w.connection.get_buffer(-1)
    assert room.obj is not w.connection.port.read_buffer.obj
    assert len(room) == MAX_FRAME_BYTES - 100_000 + HEAD_BYTES
    w.connection.buffer_updated(0)
    w.send(frames[here:] + frame(DATA, END_STREAM, 1))
    assert service.held[0].message == content


async def test_call_that_is_over_is_read_no_further_into_its_place() -> None:
    service = Service()
    w = wire(service, max_request_bytes=2**20)
    whole = frame(DATA, END_STREAM, 1, message(bytes(2**18 - 100)))
    w.send(begin(1, "/t/Held") + whole[:100_000])
    service.opened[0].refuse(ServingError("no longer wanted"))
    assert w.connection.get_buffer(-1).obj is w.connection.port.read_buffer.obj
    w.send(whole[100_000:] + call(3, b"behind"))
    assert w.answers()[3].messages == [b"behind"]
    assert w.connection.unfinished_bytes == 0


async def test_only_data_may_be_larger_than_other_frames() -> None:
    w = wire()
    w.send(frame(HEADERS, 0, 1, bytes(MAX_OTHER_FRAME_BYTES + 1)))
    assert w.last_words() == (
        Fault.FRAME_SIZE_ERROR,
        f"a frame of {MAX_OTHER_FRAME_BYTES + 1} bytes",
    )
    w = wire()
    w.send(begin(1) + frame(DATA, 0, 1, bytes(MAX_FRAME_BYTES + 1)))
    assert w.last_words() == (Fault.FRAME_SIZE_ERROR, f"a frame of {MAX_FRAME_BYTES + 1} bytes")
