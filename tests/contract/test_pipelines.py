"""Pipelines on every queue: each request is answered once, and its steps obey what it asked for."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from model_store.pipelines.items import MAX_ITEMS
from services.errors import (
    BackendError,
    DeadlineExceededError,
    InputRefusedError,
    ModelNotReadyError,
    PayloadTooLargeError,
    RateLimitedError,
    ServingError,
    UnsupportedError,
)
from services.inference.pipelines.pipeline_run import MAX_RESTARTS
from services.queueing.memory_queue import Entry, MemoryQueue
from services.queueing.records import InferReply, SequenceStep
from tests.fixtures.pipeline_parts import BRANCHES, ITEMS, PipelineParts
from tests.fixtures.queue_ends import (
    LANE,
    Caller,
    redis_gateway,
    redis_worker,
    reply,
    reply_of,
    request,
)
from tests.fixtures.redis_servers import FLAVOURS, RedisProcess, running_redis, until

VALUE = 3.0


@dataclass
class Ends:
    """A gateway's queue, and the pipeline that answers it."""

    gateway: MemoryQueue
    parts: PipelineParts

    def send(self, name: object = "r", **fields: Any) -> Caller:
        """Sends a request of one row."""
        return Caller(self.gateway, request(name, **fields))

    async def answer(self, *models: str, value: float = VALUE) -> None:
        """Answers one request of each model."""
        for model in models:
            await self.parts[model].holds(1)
            self.parts[model].take().finish(reply(value))


@asynccontextmanager
async def opened(kind: str, folder: Path, parts: PipelineParts) -> AsyncIterator[Ends]:
    """Opens the lane of a pipeline behind a queue."""
    if kind == "memory":
        queue = MemoryQueue(10)
        queue.open(LANE, parts.lane)
        yield Ends(queue, parts)
        return
    async with (
        running_redis(kind, folder) as redis,
        redis_worker(redis.url, "worker", parts.lane),
        redis_gateway(redis.url, "gateway", 10) as gateway,
    ):
        yield Ends(gateway, parts)


@pytest.fixture(params=("memory", *FLAVOURS))
async def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def ends(kind: str, tmp_path: Path) -> AsyncIterator[Ends]:
    async with opened(kind, tmp_path, PipelineParts()) as ends:
        yield ends


@pytest.fixture
async def items(kind: str, tmp_path: Path) -> AsyncIterator[Ends]:
    async with opened(kind, tmp_path, PipelineParts(ITEMS, capacity=64)) as ends:
        yield ends


async def test_steps_run_in_order_and_branches_at_the_same_time(ends: Ends) -> None:
    caller, parts = ends.send(), ends.parts
    await ends.answer("a", value=1.0)
    (left,), (right,) = await parts["b"].holds(1), await parts["c"].holds(1)
    assert left.request.inputs["x"].tolist() == [[1.0]]
    left.finish(reply(2.0))
    assert not parts["d"].entries
    right.finish(reply(3.0))
    (last,) = await parts["d"].holds(1)
    assert {name: array.tolist() for name, array in last.request.inputs.items()} == {
        "x": [[2.0]],
        "z": [[3.0]],
    }
    last.finish(reply(4.0))
    outcome = await caller.outcome()
    assert isinstance(outcome, InferReply)
    assert outcome.lane == LANE
    assert (outcome.queue_s, outcome.execution_s) == (1.0, 2.0)  # of four steps
    assert await caller.value() == 4.0
    assert len(caller.heard) == 1


async def test_a_step_has_the_deadline_the_priority_and_the_id_of_its_request(ends: Ends) -> None:
    caller = ends.send("mine", priority=2, timeout_s=20.0)
    (entry,) = await ends.parts["a"].holds(1)
    assert entry.request.request_id == "mine/first"
    assert entry.request.priority == 2
    assert abs(entry.request.deadline - caller.entry.request.deadline) < 0.5
    assert not entry.request.alone
    assert entry.request.outputs == ("y",)


async def test_a_cancelled_caller_cancels_the_steps(ends: Ends) -> None:
    caller, parts = ends.send(), ends.parts
    await ends.answer("a")
    (left,), (right,) = await parts["b"].holds(1), await parts["c"].holds(1)
    caller.entry.cancel()
    await until(lambda: left.dead and right.dead)
    assert [reason for _, reason in parts["b"].discarded] == ["cancelled"]
    assert not parts["b"].entries
    left.finish(reply())  # harmless
    assert parts.lane.waiting == 0
    assert not parts["d"].entries
    assert not caller.heard


async def test_a_deadline_that_passes_ends_the_steps(ends: Ends) -> None:
    caller, parts = ends.send(timeout_s=0.3), ends.parts
    await ends.answer("a")
    (left,) = await parts["b"].holds(1)
    assert isinstance(await caller.outcome(), DeadlineExceededError)
    assert time.monotonic() >= caller.entry.request.deadline
    await until(lambda: left.dead)
    assert len(caller.heard) == 1
    assert parts.lane.waiting == 0


@pytest.mark.parametrize(
    "error",
    [BackendError("broken"), InputRefusedError("no image"), RateLimitedError("slow down", 2.5)],
)
async def test_an_error_of_a_step_names_it_and_ends_the_others(
    ends: Ends, error: ServingError
) -> None:
    caller, parts = ends.send(), ends.parts
    await ends.answer("a")
    (left,), (right,) = await parts["b"].holds(1), await parts["c"].holds(1)
    right.finish(error)
    found = await caller.outcome()
    assert type(found) is type(error)
    assert str(found) == f"step 'right': {error}"
    assert left.dead
    left.finish(reply())
    assert len(caller.heard) == 1


async def test_a_bad_request_fails_alone(ends: Ends) -> None:
    callers = [ends.send(n) for n in range(3)]
    for entry in list(await ends.parts["a"].holds(3)):
        entry.finish(BackendError("bad") if entry.request.request_id == "1/first" else reply())
    await ends.parts["b"].holds(2)
    for model in ("b", "c", "d"):
        for entry in list(await ends.parts[model].holds(2)):
            entry.finish(reply(VALUE))
    assert isinstance(await callers[1].outcome(), BackendError)
    assert [await callers[n].value() for n in (0, 2)] == [VALUE, VALUE]


async def test_a_step_that_gives_several_answers_is_refused(ends: Ends) -> None:
    caller = ends.send()
    (entry,) = await ends.parts["a"].holds(1)
    entry.part(msgspec.structs.replace(reply(), is_last=False))
    error = await caller.outcome()
    assert isinstance(error, UnsupportedError)
    assert "step 'first'" in str(error)
    assert entry.dead


async def test_a_pipeline_keeps_no_sequences() -> None:
    parts, queue = PipelineParts(), MemoryQueue(10)
    queue.open(LANE, parts.lane)
    step = SequenceStep("s", is_start=True)
    caller = Caller(queue, msgspec.structs.replace(request(), sequence=step))
    assert isinstance(await caller.outcome(), UnsupportedError)


async def test_a_request_uses_one_version_of_each_model(ends: Ends) -> None:
    caller, parts = ends.send(), ends.parts
    await ends.answer("a")
    left, right = parts["b"], parts["c"]
    await left.holds(1)
    parts.load("d", 2)
    parts.load("b", 2)
    left.take().finish(reply())
    right.take().finish(reply())
    (last,) = await parts.workers[parts.planner.plan().steps[-1].lane._replace(version=1)].holds(1)
    last.finish(reply(VALUE))
    assert await caller.value() == VALUE
    ends.send()
    await ends.answer("a")
    await parts["b"].holds(1)
    assert not left.entries


async def test_a_request_begins_anew_when_a_version_is_unloaded_meanwhile(ends: Ends) -> None:
    caller, parts = ends.send(), ends.parts
    await ends.answer("a")
    (left,), (right,) = list(await parts["b"].holds(1)), list(await parts["c"].holds(1))
    parts.load("d", 2)
    parts.unload("d", 1)
    left.finish(reply())
    right.finish(reply())
    await ends.answer("a", value=1.0)
    for entry in (left, right):
        assert entry.dead
    parts["b"].entries.remove(left)
    parts["c"].entries.remove(right)
    await ends.answer("b", "c", "d", value=5.0)
    assert await caller.value() == 5.0
    assert len(caller.heard) == 1


async def test_a_request_does_not_begin_anew_for_ever(ends: Ends) -> None:
    caller, parts = ends.send(), ends.parts
    for version in range(1, MAX_RESTARTS + 2):
        (first,) = list(await parts["a"].holds(1))
        parts.load("b", version + 1)
        parts.unload("b", version)
        parts["a"].take()
        first.finish(reply())
    error = await caller.outcome()
    assert isinstance(error, ModelNotReadyError)
    assert error.retryable
    assert "step 'left'" in str(error)


async def test_a_pipeline_without_a_part_refuses_with_its_range() -> None:
    parts, queue = PipelineParts(), MemoryQueue(10)
    queue.open(LANE, parts.lane)
    parts.unload("c")
    error = await Caller(queue, request()).outcome()
    assert isinstance(error, ModelNotReadyError)
    assert (parts.lane.capacity, parts.lane.background_capacity) == (0, 0)
    assert "step 'right' needs c@^1" in str(error)


async def find(ends: Ends, found: Sequence[bool], width: int | None = None) -> None:
    """Answers the first step with items, numbered from 0."""
    (entry,) = await ends.parts["finder"].holds(1)
    ends.parts["finder"].take()
    count = len(found) if width is None else width
    numbers = np.arange(count, dtype=np.float32).reshape(1, count, 1)
    entry.finish(reply_of({"items": numbers, "found": np.array([found], np.bool_)}))


def doubled(entry: Entry) -> Mapping[str, Any]:
    return {"y": entry.request.inputs["x"] * 2}


async def test_the_items_of_a_request_run_in_as_few_batches_as_fit(items: Ends) -> None:
    caller, shelf = items.send(), items.parts["b"]
    await find(items, [True] * 3 + [False] * 2 + [True] * 3)
    first, second = await shelf.holds(2)
    assert first.request.inputs["x"].ravel().tolist() == [0, 1, 2, 5]  # of four rows at most
    assert second.request.inputs["x"].ravel().tolist() == [6, 7]
    assert (first.request.rows, second.request.rows) == (4, 2)
    for entry in (second, first):
        entry.finish(reply_of(doubled(entry)))
    outcome = await caller.outcome()
    assert isinstance(outcome, InferReply)
    assert outcome.outputs["y"].ravel().tolist() == [0, 2, 4, 0, 0, 10, 12, 14]
    assert outcome.outputs["y"].shape == (1, 8, 1)


async def test_many_batches_of_one_request_are_sent_a_few_at_a_time(items: Ends) -> None:
    caller, shelf = items.send(), items.parts["b"]
    await find(items, [True] * MAX_ITEMS)
    for _ in range(0, MAX_ITEMS // 4, 64):  # as many as the shelf has places for
        for entry in reversed(list(await shelf.holds(64))):
            shelf.entries.remove(entry)
            entry.finish(reply_of(doubled(entry)))
    outcome = await caller.outcome()
    assert isinstance(outcome, InferReply)
    assert outcome.outputs["y"].ravel().tolist() == [2.0 * n for n in range(MAX_ITEMS)]


async def test_a_caller_that_leaves_stops_the_batches_that_are_not_sent() -> None:
    parts, queue = PipelineParts(ITEMS), MemoryQueue(10)
    queue.open(LANE, parts.lane)
    caller = Caller(queue, request())
    await find(Ends(queue, parts), [True] * MAX_ITEMS)
    sent = len(parts["b"].entries)
    assert 0 < sent < MAX_ITEMS // 4
    caller.entry.cancel()
    assert [reason for _, reason in parts["b"].discarded] == ["cancelled"] * sent
    await asyncio.sleep(0)
    assert not parts["b"].entries


@pytest.mark.parametrize("found", [[], [False] * 4])
async def test_a_request_without_items_runs_the_other_steps(items: Ends, found: list[bool]) -> None:
    caller = items.send()
    await find(items, found)
    outcome = await caller.outcome()
    assert isinstance(outcome, InferReply)
    assert outcome.outputs["y"].shape == (1, len(found), 1)
    assert not items.parts["b"].entries


async def test_a_million_items_are_refused(items: Ends) -> None:
    caller = items.send()
    await find(items, [True] * 1_000_000)
    error = await caller.outcome()
    assert isinstance(error, PayloadTooLargeError)
    assert "1,000,000 items" in str(error)
    assert "step 'score'" in str(error)
    assert not items.parts["b"].entries


async def test_items_and_marks_of_different_number_are_a_fault_of_the_model(items: Ends) -> None:
    caller = items.send()
    await find(items, [True] * 3, width=5)
    error = await caller.outcome()
    assert isinstance(error, BackendError)
    assert "step 'score'" in str(error)


async def test_an_item_that_fails_fails_its_request_alone(items: Ends) -> None:
    bad, good = items.send("bad"), items.send("good")
    for entry in list(await items.parts["finder"].holds(2)):
        outputs = {"items": np.ones((1, 6, 1), np.float32), "found": np.ones((1, 6), np.bool_)}
        entry.finish(reply_of(outputs))
    for entry in list(await items.parts["b"].holds(4)):
        is_bad = entry.request.request_id == "bad/score"
        entry.finish(BackendError("bad") if is_bad else reply_of(doubled(entry)))
    assert isinstance(await bad.outcome(), BackendError)
    outcome = await good.outcome()
    assert isinstance(outcome, InferReply)
    assert outcome.outputs["y"].ravel().tolist() == [2.0] * 6
    assert (len(bad.heard), len(good.heard)) == (1, 1)


@pytest.fixture
async def branches(kind: str, tmp_path: Path) -> AsyncIterator[Ends]:
    async with opened(kind, tmp_path, PipelineParts(BRANCHES)) as ends:
        yield ends


@pytest.mark.parametrize(("takes_left", "joined"), [(True, 2.0), (False, 3.0)])
async def test_a_row_runs_through_its_branch_alone(
    branches: Ends, takes_left: bool, joined: float
) -> None:
    caller, parts = branches.send(), branches.parts
    (entry,) = await parts["router"].holds(1)
    marks = {"is_left": np.array([takes_left]), "is_right": np.array([not takes_left])}
    entry.finish(reply_of(marks))
    await branches.answer("b" if takes_left else "c", value=joined)
    (last,) = await parts["a"].holds(1)
    assert last.request.inputs["x"].tolist() == [[joined]]
    last.finish(reply(9.0))
    outcome = await caller.outcome()
    assert isinstance(outcome, InferReply)
    found = {name: array.tolist() for name, array in outcome.outputs.items()}
    left = 2.0 if takes_left else 0.0
    assert found == {"y": [[9.0]], "joined": [[joined]], "left": [[left]]}
    assert not parts["b"].entries
    assert not parts["c"].entries


@pytest.mark.parametrize("steps_done", [0, 1])
async def test_the_requests_of_a_dead_worker_are_answered_once_by_another(
    redis: RedisProcess, impatient: None, steps_done: int
) -> None:
    dying, living = PipelineParts(), PipelineParts()
    async with redis_gateway(redis.url, "gateway", 10) as gateway, AsyncExitStack() as stack:
        ends = Ends(gateway, dying)
        async with redis_worker(redis.url, "dying", dying.lane):
            callers = [ends.send(n) for n in range(3)]
            entries = list(await dying["a"].holds(3))
            for entry in entries[:steps_done]:
                entry.finish(reply())
            if steps_done:
                await dying["b"].holds(1)
        await stack.enter_async_context(redis_worker(redis.url, "living", living.lane))
        answered = 0
        while answered < 3:
            await until(lambda: any(living[model].entries for model in "abcd"))
            for model in "abcd":
                for entry in list(living[model].entries):
                    living[model].entries.remove(entry)
                    answered += model == "d"
                    entry.finish(reply(VALUE))
        assert [await caller.value() for caller in callers] == [VALUE] * 3
        assert [len(caller.heard) for caller in callers] == [1, 1, 1]
