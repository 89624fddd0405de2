"""Several answers to a request, from a backend in a worker process of its own."""

import asyncio

import numpy as np
import pytest

from services.errors import BackendError, UnreadAnswersError, WorkerProcessDiedError
from services.inference.scheduling import instance
from services.queueing.part_window import MAX_UNREAD
from tests.fixtures.counting_process import IsolatedCounting
from tests.fixtures.part_reader import PartReader
from tests.fixtures.running_worker import Running, running


def reader_of(made: Running, value: float, *, reads: bool = True) -> PartReader:
    """Sends a request of one row, and returns its caller."""
    return PartReader(lambda done: made.submit(done, value), reads=reads)


@pytest.mark.parametrize("count", [0, 1, 1000])
async def test_each_part_arrives_once_in_order_and_then_the_end(count: int) -> None:
    async with running(IsolatedCounting(count)) as made:
        reader = reader_of(made, 1.0)
        await reader.wait()
        assert reader.numbers == [*range(count + 1)]
        assert reader.values == [2.0 + number for number in range(count)]


async def test_slow_reader_pauses_the_process() -> None:
    async with running(IsolatedCounting(100), execution_timeout_s=0.2) as made:
        reader = reader_of(made, 1.0, reads=False)
        await reader.until(MAX_UNREAD)
        while not reader.over.is_set():
            reader.read()
            await reader.until(len(reader.heard) + 1)
        assert reader.values == [2.0 + number for number in range(100)]


async def test_reader_that_stops_frees_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance, "READ_WITHIN_S", 0.3)
    async with running(IsolatedCounting(100)) as made:
        stopped = reader_of(made, 1.0, reads=False)
        await stopped.wait()
        assert isinstance(stopped.heard[-1], UnreadAnswersError)
        following = reader_of(made, 1.0)
        await following.wait()
        assert len(following.values) == 100


async def test_caller_that_leaves_ends_the_run_and_the_process_serves_the_next() -> None:
    backend = IsolatedCounting(1000)
    async with running(backend) as made:
        leaving = reader_of(made, 1.0, reads=False)
        await leaving.until(MAX_UNREAD)
        leaving.entry.cancel()
        staying = reader_of(made, 5.0)
        await staying.wait()
        assert staying.values[:2] == [10.0, 11.0]
        assert len(staying.values) == 1000
        assert not leaving.over.is_set()


async def test_run_that_fails_in_the_middle_keeps_its_process() -> None:
    async with running(IsolatedCounting(5, fails_at=2)) as made:
        for _ in range(2):
            reader = reader_of(made, 1.0)
            await reader.wait()
            assert reader.numbers == [0, 1]
            error = reader.heard[-1]
            assert isinstance(error, BackendError)
            assert "failed in the middle" in str(error)


async def test_process_that_dies_in_the_middle_is_replaced_and_nothing_given_twice() -> None:
    async with running(IsolatedCounting(5, dies_at=2), reopened=[IsolatedCounting(3)]) as made:
        reader = reader_of(made, 1.0)
        await reader.wait()
        assert reader.numbers == [0, 1]
        assert isinstance(reader.heard[-1], WorkerProcessDiedError)
        after = reader_of(made, 1.0)
        await after.wait()
        assert after.numbers == [0, 1, 2, 3]


def test_generator_that_is_closed_leaves_the_process_ready() -> None:
    backend = IsolatedCounting(1000)
    try:
        x = {"x": np.ones((1, 1), np.float32)}
        for _ in range(3):
            parts = backend.run_in_parts(x)
            assert next(parts)["y"] == 2.0
            parts.close()
        assert len([*backend.run_in_parts(x)]) == 1000
    finally:
        backend.close()


async def test_process_that_is_killed_while_a_part_is_awaited_says_so() -> None:
    backend = IsolatedCounting(1000)
    parts = backend.run_in_parts({"x": np.ones((1, 1), np.float32)})
    next(parts)
    backend.kill()
    with pytest.raises(WorkerProcessDiedError):
        await asyncio.to_thread(next, parts)
    backend.close()
