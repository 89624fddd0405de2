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
from services.queueing.memory_queue import Entry, MemoryQueue, Outcome
from services.queueing.records import InferReply, InferRequest, Lane

LANE = Lane("m", 1)
MAX_DEPTH = 4
QUEUES: list[Callable[[], MemoryQueue]] = [lambda: MemoryQueue(MAX_DEPTH)]


class Shelf:
    """An intake that keeps what it is given, until a test answers it."""

    def __init__(self) -> None:
        self.answer: InferReply | None = None
        """What every entry gets at once, instead of a place."""
        self.entries: list[Entry] = []
        self.discarded: list[tuple[Entry, str]] = []

    @property
    def waiting(self) -> int:
        return len(self.entries)

    def accept(self, entry: Entry) -> None:
        if self.answer is not None:
            entry.finish(self.answer)
        else:
            self.entries.append(entry)

    def discard(self, entry: Entry, reason: str) -> None:
        if entry in self.entries:
            self.entries.remove(entry)
            self.discarded.append((entry, reason))

    def take(self) -> Entry:
        """The oldest entry, which from now on runs."""
        return self.entries.pop(0)


class Caller:
    """Whoever sent a request, and all it was told."""

    def __init__(self) -> None:
        self.heard: list[Outcome] = []
        self.first: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    def __call__(self, outcome: Outcome) -> None:
        self.heard.append(outcome)
        if not self.first.done():
            self.first.set_result(outcome)


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


@pytest.fixture(params=QUEUES, ids=["memory"])
def queue(request: pytest.FixtureRequest, shelf: Shelf) -> MemoryQueue:
    made: MemoryQueue = request.param()
    made.open(LANE, shelf)
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
    return InferReply(
        lane=LANE,
        outputs=outputs,
        datatypes={"y": "FP32"},
        batch_rows=1,
        queue_s=0.0,
        execution_s=0.0,
    )


def sent(queue: MemoryQueue, one: InferRequest) -> tuple[Caller, Entry]:
    caller = Caller()
    return caller, queue.submit(one, caller)


async def test_each_caller_gets_its_own_reply(queue: MemoryQueue, shelf: Shelf) -> None:
    first, second = sent(queue, request(1))[0], sent(queue, request(2))[0]
    assert [e.request.request_id for e in shelf.entries] == ["1", "2"]
    one, two = reply(1), reply(2)
    shelf.entries[1].finish(two)
    shelf.entries[0].finish(one)
    assert (first.heard, second.heard) == ([one], [two])


async def test_an_entry_is_handed_over_before_submit_returns(
    queue: MemoryQueue, shelf: Shelf
) -> None:
    caller, entry = sent(queue, request())
    assert shelf.entries == [entry]
    assert not entry.dead
    assert not caller.heard


async def test_an_intake_may_answer_at_once(queue: MemoryQueue, shelf: Shelf) -> None:
    answer = reply()
    shelf.answer = answer
    caller, entry = sent(queue, request(timeout_s=0.01))
    assert caller.heard == [answer]
    assert entry.dead
    shelf.answer = None
    await sent(queue, request(timeout_s=0.02))[0].first  # the deadline of the first counts no more
    assert caller.heard == [answer]


async def test_a_second_reply_changes_nothing(queue: MemoryQueue, shelf: Shelf) -> None:
    caller, _ = sent(queue, request())
    entry, first = shelf.take(), reply(1)
    entry.finish(first)
    entry.finish(reply(2))
    entry.finish(BackendError("too late"))
    entry.cancel()
    assert caller.heard == [first]
    assert not shelf.discarded


async def test_an_error_reaches_the_caller(queue: MemoryQueue, shelf: Shelf) -> None:
    caller, _ = sent(queue, request())
    error = BackendError("broken")
    shelf.take().finish(error)
    assert caller.heard == [error]


async def test_a_caller_that_raises_harms_nobody(queue: MemoryQueue, shelf: Shelf) -> None:
    def raising(_: Outcome) -> None:
        raise RuntimeError("a fault of the edge")

    entry = queue.submit(request(), raising)
    entry.finish(reply())
    assert entry.dead


async def test_a_full_lane_refuses_and_keeps_what_it_has(queue: MemoryQueue, shelf: Shelf) -> None:
    callers = [sent(queue, request(n))[0] for n in range(MAX_DEPTH)]
    refused, entry = sent(queue, request(99))
    (error,) = refused.heard
    assert isinstance(error, QueueFullError)
    assert f"holds {MAX_DEPTH} requests" in str(error)
    assert entry.dead
    answer = reply()
    while shelf.entries:
        shelf.take().finish(answer)
    assert [caller.heard for caller in callers] == [[answer]] * MAX_DEPTH


async def test_a_place_given_back_is_free_again(queue: MemoryQueue, shelf: Shelf) -> None:
    for n in range(MAX_DEPTH):
        sent(queue, request(n))
    shelf.entries[0].cancel()
    caller, _ = sent(queue, request(99))
    assert not caller.heard


async def test_a_cancelled_caller_leaves_a_dead_entry(queue: MemoryQueue, shelf: Shelf) -> None:
    caller, entry = sent(queue, request())
    entry.cancel()
    assert entry.dead
    assert shelf.discarded == [(entry, "cancelled")]
    entry.finish(reply())  # harmless
    entry.cancel()
    assert not caller.heard
    assert shelf.discarded == [(entry, "cancelled")]


async def test_a_deadline_that_passes_answers_the_caller(queue: MemoryQueue, shelf: Shelf) -> None:
    caller, entry = sent(queue, request(timeout_s=0.01))
    error = await caller.first
    assert isinstance(error, DeadlineExceededError)
    assert "ran out of time" in str(error)
    assert time.monotonic() >= entry.request.deadline
    assert shelf.discarded == [(entry, "expired")]


async def test_a_deadline_that_passes_while_it_runs_answers_the_caller(
    queue: MemoryQueue, shelf: Shelf
) -> None:
    caller, _ = sent(queue, request(timeout_s=0.01))
    running = shelf.take()
    assert isinstance(await caller.first, DeadlineExceededError)
    running.finish(reply())
    assert len(caller.heard) == 1


async def test_deadlines_pass_in_their_own_order(queue: MemoryQueue) -> None:
    late = sent(queue, request(timeout_s=0.05))[0]
    early = sent(queue, request(timeout_s=0.01))[0]
    await early.first
    assert not late.heard
    assert isinstance(await late.first, DeadlineExceededError)


async def test_an_unopened_lane_refuses(queue: MemoryQueue) -> None:
    caller, _ = sent(queue, request(lane=Lane("other", 2)))
    (error,) = caller.heard
    assert isinstance(error, ModelNotReadyError)
    assert "'other' version 2" in str(error)


async def test_a_closed_lane_refuses_and_leaves_the_rest_to_its_intake(
    queue: MemoryQueue, shelf: Shelf
) -> None:
    waiting, _ = sent(queue, request())
    queue.close(LANE)
    (error,) = sent(queue, request())[0].heard
    assert isinstance(error, ModelNotReadyError)
    assert not waiting.heard
    answer = reply()
    shelf.take().finish(answer)
    assert waiting.heard == [answer]


async def test_an_entry_of_a_closed_lane_can_still_be_cancelled(
    queue: MemoryQueue, shelf: Shelf
) -> None:
    _, entry = sent(queue, request())
    queue.close(LANE)
    entry.cancel()
    assert shelf.discarded == [(entry, "cancelled")]


async def test_everybody_who_waits_can_be_told_at_once(queue: MemoryQueue, shelf: Shelf) -> None:
    (runs, _), (waits, waiting), (answered, _) = (sent(queue, request(n)) for n in range(3))
    running, answer = shelf.take(), reply(3)
    shelf.entries[1].finish(answer)
    error = BackendError("the end")
    queue.fail_all(error)
    running.finish(reply(1))  # too late, and harmless
    assert runs.heard == waits.heard == [error]
    assert answered.heard == [answer]
    assert shelf.discarded == [(waiting, "failed")]
