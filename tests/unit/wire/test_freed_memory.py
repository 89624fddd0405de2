"""Memory is returned to the system after peaks of held bytes, and not too often."""

import asyncio
import math
import os
import threading

import pytest

from services.errors import BufferFullError
from services.resident_memory import resident_bytes
from services.wire import freed_memory
from services.wire.byte_budget import ByteBudget
from services.wire.freed_memory import FreedMemory
from tests.unit.wire.http_wire import on_loop

MIB = 2**20


class Process:
    """Keeps what was freed until it is given back, which may take long."""

    def __init__(self) -> None:
        self.held = 0
        self.kept = 0
        self.calls = 0
        self.asked = asyncio.Semaphore(0)
        self.free = threading.Event()
        self.free.set()
        self._loop = asyncio.get_running_loop()

    def watched(self, pause_s: float = 1000.0) -> FreedMemory:
        """10 bytes are worth a call; 100 are the limit."""
        return FreedMemory(10, 100, self.give_back, self.resident, pause_s, look_s=0)

    def resident(self) -> int:
        """Models take 1000."""
        return 1000 + self.held + self.kept

    def change(self, held: int, freed: int = 0) -> int:
        """Sets the held bytes, and adds the freed ones."""
        self.held = held
        self.kept += freed
        return held

    def give_back(self) -> None:
        """Counts one call."""
        self.calls += 1
        self.kept = 0
        self._loop.call_soon_threadsafe(self.asked.release)
        self.free.wait()


async def rest(freed: FreedMemory) -> None:
    """Waits until nothing is being given back."""
    while freed.is_running:  # noqa: ASYNC110 - a thread ends it, and sets no event
        await asyncio.sleep(0)


def test_given_back_once_much_has_been_freed() -> None:
    async def test() -> None:
        process = Process()
        freed = process.watched()
        freed.look(process.change(20))
        freed.look(process.change(11, freed=9))
        assert process.calls == 0
        freed.look(process.change(10, freed=1))
        await process.asked.acquire()
        await rest(freed)
        freed.look(process.change(10))
        assert process.calls == 1

    on_loop(test)


def test_memory_that_goes_back_by_itself_is_not_freed() -> None:
    async def test() -> None:
        process = Process()
        freed = process.watched()
        freed.look(process.change(90))
        freed.look(process.change(0))
        assert not freed.is_running

    on_loop(test)


def test_pieces_that_go_while_others_come() -> None:
    """The total held never falls; memory freed before counts once more has been freed."""

    async def test() -> None:
        process = Process()
        freed = process.watched(pause_s=0)
        process.free.clear()
        freed.look(process.change(20))
        freed.look(process.change(20, freed=12))
        await process.asked.acquire()
        freed.look(process.change(20, freed=12))  # the first run is still at work
        assert process.calls == 1
        process.free.set()
        await rest(freed)
        freed.look(process.change(20))
        freed.look(process.change(20, freed=12))
        await process.asked.acquire()
        assert process.calls == 2

    on_loop(test)


def test_what_is_freed_while_memory_is_given_back_counts() -> None:
    async def test() -> None:
        process = Process()
        freed = process.watched(pause_s=0)
        process.free.clear()
        freed.look(process.change(50))
        freed.look(process.change(40, freed=10))
        await process.asked.acquire()
        process.change(5, freed=35)
        process.free.set()
        await rest(freed)
        freed.look(5)
        await process.asked.acquire()
        assert process.calls == 2

    on_loop(test)


def test_no_pause_between_two_runs_while_memory_is_short() -> None:
    async def test() -> None:
        process = Process()
        freed = process.watched(pause_s=math.inf)
        freed.look(process.change(98))
        for number in (1, 2):
            freed.look(process.change(98, freed=3))
            while process.calls < number:
                freed.look(98)  # 98 and 3 are more than 100
                await asyncio.sleep(0)
            await rest(freed)
            freed.look(98)
        assert process.calls == 2

    on_loop(test)


def test_little_that_is_held_is_not_looked_at() -> None:
    """Models take memory and give it back; callers who send little make none of it move."""

    async def test() -> None:
        process = Process()
        freed = process.watched()
        freed.look(process.change(1))
        freed.look(process.change(1, freed=500))
        assert not freed.is_running

    on_loop(test)


def test_budget_says_what_it_charges() -> None:
    async def test() -> None:
        process = Process()
        budget = ByteBudget(80, freed=process.watched())
        budget.take(process.change(30))
        budget.give(30)
        process.change(0, freed=30)
        budget.look_for_freed()
        await process.asked.acquire()
        assert process.calls == 1

    on_loop(test)


def test_refused_charge_is_not_what_was_held() -> None:
    async def test() -> None:
        process = Process()
        budget = ByteBudget(80, freed=process.watched())
        with pytest.raises(BufferFullError):
            budget.take(1000)
        process.change(0, freed=500)
        budget.look_for_freed()
        assert process.calls == 0

    on_loop(test)


def test_memory_below_a_piece_in_use_goes_back() -> None:
    """The purpose of the class; without support of the C library nothing happens."""

    pieces = [bytearray(100_000) for _ in range(1000)]
    last = pieces.pop()
    held = resident_bytes(os.getpid())
    pieces.clear()
    freed_memory.give_back()
    assert held - resident_bytes(os.getpid()) > 50 * MIB
    assert last
