"""Deadlines of waiting items: sorted late or at once, and never missed."""

import asyncio
import time
import weakref

from services.queueing.deadlines import SORT_EVERY_S, SORTED_AT_ONCE_S, TICK_S, Deadlines


class Item:
    """An item that notes when it expires."""

    def __init__(self, left_s: float) -> None:
        self.tick = 0
        self.deadline = time.monotonic() + left_s
        self.expired: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    def expire(self) -> None:
        """Notes the time."""
        self.expired.set_result(time.monotonic())


def added(deadlines: Deadlines[Item], left_s: float) -> Item:
    item = Item(left_s)
    deadlines.add(item, left_s)
    return item


async def test_only_a_deadline_that_is_far_away_is_sorted_later() -> None:
    deadlines = Deadlines[Item]()
    near = [added(deadlines, left_s) for left_s in (0.001, SORTED_AT_ONCE_S)]
    far = added(deadlines, SORTED_AT_ONCE_S + SORT_EVERY_S)
    assert [bool(item.tick) for item in (*near, far)] == [True, True, False]
    assert {*deadlines} == {*near, far}
    for item in (*near, far):
        expired_at = await asyncio.wait_for(item.expired, 10)
        assert expired_at >= item.deadline - TICK_S
    assert far.tick
    assert not [*deadlines]


async def test_a_removed_item_does_not_expire() -> None:
    deadlines = Deadlines[Item]()
    removed, other = added(deadlines, 0.01), added(deadlines, 0.02)
    deadlines.remove(removed)
    await asyncio.wait_for(other.expired, 10)
    assert not removed.expired.done()


async def test_a_removed_item_is_kept_alive_no_longer() -> None:
    deadlines = Deadlines[Item]()
    for left_s in (SORTED_AT_ONCE_S, SORTED_AT_ONCE_S + SORT_EVERY_S):
        removed = added(deadlines, left_s)
        kept = weakref.ref(removed)
        deadlines.remove(removed)
        del removed
        assert kept() is None
