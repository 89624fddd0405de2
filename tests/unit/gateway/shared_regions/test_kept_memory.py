"""Memory of inputs: whose views never overlap, which is kept, and for how long."""

import asyncio
import threading
import weakref

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from services.gateway.shared_regions import kept_memory
from services.gateway.shared_regions.kept_memory import KeptMemory
from tests.fixtures.redis_servers import until

MIB = 2**20
MOST = 4 * MIB


class Clock:
    """A clock that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@given(st.lists(st.tuples(st.integers(1, 3 * MIB), st.integers(0, 5)), max_size=24))
@settings(max_examples=60, deadline=None)
def test_what_is_in_use_is_never_given_out_again(steps: list[tuple[int, int]]) -> None:
    async def taken() -> None:
        memory = KeptMemory(MOST)
        used: dict[int, np.ndarray] = {}
        for number, (size, slot) in enumerate(steps, 1):
            used.pop(slot, None)
            view = memory.take(size)
            assert len(view) == size
            # As a model has it: a read-only array of the view, and only a part of it.
            view[:] = bytes([number % 251]) * size
            used[slot] = np.frombuffer(view.toreadonly(), np.uint8)[size // 2 :]
            del view
            for array in used.values():
                assert (array == array[:1]).all()
            assert memory.kept_bytes <= MOST
        values = [int(array[0]) for array in used.values()]
        assert len(values) == len(set(values))

    asyncio.run(taken())


async def test_memory_is_used_again_once_its_last_array_is_gone() -> None:
    memory = KeptMemory(MOST)
    view = memory.take(MIB)
    array = np.frombuffer(view.toreadonly(), np.float32)
    part, address = array[1:], array.ctypes.data
    del view, array
    assert memory.kept_bytes == 0
    assert np.frombuffer(memory.take(MIB), np.float32).ctypes.data != address
    thread = threading.Thread(target=lambda arrays: arrays.clear(), args=([part],))
    del part
    thread.start()
    thread.join()
    assert memory.kept_bytes == 2 * MIB
    again = [memory.take(MIB) for _ in range(2)]
    assert address in {np.frombuffer(one, np.uint8).ctypes.data for one in again}
    assert memory.kept_bytes == 0


async def test_small_inputs_leave_large_memory_to_large_ones() -> None:
    memory = KeptMemory(MOST)
    memory.take(4 * MIB)
    assert memory.kept_bytes == 4 * MIB
    small = memory.take(1000)
    assert memory.kept_bytes == 4 * MIB
    del small
    assert memory.kept_bytes < MIB, "the oldest goes first"


async def test_memory_over_the_limit_is_returned_by_a_thread() -> None:
    memory, threads = KeptMemory(MOST), list[int]()
    views = [memory.take(3 * MIB) for _ in range(2)]
    for view in views:
        mapping = view.obj.base  # type: ignore[attr-defined]  # an array
        mapping = mapping.obj if isinstance(mapping, memoryview) else mapping
        weakref.finalize(mapping, lambda: threads.append(threading.get_ident()))
        del mapping
    del view
    views.clear()
    assert memory.kept_bytes == 3 * MIB
    await until(lambda: len(threads) == 1)
    assert threads[0] != threading.get_ident()


async def test_memory_goes_back_to_the_system_after_a_while() -> None:
    clock = Clock()
    memory = KeptMemory(MOST, clock)
    memory.take(MIB)
    assert memory.kept_bytes == MIB
    clock.now = kept_memory.KEEP_S / 2
    memory.expire()
    assert memory.kept_bytes == MIB
    clock.now = kept_memory.KEEP_S
    memory.expire()
    assert memory.kept_bytes == 0
