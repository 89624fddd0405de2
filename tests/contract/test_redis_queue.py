"""Guarantees of a queue across processes beyond the contract: no death loses a request."""

import asyncio
import contextlib
import signal
from typing import Any

import pytest

from services.errors import (
    BackendError,
    DeadLetterError,
    QueueFullError,
    QueueUnavailableError,
    WouldMissDeadlineError,
)
from services.queueing.records import DEFAULT_PRIORITY, HIGHEST_PRIORITY, Lane
from services.queueing.redis_streams import receiver, receiving_lane, sender
from services.queueing.redis_streams.keys import GROUP, LaneKeys
from services.queueing.redis_streams.receiving_lane import ReceivingLane
from services.queueing.redis_streams.scripts import Script
from services.queueing.redis_streams.sending_lane import SendingLane
from tests.fixtures.queue_ends import (
    LANE,
    Ends,
    Shelf,
    redis_gateway,
    redis_worker,
    reply,
)
from tests.fixtures.redis_servers import RedisProcess, until, until_seen

LARGE = 2**19
"""Elements of a tensor that is too large for a stream."""


async def test_a_large_tensor_travels_both_ways(redis: RedisProcess) -> None:
    shelf = Shelf()
    async with redis_worker(redis.url, "w", shelf) as worker, redis_gateway(redis.url, "g") as g:
        caller = Ends(g, worker, shelf).send(elements=LARGE)
        (entry,) = await shelf.holds(1)
        assert entry.request.inputs["x"].shape == (1, LARGE)
        entry.finish(reply(1, elements=LARGE))
        assert await caller.value() == 1
        await until_length(redis, 0)
        left = [key async for key in redis.client.scan_iter("*payload*")]
        left += [key async for key in redis.client.scan_iter("*reply:*")]
        assert left == []


async def test_large_requests_leave_nothing_when_one_is_answered_while_another_leaves(
    redis: RedisProcess,
) -> None:
    """A large one leaves with the trip after its answer's, which carries the next answer."""
    shelf = Shelf()
    async with redis_worker(redis.url, "w", shelf) as worker, redis_gateway(redis.url, "g") as g:
        callers = [Ends(g, worker, shelf).send(n, elements=LARGE) for n in range(2)]
        for entry in list(await shelf.holds(2)):
            entry.finish(reply(int(entry.request.request_id)))
            await asyncio.sleep(0)  # its answer's trip begins
        assert [await caller.value() for caller in callers] == [0, 1]
        await until_length(redis, 0)
        await until_none(redis, "*payload*")


async def test_nothing_is_taken_beyond_what_can_be_run(redis: RedisProcess) -> None:
    shelf = Shelf(capacity=2)
    async with redis_worker(redis.url, "w", shelf) as worker, redis_gateway(redis.url, "g", 9) as g:
        ends = Ends(g, worker, shelf)
        callers = [ends.send(n) for n in range(5)]
        await shelf.holds(2)
        shelf.take().finish(reply(0))
        await callers[0].value()
        await shelf.holds(2)
        assert shelf.ids == ["1", "2"]


async def test_urgent_requests_overtake_and_none_starves(redis: RedisProcess) -> None:
    shelf = Shelf(capacity=1)
    async with (
        redis_worker(redis.url, "w", shelf) as worker,
        redis_gateway(redis.url, "g", 99) as g,
    ):
        ends = Ends(g, worker, shelf)
        ends.send("first")
        await shelf.holds(1)
        callers = [ends.send("patient", priority=9)]
        callers += [ends.send("urgent", priority=1) for _ in range(20)]
        await until_length(redis, 22)
        seen: list[str] = []
        shelf.take().finish(reply())
        while len(seen) < len(callers):
            await shelf.holds(1)
            seen.append(shelf.ids[0])
            shelf.take().finish(reply())
        assert seen[0] == "urgent"
        assert seen.index("patient") < len(seen) - 1


async def test_what_a_dead_worker_held_is_answered_by_another(
    redis: RedisProcess, impatient: None
) -> None:
    first, second = Shelf(), Shelf()
    async with redis_gateway(redis.url, "g") as gateway:
        async with redis_worker(redis.url, "dies", first) as worker:
            ends = Ends(gateway, worker, first)
            callers = [ends.send(n) for n in range(3)]
            await first.holds(3)
        async with redis_worker(redis.url, "lives", second):
            for _ in callers:
                (entry,) = await second.holds(1)  # one suspect at a time
                assert entry.request.alone
                second.take().finish(reply(int(entry.request.request_id)))
            assert [await caller.value() for caller in callers] == [0, 1, 2]
            await until_length(redis, 0)


async def test_a_late_answer_of_a_worker_thought_dead_is_dropped(
    redis: RedisProcess, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiving_lane, "MENTION_AFTER_S", 1e9)  # it renews no claims
    first, second = Shelf(capacity=1), Shelf()
    async with redis_gateway(redis.url, "g") as gateway:
        async with redis_worker(redis.url, "sleeps", first) as sleeper:
            caller = Ends(gateway, sleeper, first).send()
            (entry,) = await first.holds(1)
            async with redis_worker(redis.url, "wakes", second) as other:
                await second.holds(1)
                second.take().finish(reply(2))
                assert await caller.value() == 2
                after = Ends(gateway, other, second).send()
                await second.holds(1)
                entry.finish(reply(1))
                second.take().finish(reply(3))
                assert await after.value() == 3
        assert len(caller.heard) == 1


async def test_a_request_that_ends_two_workers_becomes_a_dead_letter(
    redis: RedisProcess, impatient: None
) -> None:
    async with redis_gateway(redis.url, "g") as gateway:
        shelves = [Shelf(), Shelf(), Shelf()]
        async with redis_worker(redis.url, "dies", shelves[0]) as worker:
            caller = Ends(gateway, worker, shelves[0]).send("poison")
            await shelves[0].holds(1)
        async with redis_worker(redis.url, "dies too", shelves[1]):
            await shelves[1].holds(1)
        async with redis_worker(redis.url, "lives", shelves[2]):
            error = await caller.outcome()
            assert isinstance(error, DeadLetterError)
            assert not shelves[2].entries
    letters: Any = await redis.client.xrange(LaneKeys(LANE).dead)
    ((_, letter),) = letters
    assert letter[b"error"] == str(error).encode()
    assert letter[b"payload"]


async def test_what_a_dead_gateway_asked_for_is_dropped(
    redis: RedisProcess,
) -> None:
    shelf = Shelf()
    async with redis_worker(redis.url, "w", shelf):
        async with redis_gateway(redis.url, "dies") as gateway:
            Ends(gateway, gateway, shelf).send()
            await shelf.holds(1)
        await shelf.holds(0)
        assert [reason for _, reason in shelf.discarded] == ["cancelled"]
        await until_length(redis, 0)


async def test_what_redis_forgot_is_sent_again_and_answered_once(
    redis: RedisProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "LOOK_FOR_LOST_EVERY_S", 0.2)
    shelf = Shelf()
    async with redis_worker(redis.url, "w", shelf) as worker, redis_gateway(redis.url, "g") as g:
        caller = Ends(g, worker, shelf).send()
        await shelf.holds(1)
        await redis.client.flushall()
        again = (await shelf.holds(2))[1]
        again.finish(reply(2))
        assert await caller.value() == 2
        shelf.take().finish(reply(1))
        assert len(caller.heard) == 1


async def test_only_what_two_looks_miss_is_sent_again(
    redis: RedisProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request whose answer is on its way has left its stream, too."""
    monkeypatch.setattr(sender, "LOOK_FOR_LOST_EVERY_S", 0.01)
    look, deleted, again = SendingLane.send_lost_again, asyncio.Event(), list[int]()

    async def watched(lane: SendingLane) -> None:
        await deleted.wait()
        await look(lane)
        again.append(lane.waiting)

    monkeypatch.setattr(SendingLane, "send_lost_again", watched)
    shelf = Shelf()
    async with redis_worker(redis.url, "w", shelf) as worker, redis_gateway(redis.url, "g") as g:
        Ends(g, worker, shelf).send()
        await shelf.holds(1)
        await redis.client.flushall()
        deleted.set()
        await shelf.holds(2)
    assert again[:2] == [0, 1]


async def test_what_was_accepted_is_sent_again_however_full_the_queue(
    redis: RedisProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "LOOK_FOR_LOST_EVERY_S", 2)
    shelf = Shelf(capacity=2)
    async with redis_worker(redis.url, "w", shelf) as worker, redis_gateway(redis.url, "g", 2) as g:
        ends = Ends(g, worker, shelf)
        callers = [ends.send(n) for n in range(2)]
        await shelf.holds(2)
        await redis.client.flushall()
        await until_seen(lambda: redis.client.exists(LaneKeys(LANE).workers))
        callers += [ends.send(n) for n in range(2, 4)]
        await until_length(redis, 4)
        for _ in range(6):  # two of them twice
            await until(lambda: shelf.entries)
            entry = shelf.take()
            entry.finish(reply(int(entry.request.request_id)))
        assert [await caller.value() for caller in callers] == [0, 1, 2, 3]


async def test_all_that_redis_forgot_is_sent_again_at_once(
    redis: RedisProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "LOOK_FOR_LOST_EVERY_S", 0.5)
    count, shelf = 600, Shelf(capacity=1)
    async with (
        redis_worker(redis.url, "w", shelf) as worker,
        redis_gateway(redis.url, "g", count) as g,
    ):
        ends = Ends(g, worker, shelf)
        callers = [ends.send(n) for n in range(count)]
        await until_length(redis, count)
        await redis.client.flushall()
        async with asyncio.timeout(2):  # two looks
            await until_length(redis, count)
        assert not any(caller.heard for caller in callers)


async def test_what_is_refused_leaves_nothing(redis: RedisProcess) -> None:
    shelf = Shelf(capacity=1)
    async with redis_worker(redis.url, "w", shelf) as worker, redis_gateway(redis.url, "g", 1) as g:
        ends = Ends(g, worker, shelf)
        ends.send()
        await shelf.holds(1)
        assert isinstance(await ends.send(elements=LARGE).outcome(), QueueFullError)
        await until_none(redis, "*payload*")


async def test_many_large_answers_arrive(redis: RedisProcess) -> None:
    count, elements = 24, 2**18 - 100  # each a little too small for a key of its own
    shelf = Shelf(capacity=count)
    async with (
        redis_worker(redis.url, "w", shelf) as worker,
        redis_gateway(redis.url, "g", count) as g,
    ):
        ends = Ends(g, worker, shelf)
        callers = [ends.send(n) for n in range(count)]
        await shelf.holds(count)
        for _ in range(count):
            entry = shelf.take()
            entry.finish(reply(int(entry.request.request_id), elements=elements))
        assert [await caller.value() for caller in callers] == list(range(count))


@pytest.mark.parametrize(("deaths", "alone"), [(1, False), (2, True)])
async def test_a_suspect_is_one_still_when_nobody_was_told(
    redis: RedisProcess, impatient: None, deaths: int, alone: bool
) -> None:
    """A worker claims it, and the answer to that is lost."""
    first, second = Shelf(), Shelf()
    async with redis_gateway(redis.url, "g") as gateway:
        async with redis_worker(redis.url, "dies", first) as worker:
            caller = Ends(gateway, worker, first).send()
            await first.holds(1)
        async with redis_worker(redis.url, "lives", second):
            await claim(redis, "lives", deaths)
            (entry,) = await second.holds(1)
            assert entry.request.alone is alone
            second.take().finish(reply(1))
            assert await caller.value() == 1


async def test_what_ended_two_workers_runs_no_more_whoever_claimed_it(
    redis: RedisProcess, impatient: None
) -> None:
    first, second = Shelf(), Shelf()
    async with redis_gateway(redis.url, "g") as gateway:
        async with redis_worker(redis.url, "dies", first) as worker:
            caller = Ends(gateway, worker, first).send()
            await first.holds(1)
        async with redis_worker(redis.url, "lives", second):
            await claim(redis, "lives", 3)
            assert isinstance(await caller.outcome(), DeadLetterError)
            assert not second.entries


async def test_a_lane_that_opens_while_its_worker_drains_takes_nothing(
    redis: RedisProcess,
) -> None:
    first, late, second = Shelf(), Shelf(), Shelf()
    async with (
        redis_gateway(redis.url, "g") as gateway,
        redis_worker(redis.url, "drains", first) as worker,
    ):
        other = Lane(LANE.model, LANE.version + 1)
        await worker.drain()
        worker.open(other, late)
        await worker.drain()
        async with redis_worker(redis.url, "stays", second) as stays:
            caller = Ends(gateway, stays, second).send()
            await second.holds(1)
            second.take().finish(reply(1))
            assert await caller.value() == 1
        assert not late.entries


async def test_a_redis_that_is_restarted_keeps_what_was_accepted(redis: RedisProcess) -> None:
    shelf = Shelf(capacity=1)
    async with redis_worker(redis.url, "w", shelf) as worker, redis_gateway(redis.url, "g") as g:
        ends = Ends(g, worker, shelf)
        callers = [ends.send(n) for n in range(3)]
        await until_length(redis, 3)
        redis.kill()
        await until(lambda: isinstance(next(iter(ends.send().heard), None), QueueUnavailableError))
        shelf.take().finish(reply(0))  # while no reply can be sent
        await asyncio.to_thread(redis.start)
        assert await callers[0].value() == 0
        for n in (1, 2):
            await shelf.holds(1)
            shelf.take().finish(reply(n))
            assert await callers[n].value() == n
        await until(lambda: not ends.send("again").heard)


async def test_a_redis_that_hangs_is_out_of_reach_within_a_second(redis: RedisProcess) -> None:
    shelf = Shelf()
    async with redis_worker(redis.url, "w", shelf) as worker, redis_gateway(redis.url, "g") as g:
        ends = Ends(g, worker, shelf)
        redis.signal(signal.SIGSTOP)
        error = await ends.send().outcome()
        assert isinstance(error, QueueUnavailableError)
        assert isinstance(ends.send().heard[0], QueueUnavailableError)  # at once
        redis.signal(signal.SIGCONT)
        await until(lambda: g.submit(ends.send().entry.request, lambda _: None).dead is False)


async def test_a_full_redis_refuses_and_still_brings_answers(redis: RedisProcess) -> None:
    shelf = Shelf()
    async with redis_worker(redis.url, "w", shelf) as worker, redis_gateway(redis.url, "g") as g:
        ends = Ends(g, worker, shelf)
        caller = ends.send()
        await shelf.holds(1)
        await redis.client.config_set("maxmemory", "1mb")
        refused = await ends.send().outcome()
        assert isinstance(refused, QueueFullError)
        assert "maxmemory" in str(refused)
        shelf.take().finish(reply(1))
        assert await caller.value() == 1
        await redis.client.config_set("maxmemory", "0")
        after = ends.send()
        await shelf.holds(1)
        shelf.take().finish(reply(2))
        assert await after.value() == 2


async def test_what_cannot_make_its_deadline_is_refused_at_once(redis: RedisProcess) -> None:
    shelf, rates = Shelf(capacity=1), {LANE: 1.0}
    async with (
        redis_worker(redis.url, "w", shelf) as worker,
        redis_gateway(redis.url, "g", row_s=rates) as gateway,
    ):
        ends = Ends(gateway, worker, shelf)
        for _ in range(3):
            ends.send()
        await until_length(redis, 3)
        assert isinstance(await ends.send(timeout_s=2.5).outcome(), WouldMissDeadlineError)
        more_time = ends.send(timeout_s=3.5)
        await until_length(redis, 4)
        assert not more_time.heard


async def test_a_worker_that_drains_hands_back_what_has_not_begun(redis: RedisProcess) -> None:
    first, second = Shelf(), Shelf()
    async with (
        redis_gateway(redis.url, "g") as gateway,
        redis_worker(redis.url, "drains", first) as worker,
    ):
        ends = Ends(gateway, worker, first)
        callers = [ends.send(n) for n in range(3)]
        await first.holds(3)
        begun = first.take()
        async with redis_worker(redis.url, "stays", second):
            draining = asyncio.create_task(worker.drain())
            await second.holds(2)
            assert not any(entry.request.alone for entry in second.entries)
            assert not first.entries
            begun.finish(reply(0))
            await draining
            for _ in range(2):
                entry = second.take()
                entry.finish(reply(int(entry.request.request_id)))
            assert [await caller.value() for caller in callers] == [0, 1, 2]


async def test_what_was_handed_back_is_not_claimed_again(
    redis: RedisProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mention that comes late would leave it with a worker that seems to have died of it."""
    monkeypatch.setattr(receiving_lane, "MENTION_AFTER_S", -1.0)
    first, second, handed_back = Shelf(), Shelf(), asyncio.Event()
    slow, lanes = asyncio.Event(), list[ReceivingLane]()

    class RecordedLane(ReceivingLane):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            lanes.append(self)

    class SlowKeep(Script):
        async def __call__(self, *how: Any) -> Any:
            if not slow.is_set():
                return await super().__call__(*how)
            await until(lambda: not first.entries)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(handed_back.wait(), 0.2)
            return await super().__call__(*how)

    class HandBack(Script):
        async def __call__(self, *how: Any) -> Any:
            await super().__call__(*how)
            handed_back.set()

    scripts = {"keep": SlowKeep, "hand_back": HandBack}
    async with redis_gateway(redis.url, "g") as gateway, contextlib.AsyncExitStack() as stack:
        with monkeypatch.context() as patch:
            patch.setattr(receiving_lane, "Script", lambda name: scripts.get(name, Script)(name))
            patch.setattr(receiver, "ReceivingLane", RecordedLane)
            worker = await stack.enter_async_context(redis_worker(redis.url, "drains", first))
        caller = Ends(gateway, worker, first).send()
        await first.holds(1)
        slow.set()
        (lane,) = [lane for lane in lanes if lane.keys.notices == LaneKeys(LANE).notices]
        async with asyncio.TaskGroup() as both, redis_worker(redis.url, "stays", second):
            both.create_task(lane.keep())
            both.create_task(worker.drain())
            (entry,) = await second.holds(1)
            assert not entry.request.alone
            entry.finish(reply(1))
            assert await caller.value() == 1


async def test_an_error_of_the_model_is_no_death(redis: RedisProcess) -> None:
    shelf = Shelf()
    async with redis_worker(redis.url, "w", shelf) as worker, redis_gateway(redis.url, "g") as g:
        caller = Ends(g, worker, shelf).send()
        await shelf.holds(1)
        shelf.take().finish(BackendError("bad input"))
        assert isinstance(await caller.outcome(), BackendError)
        await until_length(redis, 0)
        assert await redis.client.xlen(LaneKeys(LANE).dead) == 0


async def claim(redis: RedisProcess, worker: str, deaths: int) -> None:
    """Assigns the only request to a worker that does not know of it."""
    stream = LaneKeys(LANE).streams[DEFAULT_PRIORITY - HIGHEST_PRIORITY]
    found: Any = await redis.client.xrange(stream)
    await redis.client.xclaim(
        stream, GROUP, worker, 0, [found[0][0]], idle=60_000, retrycount=deaths, justid=True
    )


async def until_none(redis: RedisProcess, pattern: str) -> None:
    """Waits until no key matches a pattern."""

    async def none() -> bool:
        return not await redis.client.keys(pattern)

    await until_seen(none)


async def until_length(redis: RedisProcess, wanted: int) -> None:
    """Waits until the lane holds so many requests."""

    async def so_many() -> bool:
        found = [await redis.client.xlen(stream) for stream in LaneKeys(LANE).streams]
        return sum(found) == wanted

    await until_seen(so_many)
