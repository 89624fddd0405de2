"""The worker: every request answered exactly once, whatever arrives, cancels or fails."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.errors import BackendError
from services.inference.worker import Worker
from services.queueing.memory_queue import MemoryQueue
from services.queueing.records import InferReply, InferRequest, Lane
from services.telemetry.metrics import Metrics
from tests.fixtures.fake_backends import POISON, DoublingBackend, WrongRowsBackend

LANE = Lane("m", 1)
MAX_ROWS = 4


@contextlib.asynccontextmanager
async def running(backend: DoublingBackend) -> AsyncIterator[tuple[MemoryQueue, Metrics]]:
    """A worker on a queue; on the way out the lane closes and the worker must end by itself."""
    queue, metrics = MemoryQueue(1000), Metrics("test")
    queue.open(LANE)
    worker = asyncio.create_task(Worker(LANE, backend, MAX_ROWS, queue, metrics).run())
    try:
        yield queue, metrics
    finally:
        backend.gate.set()
        queue.close(LANE)
        await worker
        assert backend.closed


def request(*values: float) -> InferRequest:
    x = np.array(values, np.float32).reshape(-1, 1)
    return InferRequest(
        request_id="r",
        lane=LANE,
        inputs={"x": x},
        rows=len(values),
        deadline=time.monotonic() + 60,
    )


def values_of(reply: InferReply) -> list[float]:
    return [float(v) for v in reply.outputs["y"].ravel()]


async def test_an_idle_worker_runs_what_is_there_at_once() -> None:
    backend = DoublingBackend()
    async with running(backend) as (queue, _):
        assert values_of(await queue.submit(request(1.0))) == [2.0]
    assert [len(b) for b in backend.batches] == [1]


async def test_requests_gather_while_the_worker_is_busy() -> None:
    backend = DoublingBackend()
    backend.gate.clear()
    async with running(backend) as (queue, metrics):
        first = asyncio.create_task(queue.submit(request(0.0)))
        await asyncio.to_thread(backend.started.wait)
        rest = [asyncio.create_task(queue.submit(request(float(n)))) for n in range(1, 7)]
        await asyncio.sleep(0)
        backend.gate.set()
        replies = await asyncio.gather(first, *rest)
    assert [values_of(r) for r in replies] == [[2.0 * n] for n in range(7)]
    assert [len(b) for b in backend.batches] == [1, 4, 2]
    assert (
        metrics.registry.get_sample_value("flambeau_batch_size_sum", {"model": "m", "version": "1"})
        == 7
    )
    assert (
        metrics.registry.get_sample_value(
            "flambeau_batch_size_count", {"model": "m", "version": "1"}
        )
        == 3
    )


async def test_a_poisoned_request_fails_alone() -> None:
    backend = DoublingBackend()
    backend.gate.clear()
    async with running(backend) as (queue, _):
        first = asyncio.create_task(queue.submit(request(0.0)))
        await asyncio.to_thread(backend.started.wait)
        values = (1.0, POISON, 3.0)
        mates = [asyncio.create_task(queue.submit(request(v))) for v in values]
        await asyncio.sleep(0)
        backend.gate.set()
        await first
        good, bad, other = await asyncio.gather(*mates, return_exceptions=True)
    assert isinstance(good, InferReply)
    assert values_of(good) == [2.0]
    assert isinstance(other, InferReply)
    assert values_of(other) == [6.0]
    assert isinstance(bad, BackendError)
    assert "cannot double" in str(bad)


async def test_an_output_without_the_batch_s_rows_is_an_error() -> None:
    async with running(WrongRowsBackend()) as (queue, _):
        with pytest.raises(BackendError, match="for a batch of 2 rows"):
            await queue.submit(request(1.0, 2.0))


async def test_cancelled_work_never_reaches_the_backend() -> None:
    backend = DoublingBackend()
    backend.gate.clear()
    async with running(backend) as (queue, _):
        first = asyncio.create_task(queue.submit(request(0.0)))
        await asyncio.to_thread(backend.started.wait)
        gone = asyncio.create_task(queue.submit(request(1.0)))
        stays = asyncio.create_task(queue.submit(request(2.0)))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.sleep(0)
        backend.gate.set()
        await asyncio.gather(first, stays)
    assert [b.ravel().tolist() for b in backend.batches] == [[0.0], [2.0]]


async def test_a_closed_lane_is_drained_before_the_backend_closes() -> None:
    backend = DoublingBackend()
    backend.gate.clear()
    async with running(backend) as (queue, _):
        waiting = [asyncio.create_task(queue.submit(request(float(n)))) for n in range(9)]
        await asyncio.to_thread(backend.started.wait)
        queue.close(LANE)
        backend.gate.set()
        replies = await asyncio.gather(*waiting)
    assert [values_of(r) for r in replies] == [[2.0 * n] for n in range(9)]


steps = st.lists(
    st.tuples(
        st.lists(st.sampled_from([1.0, 2.0, 3.0, POISON]), min_size=1, max_size=MAX_ROWS),
        st.sampled_from(["wait", "cancel"]),
        st.booleans(),  # let the loop turn after this request
    ),
    min_size=1,
    max_size=25,
)


@settings(max_examples=60)
@given(steps)
def test_every_request_is_answered_exactly_once(
    arrivals: Sequence[tuple[list[float], str, bool]],
) -> None:
    async def scenario() -> None:
        backend = DoublingBackend()
        async with running(backend) as (queue, _):
            tasks = []
            for values, fate, turn in arrivals:
                task = asyncio.create_task(queue.submit(request(*values)))
                tasks.append((values, fate, task))
                if turn:
                    await asyncio.sleep(0)
                if fate == "cancel":
                    task.cancel()
            results = await asyncio.gather(*(t for _, _, t in tasks), return_exceptions=True)
        for (values, fate, _), result in zip(tasks, results, strict=True):
            if fate == "cancel":
                assert isinstance(result, asyncio.CancelledError)
            elif POISON in values:
                assert isinstance(result, BackendError)
            else:
                assert isinstance(result, InferReply)
                assert values_of(result) == [2 * v for v in values]
        assert all(len(batch) <= MAX_ROWS for batch in backend.batches)

    asyncio.run(scenario())
