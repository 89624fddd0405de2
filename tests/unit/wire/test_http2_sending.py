"""Scheduling of writes: the client's windows, and turns between its calls."""

import asyncio
import itertools
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.wire.http2.frames import (
    DATA,
    FIRST_FRAME_BYTES,
    FIRST_WINDOW,
    INITIAL_WINDOW_SIZE,
    MAX_FRAME_SIZE,
    MAX_WINDOW,
    SETTINGS,
    ConnectionFaultError,
    Fault,
)
from services.wire.http2.sending import (
    JOINED_BYTES,
    MAX_WRITTEN_FRAME_BYTES,
    SENT_A_TURN,
    Sending,
    Unsent,
)
from tests.unit.wire.http2_wire import (
    Client,
    Service,
    Wire,
    make_port,
    message,
    read_frames,
)
from tests.unit.wire.http_wire import on_loop, settle

END = b"the end"


@dataclass(eq=False)
class One:
    """The sending side of a call."""

    id: int
    credit: int = 0
    has_moved: bool = False
    unsent: Unsent | None = None
    drains: int = 0

    def drained(self) -> None:
        """Counts how often nothing waited any more."""
        self.drains += 1


@dataclass
class Line:
    """A record of the sent data, by call."""

    written: list[bytes | memoryview] = field(default_factory=list)
    over: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sending = Sending(self.written.append, lambda call: self.over.append(call.id))

    def sizes(self) -> list[tuple[int, int]]:
        """Stream and size of each frame of DATA."""
        data = b"".join(piece for piece in self.written if piece != END)
        return [(one.stream, len(one.payload)) for one in read_frames(data)]


def many(size: int) -> list[memoryview]:
    return [memoryview(b"x" * size)]


async def test_a_turn_of_the_loop_sends_so_many_frames() -> None:
    """However small the windows of a peer with thousands of calls are made, and how often."""
    line = Line()
    line.sending.take_settings(0, None)
    calls = [One(stream) for stream in range(1, 10 * SENT_A_TURN, 2)]
    for call in calls:
        line.sending.send(call, many(2))
    await settle()
    assert line.written == []
    line.sending.take_settings(1, None)
    line.sending.widen(1)
    assert len(line.written) == SENT_A_TURN
    for _ in range(4):
        await asyncio.sleep(0)
    assert line.sizes() == [(call.id, 1) for call in calls]


def test_what_fits_is_counted() -> None:
    line = Line()
    call, other = One(1), One(3)
    assert line.sending.fits(call, FIRST_FRAME_BYTES)
    assert not line.sending.fits(other, FIRST_FRAME_BYTES + 1), "a frame may not be larger"
    line.sending.take_settings(None, 2**20)
    assert not line.sending.fits(other, FIRST_WINDOW - FIRST_FRAME_BYTES + 1), "the connection's"
    assert line.sending.fits(other, FIRST_WINDOW - FIRST_FRAME_BYTES)
    line.sending.widen(FIRST_FRAME_BYTES + 1)
    assert not line.sending.fits(other, FIRST_FRAME_BYTES + 1), "the call's"
    assert line.sending.fits(other, FIRST_FRAME_BYTES)
    assert not line.sending.fits(other, 1)
    assert line.sending.fits(call, 1)


def test_nothing_overtakes_what_waits() -> None:
    line = Line()
    call = One(1)
    line.sending.send(call, many(FIRST_WINDOW + 1))
    line.sending.widen(100)
    assert not line.sending.fits(call, 1)


def test_calls_that_wait_take_turns() -> None:
    line = Line()
    line.sending.take_settings(0, None)
    calls = [One(1), One(3), One(5)]
    for call in calls:
        line.sending.send(call, many(20_000), END)
    assert (line.written, line.over, line.sending.waiting) == ([], [], 3)
    line.sending.take_settings(100_000, None)
    assert line.sizes() == [
        (1, 16_384), (3, 16_384), (5, 16_384), (1, 3616), (3, 3616), (5, 3616),
    ]  # fmt: skip
    assert line.over == [1, 3, 5]
    assert [call.unsent for call in calls] == [None] * 3
    assert not line.sending.waiting


def test_end_follows_the_last_byte_and_needs_no_window() -> None:
    line = Line()
    call = One(1)
    line.sending.send(call, many(FIRST_WINDOW), END)
    assert line.written[-1] == END
    assert line.over == [1]
    other = One(3)
    line.sending.send(other, many(2), END)
    line.sending.widen(1)
    assert (line.sizes()[-1], line.over) == ((3, 1), [1])
    line.sending.widen(1)
    assert (line.sizes()[-1], line.over) == ((3, 1), [1, 3])


def test_end_behind_what_waits() -> None:
    line = Line()
    call = One(1)
    line.sending.send(call, many(FIRST_WINDOW + 10))
    line.sending.send(call, [], END)
    assert line.over == []
    assert line.sending.widen_call(call, 10)
    line.sending.widen(10)
    assert line.written[-1] == END


def test_window_of_all_calls_may_shrink_below_nothing() -> None:
    """It then has to grow above 0 again before more is sent (RFC 9113, 6.9.2)."""
    line = Line()
    call = One(1)
    line.sending.send(call, many(30_000))
    line.sending.take_settings(10_000, None)
    line.sending.send(call, many(5))
    assert line.sending.widen_call(call, 20_000)
    assert sum(size for _, size in line.sizes()) == 30_000
    assert line.sending.widen_call(call, 1)
    assert line.sizes()[-1] == (1, 1)


def test_frames_are_no_larger_than_neighbours_bear() -> None:
    line = Line()
    line.sending.take_settings(MAX_WINDOW, 2**24 - 1)
    line.sending.widen(MAX_WINDOW - FIRST_WINDOW)
    line.sending.send(One(1), many(MAX_WRITTEN_FRAME_BYTES + 1), END)
    assert line.sizes() == [(1, MAX_WRITTEN_FRAME_BYTES), (1, 1)]


def test_windows_over_the_limit() -> None:
    line = Line()
    call = One(1)
    assert line.sending.widen_call(call, MAX_WINDOW - FIRST_WINDOW)
    assert not line.sending.widen_call(call, 1)
    line.sending.widen(MAX_WINDOW - FIRST_WINDOW)
    with pytest.raises(ConnectionFaultError) as raised:
        line.sending.widen(1)
    assert raised.value.fault == Fault.FLOW_CONTROL_ERROR


@pytest.mark.parametrize("window", [0, FIRST_WINDOW])
def test_call_that_is_forgotten_sends_nothing_more(window: int) -> None:
    """It waits for its own window, or for the connection's."""
    line = Line()
    line.sending.take_settings(window, None)
    calls = [One(1), One(3), One(5)]
    for call in calls:
        line.sending.send(call, many(40_000), END)
    before = len(line.written)
    line.sending.forget(calls[1])
    line.sending.forget(calls[1])
    line.sending.take_settings(MAX_WINDOW, None)
    line.sending.widen(10**6)
    assert 3 not in [stream for stream, _ in line.sizes()[before:]]
    assert line.over == [1, 5]
    assert not line.sending.waiting


class CountedCall(One):
    """A call that counts accesses to its window."""

    looks = 0

    @property
    def credit(self) -> int:
        type(self).looks += 1
        return self._credit

    @credit.setter
    def credit(self, value: int) -> None:
        self._credit = value


@pytest.mark.parametrize("which", ["connection", "own"])
def test_update_costs_as_much_as_it_lets_through(which: str) -> None:
    """A frame of 13 bytes must not have the server look through thousands of calls."""
    line = Line()
    line.sending.take_settings(0 if which == "own" else MAX_WINDOW, None)
    calls = [CountedCall(stream) for stream in range(1, 4001, 2)]
    for call in calls:
        line.sending.send(call, many(100_000))
    CountedCall.looks = 0
    for call in calls[:100]:
        if which == "own":
            line.sending.widen(1)
            line.sending.widen_call(call, 1)
        else:
            line.sending.widen(1)
    assert CountedCall.looks < 2000


def test_waiting_call_is_not_taken_for_one_whose_peer_takes_nothing() -> None:
    line = Line()
    call = One(1)
    line.sending.take_settings(0, None)
    line.sending.send(call, many(10))
    assert call.has_moved, "its time begins now"


# With a caller that checks all of it.

WINDOWS = st.integers(0, 60_000)
FRAME_SIZES = st.sampled_from([None, FIRST_FRAME_BYTES, 20_000, 2**20])


@settings(max_examples=150)
@given(
    first=st.integers(0, 100_000),
    sizes=st.lists(st.one_of(st.integers(0, 100), st.integers(0, 150_000)), min_size=1, max_size=8),
    held=st.lists(st.booleans(), min_size=8, max_size=8),
    updates=st.lists(st.tuples(st.integers(0, 9), WINDOWS, FRAME_SIZES), max_size=30),
)
def test_answers_arrive_whole_under_any_windows(
    first: int,
    sizes: list[int],
    held: list[bool],
    updates: list[tuple[int, int, int | None]],
) -> None:
    """h2 refuses every frame that its windows, as it has told them, do not allow."""

    async def test() -> None:
        service = Service()
        client = Client(Wire(make_port(service)), {INITIAL_WINDOW_SIZE: first})
        sent = {}
        for index, size in enumerate(sizes):
            content = bytes((index,)) * size
            stream = client.call(content, "/t/Held" if held[index] else "/t/Echo")
            sent[stream] = content
        await settle()
        client.pump()
        streams = list(sent)
        for target, size, frame_size in updates:
            if service.held and target % 2:
                service.held.pop().release()
            if target == 9:
                values = {INITIAL_WINDOW_SIZE: size}
                if frame_size is not None:
                    values[MAX_FRAME_SIZE] = frame_size
                client.h2.update_settings(values)
                client.pump()
            elif size:
                client.widen(size, streams[target] if target < len(streams) else 0)
            await settle()
            client.pump()
        for call in service.held:
            call.release()
        # All are let through, in the end.
        client.widen(2_000_000)
        for stream in streams:
            client.widen(1_000_000, stream)
            await settle()
            client.pump()
        for stream, content in sent.items():
            answer = client.answers[stream]
            assert (answer.status, answer.reset, answer.ended) == (0, None, True)
            assert answer.messages == [content]
        assert not client.goaways
        assert not client.wire.connection.sending.waiting
        assert client.wire.connection.sending.unsent_bytes == 0
        assert client.wire.connection.unfinished_bytes == 0

    on_loop(test)


@settings(max_examples=50)
@given(st.lists(st.lists(st.integers(0, 40_000), max_size=5), min_size=1, max_size=4))
def test_streams_of_messages_arrive_in_order(sizes: list[list[int]]) -> None:
    async def test() -> None:
        client = Client(Wire(make_port()), {INITIAL_WINDOW_SIZE: 100})
        sent: dict[int, list[bytes]] = {client.begin("/t/All"): [] for _ in sizes}
        client.widen(2_000_000)
        for row in itertools.zip_longest(*sizes):
            for stream, size in zip(sent, row, strict=True):
                if size is not None:
                    sent[stream].append(bytes((len(sent[stream]),)) * size)
                    client.data(stream, message(sent[stream][-1]))
            client.pump()
        for stream in sent:
            client.h2.end_stream(stream)
            client.pump()
            client.widen(1_000_000, stream)
        for stream, contents in sent.items():
            answer = client.answers[stream]
            assert (answer.status, answer.messages) == (0, contents)

    on_loop(test)


def test_settings_are_acknowledged_before_they_are_made_use_of() -> None:
    """A caller may count by the old ones until it hears that we go by the new."""

    async def test() -> None:
        client = Client(Wire(make_port()), {INITIAL_WINDOW_SIZE: 0})
        stream = client.call(b"x" * 1000)
        client.h2.update_settings({INITIAL_WINDOW_SIZE: 10_000})
        client.pump()
        assert client.answers[stream].messages == [b"x" * 1000]
        kinds = [one.kind for one in client.wire.frames(DATA, SETTINGS)]
        assert kinds == [SETTINGS] * 3 + [DATA] * 2

    on_loop(test)


def test_large_data_is_not_copied_behind_the_heads_of_its_frames() -> None:
    line, data = Line(), b"x" * 3 * JOINED_BYTES
    line.sending.send(One(1), [memoryview(data)], END)
    assert line.sizes() == [(1, len(data))]
    assert any(isinstance(one, memoryview) and one.obj is data for one in line.written)
