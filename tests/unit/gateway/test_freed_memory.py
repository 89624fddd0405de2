"""Memory goes back to the system behind the highest points of what is held, and not too often."""

import asyncio
import math
import os
import threading

import pytest

from services.errors import BufferFullError
from services.gateway.wire import freed_memory
from services.gateway.wire.byte_budget import ByteBudget
from services.gateway.wire.freed_memory import FreedMemory
from services.inference.backends.device_memory import resident_bytes
from tests.unit.gateway.http_wire import on_loop

MIB = 2**20


class Library:
    """Counts what the C library is asked, and may take long to do it."""

    def __init__(self) -> None:
        self.calls = 0
        self.asked = asyncio.Semaphore(0)
        self.free = threading.Event()
        self.free.set()
        self._loop = asyncio.get_running_loop()

    def give_back(self) -> None:
        """One call."""
        self.calls += 1
        self._loop.call_soon_threadsafe(self.asked.release)
        self.free.wait()


async def rest(freed: FreedMemory) -> None:
    """Waits until nothing is being given back."""
    while freed.is_running:  # noqa: ASYNC110 - a thread ends it, and sets no event
        await asyncio.sleep(0)


def test_given_back_once_much_is_held_no_more() -> None:
    async def test() -> None:
        library = Library()
        freed = FreedMemory(10, 100, library.give_back)
        freed.look(20, 0)
        freed.look(11, 0)
        assert library.calls == 0
        freed.look(10, 0)
        await library.asked.acquire()
        freed.look(10, 0)
        assert library.calls == 1

    on_loop(test)


def test_fall_counts_though_more_is_held_again() -> None:
    """Memory of small pieces stays, and other pieces need not fit into it."""

    async def test() -> None:
        library = Library()
        freed = FreedMemory(10, 100, library.give_back, pause_s=0)
        library.free.clear()
        freed.look(20, 0)
        freed.look(0, 0)
        await library.asked.acquire()
        freed.look(20, 0)
        freed.look(0, 0)  # the first run is still at work
        freed.look(20, 0)
        assert library.calls == 1
        library.free.set()
        while library.calls == 1:
            freed.look(20, 0)
            await asyncio.sleep(0)

    on_loop(test)


def test_small_pieces_that_go_while_large_buffers_come() -> None:
    """What is held in all never falls."""

    async def test() -> None:
        library = Library()
        freed = FreedMemory(10, 100, library.give_back)
        for gone in range(0, 21, 4):
            freed.look(20, gone)
        await library.asked.acquire()
        assert library.calls == 1

    on_loop(test)


def test_no_pause_between_two_runs_while_memory_is_short() -> None:
    async def test() -> None:
        library = Library()
        freed = FreedMemory(10, 100, library.give_back, pause_s=math.inf)
        freed.look(95, 0)
        for number in (1, 2):
            freed.look(80, 0)
            assert not freed.is_running
            while library.calls < number:
                freed.look(95, 0)  # 95 and the 15 that were freed are more than 100
                await asyncio.sleep(0)
            await rest(freed)

    on_loop(test)


def test_budget_says_what_it_charges() -> None:
    async def test() -> None:
        library = Library()
        budget = ByteBudget(80, freed=FreedMemory(10, 80, library.give_back))
        budget.take(30)
        budget.give(30)
        budget.take(1)
        await library.asked.acquire()
        assert library.calls == 1
        budget.take(30)
        budget.give(30)
        assert library.calls == 1

    on_loop(test)


def test_refused_charge_is_not_what_was_held() -> None:
    async def test() -> None:
        library = Library()
        budget = ByteBudget(80, freed=FreedMemory(10, 80, library.give_back))
        with pytest.raises(BufferFullError):
            budget.take(1000)
        budget.look_for_freed()
        assert library.calls == 0

    on_loop(test)


def test_memory_below_a_piece_in_use_goes_back() -> None:
    """What this is for; where the C library cannot, it is left as it is."""

    pieces = [bytearray(100_000) for _ in range(1000)]
    last = pieces.pop()
    held = resident_bytes(os.getpid())
    pieces.clear()
    freed_memory.give_back()
    assert held - resident_bytes(os.getpid()) > 50 * MIB
    assert last
