"""Rounds of a question whose answer many callers share."""

import asyncio
from collections.abc import Iterator

import pytest

from services.shared_rounds import SharedRounds


async def test_callers_share_a_round_that_began_after_they_asked() -> None:
    began, has_begun, may_end = 0, asyncio.Event(), asyncio.Event()

    async def ask() -> int:
        nonlocal began
        began += 1
        mine = began
        has_begun.set()
        await may_end.wait()
        return mine

    rounds = SharedRounds(ask, 0.0)
    first = [asyncio.ensure_future(rounds.answer()) for _ in range(3)]
    await has_begun.wait()
    late = [asyncio.ensure_future(rounds.answer()) for _ in range(5)]
    may_end.set()
    assert await asyncio.gather(*first) == [1, 1, 1]
    assert await asyncio.gather(*late) == [2] * 5, "the first round may have missed something"


async def test_a_failed_round_fails_its_callers_alone() -> None:
    answers: Iterator[ValueError | int] = iter([ValueError("away"), 7])

    async def ask() -> int:
        answer = next(answers)
        if isinstance(answer, int):
            return answer
        raise answer

    rounds = SharedRounds(ask, 0.0)
    with pytest.raises(ValueError, match="away"):
        await rounds.answer()
    assert await rounds.answer() == 7


async def test_a_caller_that_leaves_ends_no_round_of_others() -> None:
    may_end = asyncio.Event()

    async def ask() -> int:
        await may_end.wait()
        return 1

    rounds = SharedRounds(ask, 0.0)
    leaves, stays = (asyncio.ensure_future(rounds.answer()) for _ in range(2))
    await asyncio.sleep(0)
    leaves.cancel()
    await asyncio.sleep(0)
    may_end.set()
    assert await stays == 1
