"""Memory goes back to the system behind the highest points of what is held, and not too often."""

import asyncio
import os
import threading

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


def test_given_back_once_much_is_held_no_more() -> None:
    async def test() -> None:
        library = Library()
        freed = FreedMemory(10, library.give_back)
        freed.high_bytes = 20
        freed.look(11)
        freed.look(10)
        await library.asked.acquire()
        assert (library.calls, freed.high_bytes) == (1, 10)

    on_loop(test)


def test_not_again_at_once_nor_beside_itself() -> None:
    async def test() -> None:
        library = Library()
        library.free.clear()
        freed = FreedMemory(10, library.give_back, pause_s=0)
        for _ in range(2):
            freed.high_bytes = 20
            freed.look(0)
        await library.asked.acquire()
        freed.look(0)  # the first is still at work
        assert (library.calls, freed.high_bytes) == (1, 20)
        library.free.set()
        while library.calls == 1:
            freed.look(0)
            await asyncio.sleep(0)
        assert freed.high_bytes == 0

    on_loop(test)


def test_budget_says_what_it_charges() -> None:
    async def test() -> None:
        library = Library()
        budget = ByteBudget(80, freed=FreedMemory(10, library.give_back))
        budget.take(30)
        budget.give(30)
        budget.take(1)
        await library.asked.acquire()
        assert library.calls == 1
        budget.take(30)
        budget.give(30)
        assert library.calls == 1

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
