"""The queue's contract, for every implementation there is."""

import asyncio
import time
from collections.abc import Callable

import numpy as np
import pytest

from services.errors import (
    BackendError,
    DeadlineExceededError,
    ModelNotReadyError,
    QueueFullError,
)
from services.queueing.memory_queue import MemoryQueue
from services.queueing.records import InferReply, InferRequest, Lane

LANE = Lane("m", 1)
MAX_DEPTH = 4
QUEUES: list[Callable[[], MemoryQueue]] = [lambda: MemoryQueue(MAX_DEPTH)]


@pytest.fixture(params=QUEUES, ids=["memory"])
def queue(request: pytest.FixtureRequest) -> MemoryQueue:
    made: MemoryQueue = request.param()
    made.open(LANE)
    return made


def request(number: int = 0, timeout_s: float = 30.0, lane: Lane = LANE) -> InferRequest:
    return InferRequest(
        request_id=str(number),
        lane=lane,
        inputs={"x": np.zeros((1, 1), np.float32)},
        rows=1,
        deadline=time.monotonic() + timeout_s,
    )


def reply(value: float = 0.0) -> InferReply:
    outputs = {"y": np.array([[value]], np.float32)}
    return InferReply(outputs=outputs, batch_rows=1, queue_s=0.0, execution_s=0.0)


async def submitted(queue: MemoryQueue, *requests: InferRequest) -> list[asyncio.Task[InferReply]]:
    tasks = [asyncio.create_task(queue.submit(r)) for r in requests]
    await asyncio.sleep(0)  # one turn of the loop: each task runs up to its first await
    return tasks


async def test_each_caller_gets_its_own_reply(queue: MemoryQueue) -> None:
    first, second = await submitted(queue, request(1), request(2))
    entries = await queue.take(LANE, 10)
    assert [e.request.request_id for e in entries] == ["1", "2"]
    entries[1].reply(reply(2))
    entries[0].reply(reply(1))
    assert (await first).outputs["y"] == 1
    assert (await second).outputs["y"] == 2


async def test_take_waits_for_work(queue: MemoryQueue) -> None:
    taking = asyncio.create_task(queue.take(LANE, 10))
    (waiting,) = await submitted(queue, request(7))
    (entry,) = await taking
    assert entry.request.request_id == "7"
    entry.reply(reply(7))
    assert (await waiting).outputs["y"] == 7


async def test_take_gives_no_more_than_asked_oldest_first(queue: MemoryQueue) -> None:
    tasks = await submitted(queue, *(request(n) for n in range(3)))
    taken = await queue.take(LANE, 2)
    assert [e.request.request_id for e in taken] == ["0", "1"]
    assert queue.depth(LANE) == 1
    rest = queue.take_now(LANE, 2)
    assert [e.request.request_id for e in rest] == ["2"]
    assert queue.take_now(LANE, 2) == []
    for entry in (*taken, *rest):
        entry.reply(reply())
    await asyncio.gather(*tasks)


async def test_a_second_reply_changes_nothing(queue: MemoryQueue) -> None:
    (task,) = await submitted(queue, request())
    (entry,) = await queue.take(LANE, 1)
    entry.reply(reply(1))
    entry.reply(reply(2))
    entry.fail(BackendError("too late"))
    assert (await task).outputs["y"] == 1


async def test_an_error_reaches_the_caller(queue: MemoryQueue) -> None:
    (task,) = await submitted(queue, request())
    (entry,) = await queue.take(LANE, 1)
    entry.fail(BackendError("broken"))
    with pytest.raises(BackendError, match="broken"):
        await task


async def test_a_full_lane_refuses_and_keeps_what_it_has(queue: MemoryQueue) -> None:
    tasks = await submitted(queue, *(request(n) for n in range(MAX_DEPTH)))
    with pytest.raises(QueueFullError, match=f"holds {MAX_DEPTH} requests"):
        await queue.submit(request(99))
    for entry in await queue.take(LANE, 10):
        entry.reply(reply())
    assert len(await asyncio.gather(*tasks)) == MAX_DEPTH


async def test_a_cancelled_caller_leaves_a_dead_entry(queue: MemoryQueue) -> None:
    (task,) = await submitted(queue, request())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    (entry,) = await queue.take(LANE, 1)
    assert entry.dead
    entry.reply(reply())  # harmless


async def test_a_deadline_that_passes_answers_the_caller(queue: MemoryQueue) -> None:
    with pytest.raises(DeadlineExceededError, match="ran out of time"):
        await queue.submit(request(timeout_s=0.01))
    (entry,) = await queue.take(LANE, 1)
    assert entry.dead


async def test_an_unopened_lane_refuses(queue: MemoryQueue) -> None:
    with pytest.raises(ModelNotReadyError, match="'other' version 2"):
        await queue.submit(request(lane=Lane("other", 2)))


async def test_a_closed_lane_refuses_and_hands_out_the_rest(queue: MemoryQueue) -> None:
    (task,) = await submitted(queue, request())
    queue.close(LANE)
    with pytest.raises(ModelNotReadyError):
        await queue.submit(request())
    (entry,) = await queue.take(LANE, 10)
    entry.reply(reply())
    await task
    assert await queue.take(LANE, 10) == []


async def test_closing_wakes_a_worker_that_waits(queue: MemoryQueue) -> None:
    taking = asyncio.create_task(queue.take(LANE, 10))
    await asyncio.sleep(0)
    queue.close(LANE)
    assert await taking == []


async def test_everybody_who_waits_can_be_told_at_once(queue: MemoryQueue) -> None:
    taken, waiting, answered = await submitted(queue, request(1), request(2), request(3))
    entry, _, last = (*await queue.take(LANE, 2), *queue.take_now(LANE, 1))
    last.reply(reply(3))
    queue.fail_all(BackendError("the end"))
    entry.reply(reply(1))  # too late, and harmless
    for task in (taken, waiting):
        with pytest.raises(BackendError, match="the end"):
            await task
    assert (await answered).outputs["y"] == 3
