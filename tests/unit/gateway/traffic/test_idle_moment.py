"""The loop is idle if no request comes or goes for some of its iterations."""

import asyncio
import math
import time

from services.gateway.traffic.idle_moment import TURNS, IdleMoment
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
