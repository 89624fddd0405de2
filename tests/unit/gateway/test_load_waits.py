"""Requests that wait for versions that made room for others."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from services.errors import ModelNotReadyError, ModelReturningError
from services.gateway.load_waits import ASKED_EVERY_S, BEGUN_A_TURN, LoadWait, ReturningWaits
from services.queueing.directory import Directory
from services.queueing.records import Lane, ServedVersion
from tests.fixtures.redis_servers import until
from tests.fixtures.signatures import one_to_one

LANE = Lane("m", 1)
AWAY = ServedVersion(lane=LANE, state="unloaded", reason="made room", comes_back=True)
READY = ServedVersion(lane=LANE, state="ready", signature=one_to_one((1,), rows=4))


class Waiting:
    """Requests that wait for one version, and what became of them."""

    def __init__(self, most: int = 100) -> None:
        self.directory = Directory()
        self.directory.announce(AWAY)
        self.directory.make_live(LANE)
        self.missed: list[Lane] = []
        self.directory.missing = lambda lane, _: self.missed.append(lane)
        self.waits = ReturningWaits(self.directory, most)
        self.begun: list[int] = []
        self.late: list[int] = []

    def add(
        self, number: int, left_s: float = 60.0, holder: object = None
    ) -> LoadWait[Lane] | None:
        def keep(found: list[int]) -> Callable[[], None]:
            return lambda: found.append(number)

        deadline = time.monotonic() + left_s
        return self.waits.add(LANE, deadline, keep(self.begun), keep(self.late), holder)


async def test_requests_begin_in_order_and_in_turns_once_their_version_is_back() -> None:
    waiting = Waiting()
    numbers = list(range(2 * BEGUN_A_TURN + 1))
    for number in numbers:
        waiting.add(number)
    waiting.directory.announce(READY)
    assert waiting.begun == [], "its lane opens behind the announcement"
    await asyncio.sleep(0)
    assert waiting.begun == numbers[:BEGUN_A_TURN]
    await until(lambda: waiting.begun == numbers)
    assert (waiting.waits.count, waiting.late) == (0, [])


@pytest.mark.parametrize("how", ["refused", "withdrawn"])
async def test_requests_begin_when_their_version_will_not_come(how: str) -> None:
    waiting = Waiting()
    waiting.add(1)
    if how == "refused":
        waiting.directory.announce(ServedVersion(lane=LANE, state="failed", reason="damaged"))
    else:
        waiting.directory.withdraw(LANE)
    await until(lambda: waiting.begun == [1])


async def test_version_that_is_loading_is_still_away() -> None:
    waiting = Waiting()
    waiting.add(1)
    waiting.directory.announce(ServedVersion(lane=LANE, state="loading", comes_back=True))
    await asyncio.sleep(0)
    assert (waiting.begun, waiting.waits.count) == ([], 1)
    with pytest.raises(ModelReturningError, match="is not ready: loading"):
        waiting.directory.resolve("m")


async def test_request_ends_at_its_deadline() -> None:
    waiting = Waiting()
    waiting.add(1, 0.01)
    waiting.add(2)
    await until(lambda: waiting.late == [1])
    assert waiting.add(3, 0.0) is None
    waiting.directory.announce(READY)
    await until(lambda: waiting.begun == [2])
    assert waiting.waits.count == 0


async def test_cancelled_request_never_begins_and_leaves_its_place() -> None:
    waiting = Waiting(most=2)
    first, second = waiting.add(1), waiting.add(2)
    assert first is not None
    assert second is not None
    assert waiting.add(3) is None
    first.cancel()
    assert waiting.add(3) is not None
    waiting.directory.announce(READY)
    second.cancel()  # between the announcement and its turn
    await until(lambda: waiting.begun == [3])
    assert waiting.waits.count == 0


async def test_caller_has_an_equal_share_of_the_places_once_half_are_taken() -> None:
    waiting = Waiting(most=8)
    greedy = [waiting.add(number, holder="greedy") for number in range(6)]
    assert all(greedy), "a single caller may take all places"
    assert waiting.add(6, holder="other") is not None
    assert waiting.add(7, holder="greedy") is None
    assert waiting.add(8, holder="other") is not None
    for wait in greedy[:3]:
        assert wait is not None
        wait.cancel()
    assert waiting.add(9, holder="greedy") is not None
    waiting.directory.announce(READY)
    await until(lambda: not waiting.waits.count)
    assert waiting.begun == [3, 4, 5, 6, 8, 9]


async def test_request_that_raises_keeps_no_other_waiting() -> None:
    def broken() -> None:
        raise ValueError("broken")

    waiting, raised = Waiting(), list[dict[str, Any]]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context))
    waiting.waits.add(LANE, time.monotonic() + 60, broken, broken)
    numbers = list(range(2 * BEGUN_A_TURN))
    for number in numbers:
        waiting.add(number)
    waiting.directory.announce(READY)
    await until(lambda: waiting.begun == numbers)
    assert [str(context["exception"]) for context in raised] == ["broken"]


async def test_version_is_asked_for_again_while_requests_wait() -> None:
    waiting = Waiting()
    waiting.add(1)
    assert waiting.missed == []
    began = time.monotonic()
    await until(lambda: waiting.missed == [LANE])
    assert time.monotonic() - began >= ASKED_EVERY_S / 2


async def test_no_request_waits_once_the_process_drains() -> None:
    waiting = Waiting()
    waiting.add(1)
    waiting.waits.end_all()
    assert waiting.add(2) is None
    await until(lambda: waiting.begun == [1])


def test_version_that_nothing_would_load_is_not_waited_for() -> None:
    directory = Directory()
    directory.announce(AWAY)
    directory.make_live(LANE)
    with pytest.raises(ModelNotReadyError) as caught:
        directory.resolve("m")
    assert type(caught.value) is ModelNotReadyError
