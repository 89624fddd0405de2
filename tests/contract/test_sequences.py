"""Sequences on a queue between processes: each has one worker, and loses its state with it.

Behind Redis, the workers are processes; behind shared memory, instances of the model process.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flambeau.protocol.sequence_spec import Sequences
from services.errors import ModelNotReadyError, QueueFullError, SequenceLostError
from services.inference.scheduling.sequence_slots import SequenceSlots, sequence_rules
from services.queueing.memory_queue import Entry, MemoryQueue
from services.queueing.records import InferRequest, SequenceStep
from services.queueing.redis_streams import sender
from services.queueing.redis_streams.clients import Commands
from services.queueing.redis_streams.keys import LaneKeys
from services.queueing.redis_streams.step_sender import LOST_AFTER_MISSES, StepSender
from services.telemetry.metrics import Metrics
from tests.fixtures.queue_ends import (
    LANE,
    MAX_DEPTH,
    Caller,
    SharedMemoryEnds,
    Shelf,
    redis_gateway,
    redis_worker,
    reply,
)
from tests.fixtures.redis_servers import FLAVOURS, RedisProcess, running_redis, until
from tests.fixtures.signatures import one_to_one

pytestmark = pytest.mark.usefixtures("impatient")


class Fleet:
    """One gateway, and two workers with a shelf each.

    Attributes:
        another: opens another gateway's end of the same queue.
    """

    def __init__(
        self,
        gateway: MemoryQueue,
        shelves: tuple[Shelf, Shelf],
        another: Callable[[], AbstractAsyncContextManager[MemoryQueue]] | None = None,
    ) -> None:
        self.gateway = gateway
        self.shelves = shelves
        self.another = another

    def step(self, name: str, control: str = "", *, elements: int = 1) -> Caller:
        """Sends a step; `control` names the first (`start`) and the last (`end`)."""
        return Caller(self.gateway, step_request(name, control, elements))

    async def owner(self) -> Shelf:
        """Waits until exactly one worker holds a request, and returns its shelf."""
        await until(lambda: sum(len(shelf.entries) for shelf in self.shelves) == 1)
        return next(shelf for shelf in self.shelves if shelf.entries)

    async def run(self, name: str, control: str = "", value: float = 0.0) -> Shelf:
        """Runs a step, and returns the shelf of its worker."""
        caller = self.step(name, control)
        shelf = await self.owner()
        shelf.take().finish(reply(value))
        assert await caller.value() == value
        return shelf


def step_request(name: str, control: str = "", elements: int = 1) -> InferRequest:
    """Returns a step of one row."""
    return InferRequest(
        request_id=f"{name} {control}",
        lane=LANE,
        inputs={"x": np.zeros((1, elements), np.float32)},
        rows=1,
        deadline=time.monotonic() + 30,
        sequence=SequenceStep(name, "start" in control, "end" in control),
    )


class Instances(Shelf):
    """Intake of the model process: its instances hold the steps of the sequences bound to them."""

    def __init__(self) -> None:
        super().__init__()
        rules = sequence_rules(one_to_one((1,), sequence=Sequences()))
        self._slots = SequenceSlots(LANE, rules, 2, lambda: (), Metrics(""))
        self.shelves = InstanceShelf(self._slots), InstanceShelf(self._slots)

    @property
    def waiting(self) -> int:
        return sum(shelf.waiting for shelf in self.shelves)

    def accept(self, entry: Entry) -> None:
        assert entry.request.sequence is not None
        try:
            self._slots.bind(entry.request.sequence, time.monotonic())
        except SequenceLostError as error:
            entry.finish(error)
            return
        slot = self._slots.of(entry.request)
        assert slot is not None
        self.shelves[slot].accept(entry)

    def discard(self, entry: Entry, reason: str) -> None:
        for shelf in self.shelves:
            shelf.discard(entry, reason)


class InstanceShelf(Shelf):
    """Steps that wait for one instance."""

    def __init__(self, slots: SequenceSlots) -> None:
        super().__init__()
        self._slots = slots

    def take(self) -> Entry:
        entry = super().take()
        self._slots.ran([entry], time.monotonic())
        return entry


@asynccontextmanager
async def redis_fleet(redis: RedisProcess) -> AsyncIterator[Fleet]:
    """Opens a gateway and two workers with Redis between them."""
    shelves = Shelf(), Shelf()
    async with (
        redis_worker(redis.url, "a", shelves[0]),
        redis_worker(redis.url, "b", shelves[1]),
        redis_gateway(redis.url, "g") as gateway,
    ):
        yield Fleet(gateway, shelves, partial(redis_gateway, redis.url, "other"))


@asynccontextmanager
async def shared_memory_fleet() -> AsyncIterator[Fleet]:
    """Opens an edge, and a model process with two instances."""
    ends, instances = SharedMemoryEnds(), Instances()
    ends.announce()
    ends.model.open(LANE, instances)
    async with ends.edge() as queue:
        yield Fleet(queue, instances.shelves, ends.edge)
    ends.model.end()


@pytest.fixture(params=("shared memory", *FLAVOURS))
async def fleet(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Fleet]:
    if request.param == "shared memory":
        async with shared_memory_fleet() as fleet:
            yield fleet
    else:
        async with running_redis(request.param, tmp_path) as redis, redis_fleet(redis) as fleet:
            yield fleet


async def test_steps_go_to_the_worker_that_has_the_sequence(fleet: Fleet) -> None:
    owners = {name: await fleet.run(name, "start") for name in map(str, range(12))}
    assert len(set(map(id, owners.values()))) == 2, "sequences are spread over the workers"
    for turn in range(3):
        for name, owner in owners.items():
            assert await fleet.run(name, value=turn) is owner


async def test_steps_of_one_sequence_go_on_one_at_a_time(fleet: Fleet) -> None:
    calls = [fleet.step("s", "start"), *(fleet.step("s", elements=n) for n in (200_000, 1, 1))]
    for number, call in enumerate(calls):
        shelf = await fleet.owner()
        assert len(shelf.entries) == 1
        assert shelf.entries[0].request.sequence == call.entry.request.sequence
        shelf.take().finish(reply(number))
        assert await call.value() == number


async def test_another_gateway_finds_the_same_worker(fleet: Fleet) -> None:
    owner = await fleet.run("s", "start")
    assert fleet.another is not None
    async with fleet.another() as other:
        for _ in range(3):
            assert await Fleet(other, fleet.shelves).run("s") is owner


@pytest.mark.parametrize("control", ["", "end"])
async def test_step_of_a_sequence_without_an_owner_is_refused(fleet: Fleet, control: str) -> None:
    error = await fleet.step("s", control).outcome()
    assert isinstance(error, SequenceLostError)
    assert "start it again" in str(error)


async def test_sequence_that_has_ended_has_no_owner(fleet: Fleet) -> None:
    await fleet.run("s", "start")
    await fleet.run("s", "end")
    assert isinstance(await fleet.step("s").outcome(), SequenceLostError)
    await fleet.run("s", "start, end")
    assert isinstance(await fleet.step("s").outcome(), SequenceLostError)


async def test_step_that_takes_long_is_not_lost_while_its_worker_lives(
    redis: RedisProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "LOOK_FOR_LOST_EVERY_S", 0.05)
    looked = Looks(monkeypatch)
    shelf = Shelf()
    async with redis_worker(redis.url, "w", shelf), redis_gateway(redis.url, "g") as gateway:
        call = Fleet(gateway, (shelf, Shelf())).step("s", "start")
        await shelf.holds(1)
        await until(lambda: looked.count > 2 * LOST_AFTER_MISSES)
        shelf.take().finish(reply(1))
        assert await call.value() == 1


class Looks:
    """Counts the answers of Redis to gateways that look for lost steps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        lost = StepSender.lost

        async def counted(steps: StepSender, redis: Commands, asked: Any) -> list[bool]:
            found = await lost(steps, redis, asked)
            self.count += 1
            return found

        monkeypatch.setattr(StepSender, "lost", counted)


async def test_cancelled_step_leaves_its_worker_and_lets_the_next_go_on(fleet: Fleet) -> None:
    owner = await fleet.run("s", "start")
    cancelled, following = fleet.step("s"), fleet.step("s")
    await owner.holds(1)
    cancelled.entry.cancel()
    await until(lambda: len(owner.discarded) == 1)
    await owner.holds(1)
    owner.take().finish(reply(2))
    assert await following.value() == 2
    assert not cancelled.heard


async def test_death_of_the_worker_loses_its_sequences_and_no_others(redis: RedisProcess) -> None:
    first, second = Shelf(), Shelf()
    async with redis_worker(redis.url, "stays", second), redis_gateway(redis.url, "g") as gateway:
        async with redis_worker(redis.url, "dies", first):
            fleet = Fleet(gateway, (first, second))
            owners = {name: await fleet.run(name, "start") for name in map(str, range(12))}
            doomed = next(name for name, owner in owners.items() if owner is first)
            spared = next(name for name, owner in owners.items() if owner is second)
            under_way, behind = fleet.step(doomed), fleet.step(doomed)
            await first.holds(1)
        first.entries.clear()
        for call in (under_way, behind):
            assert isinstance(await call.outcome(), SequenceLostError)
        assert await fleet.run(spared) is second
        assert await fleet.run(doomed, "start") is second
        assert await fleet.run(doomed) is second


async def test_first_step_sent_to_a_dead_worker_starts_on_another(redis: RedisProcess) -> None:
    dies, stays = Shelf(), Shelf()
    async with redis_worker(redis.url, "stays", stays), redis_gateway(redis.url, "g") as gateway:
        fleet = Fleet(gateway, (dies, stays))
        async with redis_worker(redis.url, "dies", dies):
            started = await dies_with_a_start(fleet, dies, stays)
        # All may choose the dead worker, whose stream takes MAX_DEPTH with the step it held.
        calls = [fleet.step(f"new {n}", "start") for n in range(MAX_DEPTH - 2)]
        calls += [fleet.step("large", "start", elements=200_000), started]
        for number in range(len(calls)):
            await until(lambda: stays.entries)
            stays.take().finish(reply(number))
        assert sorted([await call.value() for call in calls]) == [*range(len(calls))]
        assert await fleet.run("new 0") is stays, "the sequence goes on there"


async def dies_with_a_start(fleet: Fleet, dies: Shelf, stays: Shelf) -> Caller:
    """Starts sequences until one chooses the worker that will die; it holds the step."""
    for n in range(64):
        call = fleet.step(f"first {n}", "start")
        if await fleet.owner() is dies:
            dies.entries.clear()
            return call
        stays.take().finish(reply(1))
        await call.value()
    raise AssertionError("one of two workers was never chosen")


async def test_loss_of_redis_memory_loses_the_sequences(redis: RedisProcess) -> None:
    async with redis_fleet(redis) as fleet:
        owner = await fleet.run("s", "start")
        under_way = fleet.step("s")
        await owner.holds(1)
        await redis.client.flushall()
        assert isinstance(await under_way.outcome(), SequenceLostError)
        assert isinstance(await fleet.step("s").outcome(), SequenceLostError | ModelNotReadyError)


async def test_worker_that_leaves_answers_the_steps_it_has(redis: RedisProcess) -> None:
    first, second = Shelf(), Shelf()
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(redis_gateway(redis.url, "g"))
        worker = await stack.enter_async_context(redis_worker(redis.url, "leaves", first))
        fleet = Fleet(gateway, (first, second))
        await fleet.run("s", "start")
        caller = fleet.step("s")
        await first.holds(1)
        await stack.enter_async_context(redis_worker(redis.url, "stays", second))
        draining = asyncio.create_task(worker.drain())
        await until(lambda: not worker.serves(LANE))
        first.take().finish(reply(5))
        assert await caller.value() == 5
        await draining
        assert isinstance(await fleet.step("s").outcome(), SequenceLostError)
        assert not await redis.client.exists(LaneKeys(LANE).steps("leaves"))


async def test_steps_that_wait_for_a_worker_are_limited(fleet: Fleet) -> None:
    for shelf in fleet.shelves:
        shelf.capacity = 0
    calls = [fleet.step(str(n), "start") for n in range(20)]
    await until(lambda: sum(len(call.heard) for call in calls) >= 20 - 2 * MAX_DEPTH)
    refused = [call.heard[0] for call in calls if call.heard]
    assert all(isinstance(error, QueueFullError) for error in refused)
