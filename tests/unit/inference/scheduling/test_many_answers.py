"""Backends that give several answers to a request, read fast, slowly, or not at all."""

import asyncio

import pytest

from services.errors import BackendError, DeadlineExceededError, UnreadAnswersError
from services.inference.scheduling import instance
from services.queueing.part_window import MAX_UNREAD_SMALL
from tests.fixtures.fake_backends import CountingBackend
from tests.fixtures.part_reader import PartReader
from tests.fixtures.running_worker import Running, running, values_of


def reader_of(
    made: Running, value: float, *, reads: bool = True, timeout_s: float = 60.0
) -> PartReader:
    """Sends a request of one row, and returns its caller."""
    return PartReader(lambda done: made.submit(done, value, timeout_s=timeout_s), reads=reads)


@pytest.mark.parametrize("count", [0, 1, 1000])
async def test_each_answer_arrives_once_in_order_and_then_the_end(count: int) -> None:
    async with running(CountingBackend(count)) as made:
        reader = reader_of(made, 1.0)
        await reader.wait()
        assert [reply.number for reply in reader.replies] == [*range(count), count]
        assert [reply.is_last for reply in reader.replies] == [False] * count + [True]
        answers = [values_of(reply) for reply in reader.replies[:-1]]
        assert answers == [[2.0 + number] for number in range(count)]
        assert not reader.replies[-1].outputs


async def test_requests_of_a_batch_get_their_own_rows() -> None:
    backend = CountingBackend(3)
    async with running(backend) as made:
        readers = [reader_of(made, value) for value in (1.0, 5.0)]
        for reader in readers:
            await reader.wait()
        assert backend.runs == 1
        for reader, first in zip(readers, (2.0, 10.0), strict=True):
            answers = [values_of(reply) for reply in reader.replies[:-1]]
            assert answers == [[first], [first + 1], [first + 2]]


async def test_slow_reader_stops_the_backend_and_nothing_is_lost() -> None:
    backend = CountingBackend(100)
    async with running(backend, execution_timeout_s=0.2) as made:
        reader = reader_of(made, 1.0, reads=False)
        await reader.until(MAX_UNREAD_SMALL)
        await asyncio.sleep(0.5)  # longer than a run may take: it is the reader who waits
        assert len(reader.heard) == MAX_UNREAD_SMALL
        assert backend.given <= MAX_UNREAD_SMALL + 1
        while not reader.over.is_set():
            reader.read()
            await reader.until(len(reader.heard) + 1)
        assert [reply.number for reply in reader.replies] == [*range(101)]
        assert made.counted("flambeau_worker_restarts_total", reason="blocked") in (None, 0)


async def test_reader_that_stops_fails_alone_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance, "READ_WITHIN_S", 0.3)
    async with running(CountingBackend(100)) as made:
        stopped = [reader_of(made, 1.0, reads=False) for _ in range(2)]
        reader = reader_of(made, 5.0)
        began = asyncio.get_running_loop().time()
        await reader.wait()
        assert reader.values == [10.0 + number for number in range(100)]
        for one in stopped:
            assert one.numbers == [*range(MAX_UNREAD_SMALL)]
            assert len(one.heard) == MAX_UNREAD_SMALL + 1
            error = one.heard[-1]
            assert isinstance(error, UnreadAnswersError)
            assert "has read none for 0.3 s" in str(error)
        assert asyncio.get_running_loop().time() - began < 0.6, "they are waited for together"


async def test_caller_who_leaves_ends_the_run() -> None:
    backend = CountingBackend(10**9)
    async with running(backend) as made:
        leaving = reader_of(made, 1.0, reads=False)
        await leaving.until(1)
        leaving.entry.cancel()
        await asyncio.to_thread(backend.ended.wait)
        backend.parts = 1
        next_one = reader_of(made, 1.0)
        await next_one.wait()
        assert len(next_one.replies) == 2
        assert not leaving.over.is_set()


async def test_caller_who_leaves_takes_nothing_from_its_neighbour() -> None:
    backend = CountingBackend(40)
    async with running(backend) as made:
        leaving, staying = reader_of(made, 1.0, reads=False), reader_of(made, 5.0)
        await leaving.until(1)
        leaving.entry.cancel()
        await staying.wait()
        assert [reply.number for reply in staying.replies] == [*range(41)]


async def test_deadline_ends_the_run_of_a_reader_that_stopped() -> None:
    backend = CountingBackend(100)
    async with running(backend) as made:
        reader = reader_of(made, 1.0, reads=False, timeout_s=0.3)
        await reader.wait()
        assert isinstance(reader.heard[-1], DeadlineExceededError)
        await asyncio.to_thread(backend.ended.wait)


async def test_run_that_fails_in_the_middle_is_not_run_again() -> None:
    backend = CountingBackend(5, fails_at=2)
    async with running(backend) as made:
        readers = [reader_of(made, value) for value in (1.0, 5.0)]
        for reader in readers:
            await reader.wait()
            assert [reply.number for reply in reader.replies] == [0, 1]
            assert isinstance(reader.heard[-1], BackendError)
        assert backend.runs == 1
