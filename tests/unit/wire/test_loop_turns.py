"""Turns of the event loop among connections: order, time, and amount of work."""

import asyncio
import itertools
import math
from collections.abc import Callable
from unittest.mock import patch

import pytest

from services.wire.body import ChunkedBody, SizedBody
from services.wire.http1.connection import MAX_EMPTY_BYTES, HttpConnection
from services.wire.http1.exchange import Exchange
from services.wire.loop_turns import (
    FIRST_WORK_US,
    READ_BYTES,
    READ_BYTES_LATE,
    READ_US,
    WORK_A_TURN_US,
    WORK_AT_ONCE_US,
    LoopTurns,
)
from tests.unit.wire.http_wire import (
    Wire,
    chunked,
    echo_route,
    make_port,
    on_loop,
    refused,
    request,
    said,
    settle,
    wire,
)


class Worker:
    """A connection with a given amount of work, and a part of it for each turn."""

    def __init__(self, turns: LoopTurns, log: list["Worker"], work_us: int) -> None:
        self.left_us = work_us
        self._turns, self._log = turns, log

    def take_turn(self, work_us: int) -> None:
        """Works."""
        self._log.append(self)
        self.left_us -= work_us
        self._turns.count(work_us)
        if self.left_us > 0:
            self._turns.wait(self, is_fresh=False)


async def test_a_turn_has_so_much_work_and_the_rest_goes_round() -> None:
    turns, log = LoopTurns(), list[Worker]()
    workers = [Worker(turns, log, 3 * WORK_AT_ONCE_US) for _ in range(10)]
    for worker in workers:
        turns.wait(worker, is_fresh=False)
    assert log == []
    await asyncio.sleep(0)
    a_turn = WORK_A_TURN_US // WORK_AT_ONCE_US
    assert log == workers[:a_turn]
    await settle()
    await settle()
    await settle()
    assert log == workers * 3


async def test_who_has_not_worked_goes_first_and_holds_up_the_others_for_a_turn_at_most() -> None:
    turns, log = LoopTurns(), list[Worker]()
    old = [Worker(turns, log, WORK_AT_ONCE_US) for _ in range(20)]
    for worker in old:
        turns.wait(worker, is_fresh=False)
    fresh = [Worker(turns, log, FIRST_WORK_US) for _ in range(20)]
    for worker in fresh:
        turns.wait(worker, is_fresh=True)
    await asyncio.sleep(0)
    a_turn = math.ceil(WORK_A_TURN_US / FIRST_WORK_US)
    assert log == [*fresh[:a_turn], old[0]]
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(log) == 40
    assert [worker for worker in log if worker in fresh] == fresh


async def test_of_which_little_was_read_goes_before_all_others() -> None:
    turns, log = LoopTurns(), list[Worker]()
    large = [Worker(turns, log, FIRST_WORK_US) for _ in range(100)]
    for worker in large:
        turns.wait(worker, is_fresh=True)
    small = [Worker(turns, log, FIRST_WORK_US) for _ in range(3)]
    for worker in small:
        turns.wait(worker, is_fresh=True, is_small=True)
    await asyncio.sleep(0)
    assert log[:4] == [*small, large[0]]


async def test_a_connection_that_fails_holds_up_nobody() -> None:
    class Failing(Worker):
        def take_turn(self, work_us: int) -> None:
            raise RuntimeError("a fault of ours")

    turns, log = LoopTurns(), list[Worker]()
    faults: list[object] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: faults.append(context["exception"])
    )
    turns.wait(Failing(turns, log, 1), is_fresh=False)
    turns.wait(last := Worker(turns, log, 1), is_fresh=False)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert log == [last]
    assert [str(fault) for fault in faults] == ["a fault of ours"]


FLOODS: dict[str, Callable[[int], bytes]] = {
    "requests": lambda count: request("/echo", b"x", x_request_id="a") * count,
    "large heads": lambda count: request("/echo", x="y" * 60_000) * (count // 50),
    "chunks": lambda count: chunked(b"x" * count, [1] * (count - 1)),
    "trailers": lambda count: chunked(b"", [], trailer=b"a: b\r\n" * 1000) * (count // 400),
    "large reads": lambda count: request("/echo", b"x" * 150_000) * (count // 100),
}


@pytest.mark.long
@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS)
def test_a_neighbour_is_answered_while_others_have_much_to_do(
    flood: Callable[[int], bytes],
) -> None:
    """None of 64 that send up to their limit is read to the end before the neighbour."""

    async def test() -> None:
        port = make_port(echo_route())
        hostile = [Wire(port) for _ in range(64)]
        sent = flood(2000)
        for w in hostile:
            w.send(sent)
        done = sum(len(w.output) for w in hostile)
        neighbour = Wire(port)
        neighbour.send(request("/echo", b"new"))
        for _ in range(20):
            await asyncio.sleep(0)
        assert [answer.body for answer in neighbour.answers()] == [said(b"new")]
        assert all(w.unread or not w.reading for w in hostile), "they are not read meanwhile"
        assert not any(w.closed for w in hostile)
        for _ in range(100_000):
            if all(not w.unread and w.reading for w in hostile):
                break
            await asyncio.sleep(0)
        assert sum(len(w.output) for w in hostile) > done
        assert {a.status for w in hostile for a in w.answers()} == {200}

    on_loop(test)


def test_a_turn_begins_few_of_many_pipelined_requests() -> None:
    async def test() -> None:
        w = wire()
        w.send(request("/echo", b"x", x_request_id="a") * 500)
        counts = [0]
        while counts[-1] < 500:
            counts.append(w.output.count(b"x-echo"))
            await asyncio.sleep(0)
        assert max(b - a for a, b in itertools.pairwise(counts)) <= 8
        assert w.reading

    on_loop(test)


# What no honest client does.


@pytest.mark.parametrize("end", [b"\r\n", b"\n", b"\r"])
@pytest.mark.parametrize("cut", [1, 7, 100_000])
def test_empty_lines_before_a_request_are_passed_over_and_limited(end: bytes, cut: int) -> None:
    async def test() -> None:
        w = wire()
        for _ in range(5):  # what is before one request does not count for the next one
            w.send(end * (MAX_EMPTY_BYTES // len(end)) + request(body=b"a"))
        assert [answer.body for answer in w.answers()] == [said(b"a")] * 5
        with refused(w, 400, f"over {MAX_EMPTY_BYTES} bytes of empty lines"):
            flood = end * (MAX_EMPTY_BYTES + 1)
            for at in range(0, len(flood), cut):
                w.send(flood[at : at + cut])
            await settle()

    on_loop(test)


@pytest.mark.parametrize(("size", "taken"), [(1, False), (15, False), (16, True), (1000, True)])
def test_many_chunks_must_have_some_bytes(size: int, taken: bool) -> None:
    async def test() -> None:
        w = wire()
        body = b"x" * (size * 5000 if size < 100 else 150_000)
        w.send(chunked(body, [size] * 5000))
        for _ in range(20_000):
            if w.output:
                break
            await asyncio.sleep(0)
        (answer,) = w.answers()
        assert answer.status == (200 if taken else 400)
        assert taken or b"chunks must have 16 bytes on average" in answer.body

    on_loop(test)


def test_a_few_chunks_may_have_a_byte_each() -> None:
    body = ChunkedBody(10_000)
    data = chunked(b"x" * 4000, [1] * 4000).partition(b"\r\n\r\n")[2]
    position = 0
    while not body.complete:
        position = body.feed(data, position)
    assert bytes(body.content) == b"x" * 4000


@pytest.mark.parametrize("at_once", [True, False])
def test_headers_are_limited_in_number(at_once: bool) -> None:
    def of(count: int) -> bytes:
        lines = b"".join(b"a%d:\r\n" % number for number in range(count - 1))
        return b"GET / HTTP/1.1\r\nhost: x\r\n" + lines

    async def test() -> None:
        w = wire()
        w.send(of(256) + b"\r\n")
        assert [answer.status for answer in w.answers()] == [200]
        with refused(w, 431, "over 256 headers"):
            w.send(of(300) + (b"\r\n" if at_once else b""))

    on_loop(test)


def test_a_long_url_is_refused_and_one_of_escapes_names_nothing() -> None:
    async def test() -> None:
        w = wire()
        w.send(request("/" + "%41" * 600))
        assert b"POST /%41%41" in w.answers()[0].body
        with refused(w, 431, "request line is over 8192 bytes"):
            w.send(request("/" + "a" * 9000))

    on_loop(test)


async def test_so_many_connections_are_read_in_a_turn() -> None:
    """To be read takes the loop's time, too, and nothing of it is known before."""
    port = make_port(echo_route())
    wires = [Wire(port) for _ in range(200)]
    for one in wires:
        one.send(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9000\r\n\r\n")
    while not all(one.reading for one in wires):  # noqa: ASYNC110 - a turn is what is awaited
        await asyncio.sleep(0)
    port.turns.worked_us = WORK_A_TURN_US
    for one in wires:
        one.send(b"x")
    assert not any(one.reading for one in wires)
    a_turn = WORK_A_TURN_US // READ_US
    for turns in range(1, 200 // a_turn + 1):
        await asyncio.sleep(0)
        assert sum(one.reading for one in wires) == turns * a_turn


@pytest.mark.parametrize("worked_us", [0, WORK_A_TURN_US - 1, WORK_A_TURN_US, 10**6])
async def test_a_turn_whose_work_is_done_reads_little(worked_us: int) -> None:
    port = make_port(echo_route())
    connection = HttpConnection(port)
    port.turns.worked_us = worked_us
    size = READ_BYTES if worked_us < WORK_A_TURN_US else READ_BYTES_LATE
    assert len(connection.get_buffer(-1)) == size


async def test_a_turn_whose_work_is_done_gives_no_body_more_memory() -> None:
    """The system takes up to 0.5 ms to provide some, and thousands of connections may be read."""
    body = b"0123456789abcdef" * 2**17
    port = make_port(echo_route(), max_request_bytes=len(body))
    one, sent = Wire(port), request("/echo", body)
    with (
        patch.object(SizedBody, "room", autospec=True, side_effect=SizedBody.room) as room,
        patch.object(SizedBody, "feed", autospec=True, side_effect=SizedBody.feed) as feed,
    ):
        for start in range(0, len(sent), READ_BYTES_LATE):
            while not one.reading:  # noqa: ASYNC110 - a turn is what is awaited
                await asyncio.sleep(0)
            port.turns.worked_us = WORK_A_TURN_US
            grown = room.call_count + feed.call_count
            one.send(sent[start : start + READ_BYTES_LATE])
            if start:
                assert room.call_count + feed.call_count == grown
    await settle()
    assert [answer.body for answer in one.answers()] == [said(body)]


async def test_of_small_requests_on_many_connections_a_turn_begins_so_many() -> None:
    """Requests that a read holds whole count too, unless their own work has turns."""
    port = make_port(echo_route())
    wires = [Wire(port) for _ in range(200)]

    def answered() -> int:
        return sum(one.output.count(b"x-echo") for one in wires)

    for due in (200, 400):  # its head is known the second time
        for one in wires:
            one.send(request())
        begun = answered() - (due - 200)
        while answered() < due:  # noqa: ASYNC110 - a turn is what is awaited
            await asyncio.sleep(0)
        await settle()
    assert 0 < begun <= WORK_A_TURN_US // Exchange.work_us + 1
