"""Small requests that are sent together go to the process with the model as one."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.errors import (
    BackendError,
    DeadlineExceededError,
    DeviceError,
    QueueFullError,
    WorkerProcessDiedError,
)
from services.queueing.memory_queue import Entry, MemoryQueue
from services.queueing.merged_requests import FAST_ROW_S, MERGED_ROWS, SLOW_REPLIES
from services.queueing.records import InferReply, InferRequest, ServedVersion
from tests.fixtures.queue_ends import (
    LANE,
    Caller,
    SharedMemoryEnds,
    Shelf,
    redis_gateway,
    redis_worker,
    reply_of,
)
from tests.fixtures.redis_servers import running_redis, until
from tests.fixtures.signatures import one_to_one

LARGEST_BATCH = 128


OTHER = LANE._replace(version=2)


class Edge:
    """A gateway, and a shelf at the other end of its queue; requests have one deadline.

    Attributes:
        shelf: receives what the gateway sends.
    """

    def __init__(self, shelf: Shelf, queue: MemoryQueue) -> None:
        self.shelf, self._queue = shelf, queue
        self._deadline = time.monotonic() + 60

    def send(self, value: float, rows: int = 1, **fields: Any) -> Caller:
        """Sends rows of a value."""
        request = InferRequest(
            request_id=f"r{value:g}",
            lane=LANE,
            inputs={"x": np.full((rows, 1), value, np.float32)},
            rows=rows,
            deadline=fields.pop("deadline", self._deadline),
            **fields,
        )
        return Caller(self._queue, request)

    async def sent(self, count: int) -> list[Entry]:
        """Waits for that many entries, and takes them."""
        entries = list(await self.shelf.holds(count))
        self.shelf.entries.clear()
        return entries

    async def make_fast(self) -> None:
        """Answers one request as a fast model does."""
        caller = self.send(0)
        answer(*await self.sent(1))
        await caller.outcome()


def served() -> list[ServedVersion]:
    """Returns the versions that are served."""
    signature = one_to_one((1,), rows=LARGEST_BATCH)
    return [ServedVersion(lane=lane, state="ready", signature=signature) for lane in (LANE, OTHER)]


@pytest.fixture
async def ends() -> AsyncIterator[SharedMemoryEnds]:
    """A model process that serves, and knows of no edge."""
    ends = SharedMemoryEnds(10_000)
    for version in served():
        ends.directory.announce(version)
    ends.directory.make_live(LANE)
    yield ends
    ends.model.end()


@pytest.fixture
async def link(ends: SharedMemoryEnds) -> AsyncIterator[Edge]:
    """An edge that shares memory with a model process."""
    shelf = Shelf()
    ends.model.open(LANE, shelf)
    async with ends.edge() as queue:
        edge = Edge(shelf, queue)
        await edge.make_fast()
        yield edge


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Edge]:
    """A gateway with Redis between it and a worker."""
    shelf = Shelf(10_000)
    async with (
        running_redis("redis", tmp_path) as redis,
        redis_worker(redis.url, "worker", shelf),
        redis_gateway(redis.url, "g", max_depth=10_000, versions=served()) as queue,
    ):
        edge = Edge(shelf, queue)
        await edge.make_fast()
        yield edge


@pytest.fixture(params=["link", "gateway"])
def edge(request: pytest.FixtureRequest) -> Edge:
    """Each sender in turn."""
    found: Edge = request.getfixturevalue(request.param)
    return found


def answer(*entries: Entry, row_s: float = FAST_ROW_S / 2) -> None:
    """Answers each with ten times its input."""
    for entry in entries:
        array = entry.request.inputs["x"]
        rows = entry.request.rows
        assert array.shape == (rows, 1)
        entry.finish(
            InferReply(
                lane=LANE, outputs={"y": 10 * array}, datatypes={"y": "FP32"}, batch_rows=rows,
                queue_s=0.0, execution_s=row_s * rows,
            )
        )  # fmt: skip


async def values(callers: list[Caller]) -> list[list[float]]:
    """Returns the values that each got."""
    found = []
    for caller in callers:
        outcome = await caller.outcome()
        assert isinstance(outcome, InferReply), outcome
        found.append(outcome.outputs["y"].ravel().tolist())
    return found


async def test_each_caller_gets_its_own_rows(edge: Edge) -> None:
    callers = [edge.send(n, rows=1 + n % 3) for n in range(40)]
    entries = await edge.sent(3)
    assert [entry.request.rows for entry in entries] == [31, 32, 16]
    assert sum(entry.request.merged for entry in entries) == 40
    answer(*entries)
    assert await values(callers) == [[10.0 * n] * (1 + n % 3) for n in range(40)]


async def test_answers_that_lie_in_shared_memory_are_each_callers_own(
    ends: SharedMemoryEnds, link: Edge
) -> None:
    callers = [link.send(n) for n in range(MERGED_ROWS)]
    (entry,) = await link.sent(1)
    large = np.repeat(entry.request.inputs["x"], 1000, axis=1)
    entry.finish(reply_of({"y": large}))
    for n, caller in enumerate(callers):
        outcome = await caller.outcome()
        assert isinstance(outcome, InferReply)
        assert outcome.outputs["y"].shape == (1, 1000)
        assert (outcome.outputs["y"] == n).all()
        assert outcome.outputs["y"].base is None
    del entry, large, outcome
    await until(lambda: not ends.model.used_bytes)


async def test_requests_that_differ_go_apart(edge: Edge) -> None:
    now = time.monotonic()
    for _ in range(2):
        edge.send(1, deadline=now + 30)
        edge.send(1, deadline=now + 30, priority=2)
        edge.send(1, deadline=now + 30, outputs=("y",))
        edge.send(1, deadline=now + 20)
        edge.send(1, deadline=now + 30, accuracy="high")
    entries = await edge.sent(6)
    assert sorted(entry.request.merged for entry in entries) == [1, 1, 2, 2, 2, 2]


async def test_requests_of_models_that_became_slow_go_apart(edge: Edge) -> None:
    for _ in range(SLOW_REPLIES):
        callers = [edge.send(n) for n in range(2)]
        answer(*await edge.sent(1), row_s=2 * FAST_ROW_S)
        await values(callers)
    callers = [edge.send(n) for n in range(4)]
    entries = await edge.sent(4)
    assert [entry.request.merged for entry in entries] == [1] * 4
    answer(*entries)  # fast again
    assert await values(callers) == [[10.0 * n] for n in range(4)]
    callers = [edge.send(n) for n in range(4)]
    answer(*await edge.sent(1))
    await values(callers)


async def test_one_that_left_costs_the_others_nothing(edge: Edge) -> None:
    callers = [edge.send(n) for n in range(4)]
    callers[1].entry.cancel()  # before it is sent
    (entry,) = await edge.sent(1)
    assert entry.request.merged == 3
    callers[2].entry.cancel()
    answer(entry)
    assert await values([callers[0], callers[3]]) == [[0.0], [30.0]]
    assert not callers[1].heard
    assert not callers[2].heard


async def test_one_that_nobody_waits_for_any_more_leaves_the_worker(gateway: Edge) -> None:
    callers = [gateway.send(n) for n in range(3)]
    (entry,) = await gateway.shelf.holds(1)
    for caller in callers[:2]:
        caller.entry.cancel()
    answered = gateway.send(3)
    await gateway.shelf.holds(2)  # a later notice would have come before it
    callers[2].entry.cancel()
    await until(lambda: entry not in gateway.shelf.entries)
    answer(*gateway.shelf.entries)
    assert await values([answered]) == [[30.0]]


async def test_loop_is_free_between_answers_to_many(gateway: Edge) -> None:
    callers = [gateway.send(n) for n in range(20 * MERGED_ROWS)]
    answer(*await gateway.sent(20))
    counts = [0]
    while counts[-1] < len(callers):
        await asyncio.sleep(0)
        counts.append(sum(len(caller.heard) for caller in callers))
    assert max(np.diff(counts)) <= 2 * MERGED_ROWS


@pytest.mark.parametrize("error", [BackendError("bad row"), WorkerProcessDiedError("SIGSEGV")])
async def test_error_of_the_model_is_that_of_the_request_at_fault(
    edge: Edge, error: BackendError
) -> None:
    callers = [edge.send(n) for n in range(4)]
    (entry,) = await edge.sent(1)
    entry.finish(error)
    entries = await edge.sent(4)
    entries[2].finish(error)
    answer(*entries[:2], *entries[3:])
    failed = await callers.pop(2).outcome()
    assert type(failed) is type(error)
    assert await values(callers) == [[0.0], [10.0], [30.0]]


@pytest.mark.parametrize("error", [QueueFullError("full"), DeviceError("no memory")])
async def test_error_that_no_request_causes_is_told_to_each(
    edge: Edge, error: QueueFullError
) -> None:
    callers = [edge.send(n) for n in range(3)]
    (entry,) = await edge.sent(1)
    entry.finish(error)
    assert [type(await caller.outcome()) for caller in callers] == [type(error)] * 3
    assert not edge.shelf.entries


async def test_late_requests_are_told_by_their_own_names(edge: Edge) -> None:
    callers = [edge.send(n) for n in range(3)]
    (entry,) = await edge.sent(1)
    entry.finish(DeadlineExceededError("request 'r0' reached its deadline"))
    for n, caller in enumerate(callers):
        outcome = await caller.outcome()
        assert isinstance(outcome, DeadlineExceededError)
        assert f"'r{n}'" in str(outcome)


async def test_model_with_several_answers_gets_its_requests_one_by_one(edge: Edge) -> None:
    callers = [edge.send(n) for n in range(2)]
    (entry,) = await edge.sent(1)
    entry.part(reply_of({"y": entry.request.inputs["x"]}, is_last=False))
    entries = await edge.sent(2)
    await until(lambda: entry.dead)
    answer(*entries)
    assert await values(callers) == [[0.0], [10.0]]


async def test_requests_to_a_version_that_is_withdrawn_in_their_turn_still_run(
    ends: SharedMemoryEnds, link: Edge
) -> None:
    sent: list[Caller] = []
    closed: list[bool] = []
    ends.directory.withdraw(LANE)
    ends.model.close(LANE, lambda: closed.append(True))
    while not closed:  # some wait to be merged in the turn in which the edge learns it
        caller = link.send(len(sent))
        if not caller.heard:  # the edge did not know it yet
            sent.append(caller)
        await asyncio.sleep(0)
    while not all(caller.heard for caller in sent):
        answer(*link.shelf.entries)
        link.shelf.entries.clear()
        await asyncio.sleep(0)
    assert await values(sent) == [[10.0 * n] for n in range(len(sent))]
