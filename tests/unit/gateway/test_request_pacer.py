"""The event loop starts a limited number of requests in each turn; the others wait."""

import asyncio
import logging
from unittest.mock import patch

import pytest

from services.errors import ServingError, TooManyInFlightError
from services.gateway import request_pacer
from services.gateway.request_pacer import BEGUN_A_TURN, COUNTED_BYTES, RequestPacer
from services.wire.body import Body


class Clock:
    """Stands in for `time`."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


class Request:
    """Notes what is done with it."""

    def __init__(self, number: int, log: list[tuple[int, str]]) -> None:
        self.number = number
        self.is_over = self.fails = False
        self.received_at = 0.0
        self.has_waited = False
        self.error: ServingError | None = None
        self._log = log

    @property
    def has_begun(self) -> bool:
        return self.received_at > 0

    def begin_in_turn(self, body: Body, received_at: float) -> None:
        assert bytes(body).rstrip() == b"%d" % self.number
        self.received_at = received_at
        self._log.append((self.number, "begun"))
        if self.fails:
            raise RuntimeError("a fault of this request")

    def refuse(self, error: ServingError) -> None:
        self.error = error
        self._log.append((self.number, "refused"))


class Place:
    """A share with requests that are numbered as they arrive."""

    def __init__(self) -> None:
        self.share, self.log = RequestPacer(), list[tuple[int, str]]()
        self.requests: list[Request] = []

    def ask(self, count: int = 1, connection: object = "one", size: int = 0) -> list[Request]:
        asked = [Request(len(self.requests) + n, self.log) for n in range(count)]
        self.requests += asked
        for request in asked:
            self.share.begin(request, (b"%d" % request.number).ljust(size), connection)
            request.has_waited = not request.has_begun
        return asked

    def begun(self) -> list[int]:
        return [number for number, what in self.log if what == "begun"]


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_few_requests_begin_at_once() -> None:
    place = Place()
    for _ in range(5):
        place.ask(BEGUN_A_TURN // 2)
        assert place.begun() == list(range(len(place.requests)))
        await turns(2)
    assert not any(request.has_waited for request in place.requests)


async def test_small_requests_go_before_hundreds_of_large_ones() -> None:
    place = Place()
    for number in range(200):
        place.ask(size=4 * COUNTED_BYTES, connection=number)
    await turns(1)
    begun = len(place.begun())
    small = place.ask(connection="neighbour")
    await turns(2)
    assert small[0].has_begun
    assert 0 < len(place.begun()) - begun < 20


async def test_large_requests_begin_although_small_ones_never_end() -> None:
    place = Place()
    for number in range(BEGUN_A_TURN):
        place.ask(2, connection=number)
    large = place.ask(3, size=4 * COUNTED_BYTES, connection="large")
    for _ in range(8):
        for number in range(BEGUN_A_TURN):
            place.ask(connection=number)
        await turns(1)
    assert all(request.has_begun for request in large)


async def test_a_turn_begins_no_more_than_its_share_and_in_their_order() -> None:
    place = Place()
    place.ask(3 * BEGUN_A_TURN + 5)
    for turn in range(1, 4):
        assert len(place.log) == turn * BEGUN_A_TURN
        place.ask()  # while others wait, it is behind them
        await turns(1)
    await turns(3)
    assert place.begun() == list(range(3 * BEGUN_A_TURN + 8))
    assert place.requests[-1].has_waited
    await turns(2)
    place.ask()  # and once nobody waits, it need not
    assert not place.requests[-1].has_waited


async def test_a_request_is_told_when_it_came() -> None:
    clock = Clock()
    with patch.object(request_pacer, "time", clock):
        place = Place()
        place.ask(3 * BEGUN_A_TURN)
        clock.now += 0.25
        await turns(1)
        clock.now += 0.5
        await turns(1)
    assert len(place.begun()) == 3 * BEGUN_A_TURN
    assert {request.received_at for request in place.requests} == {100.0}


async def test_a_request_that_nobody_waits_for_is_passed_over() -> None:
    place = Place()
    place.ask(BEGUN_A_TURN)
    for request in place.ask(5 * BEGUN_A_TURN):
        request.is_over = True
    last = place.ask()[0]
    await turns(1)
    assert last.has_begun
    assert len(place.log) == BEGUN_A_TURN + 1


async def test_more_than_may_wait_are_refused_at_once() -> None:
    with patch.object(request_pacer, "MAX_WAITING", 3):
        place = Place()
        place.ask(BEGUN_A_TURN + 3)
        refused = place.ask()[0]
        assert isinstance(refused.error, TooManyInFlightError)
        assert "3 requests wait here to be read, 3 of this connection" in str(refused.error)
        await turns(2)
    assert place.begun() == list(range(BEGUN_A_TURN + 3))


async def test_connection_with_few_requests_is_not_refused_for_those_of_others() -> None:
    with patch.object(request_pacer, "MAX_WAITING", 4):
        place = Place()
        place.ask(BEGUN_A_TURN + 4)
        beside = place.ask(3, "other")
        assert [request.error is None for request in beside] == [True, True, False]
        assert place.ask()[0].error is not None


async def test_connections_take_turns() -> None:
    place = Place()
    place.ask(5 * BEGUN_A_TURN)
    place.ask(2, "another")
    place.ask(1, "third")
    await turns(1)
    first, others = BEGUN_A_TURN, 5 * BEGUN_A_TURN
    expected = [first, others, others + 2, first + 1, others + 1, first + 2]
    assert place.begun()[BEGUN_A_TURN:][:6] == expected


async def test_a_request_that_fails_holds_up_nobody(caplog: pytest.LogCaptureFixture) -> None:
    place = Place()
    place.ask(BEGUN_A_TURN)
    place.ask()[0].fails = True
    place.ask(2 * BEGUN_A_TURN)
    loop = asyncio.get_running_loop()
    faults: list[object] = []
    loop.set_exception_handler(lambda _, context: faults.append(context["exception"]))
    with caplog.at_level(logging.CRITICAL):
        await turns(5)
    assert place.begun() == list(range(len(place.requests)))
    assert [str(fault) for fault in faults] == ["a fault of this request"]
