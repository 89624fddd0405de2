"""The loop is idle if no request comes or goes for a while; other work gets a part of that."""

import asyncio
import math
import time

import pytest

from services.gateway.traffic.idle_moment import LOOK_EVERY_S, TURNS, IdleMoment, IdleShare
from tests.fixtures.redis_servers import until


class Loop:
    """A loop with requests that a test counts."""

    def __init__(self) -> None:
        self.waiting, self.found = 0, list[bool]()

    def ask(self, until_s: float = math.inf) -> None:
        IdleMoment(lambda: self.waiting).ask(until_s, self.found.append)


async def test_loop_with_waiting_requests_is_idle_after_some_turns() -> None:
    loop = Loop()
    loop.waiting = 7
    loop.ask()
    for _ in range(TURNS):
        assert loop.found == []
        await asyncio.sleep(0)
    await until(lambda: loop.found == [True])


async def test_loop_is_not_idle_while_requests_come_and_go() -> None:
    loop = Loop()
    loop.ask()
    for turn in range(10 * TURNS):
        loop.waiting = turn % 2
        await asyncio.sleep(0)
        assert loop.found == []
    await until(lambda: loop.found == [True])


async def test_who_asks_gives_up_in_time() -> None:
    loop = Loop()
    loop.ask(time.monotonic() + 0.01)
    async with asyncio.timeout(10):
        while not loop.found:
            loop.waiting += 1
            await asyncio.sleep(0)
    assert loop.found == [False]


@pytest.mark.parametrize(("busy", "pieces"), [(0.0, 1000), (0.5, 500), (0.9, 100), (1.0, 0)])
def test_work_takes_a_part_of_the_idle_time(busy: float, pieces: int) -> None:
    now = 0.0
    share = IdleShare(0.1, 1e-4, 32, lambda: now, lambda: now * busy)
    assert [share.take() for _ in range(34)] == [True] * 32 + [False] * 2
    taken = 0
    for turn in range(1, 10_001):
        now = turn / 10_000
        taken += share.take()
    assert abs(taken - pieces) <= 1000 * LOOK_EVERY_S + 1


def test_long_pause_saves_up_a_few_pieces() -> None:
    now = 0.0
    share = IdleShare(0.1, 1e-4, 8, lambda: now, lambda: 0.0)
    now = 1000.0
    assert sum(share.take() for _ in range(100)) == 8
