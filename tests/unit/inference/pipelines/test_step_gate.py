"""Places of a model's worker for the steps of pipelines: how many, whose turn, and none is lost."""

import asyncio

import msgspec

from services.errors import BackendError, QueueFullError, UnsupportedError
from services.queueing.memory_queue import MemoryQueue
from services.queueing.records import JOB_PRIORITY, Lane
from tests.fixtures.pipeline_parts import PipelineParts
from tests.fixtures.queue_ends import LANE, Caller, reply, request
from tests.fixtures.redis_servers import until


async def test_steps_leave_half_of_a_queue_to_the_callers_of_the_model() -> None:
    parts, queue = PipelineParts(max_depth=4), MemoryQueue(4)
    queue.open(LANE, parts.lane)
    queue.open(Lane("a", 1), parts["a"])
    callers = [Caller(queue, request(f"r{n}", timeout_s=30 - n)) for n in range(4)]
    assert parts["a"].ids == ["r0/first", "r1/first"]
    own = [Caller(queue, msgspec.structs.replace(request(), lane=Lane("a", 1))) for _ in "abc"]
    assert [len(one.heard) for one in own] == [0, 0, 1]  # the third finds the queue full
    assert isinstance(await own[2].outcome(), QueueFullError)
    parts["a"].take().finish(reply())
    await parts["a"].holds(4)
    assert parts["a"].ids[-1] == "r3/first"  # the earliest deadline of those that wait
    callers[2].entry.cancel()
    for entry in list(parts["a"].entries):
        parts["a"].entries.remove(entry)
        entry.finish(reply())
    await asyncio.sleep(0)
    assert not parts["a"].entries  # nobody waits for the cancelled one
    assert len(parts["b"].entries) == 2  # r0 and r1; r3 has no place there yet


async def test_a_step_of_another_priority_has_places_of_its_own() -> None:
    parts, queue = PipelineParts(max_depth=2), MemoryQueue(10)
    queue.open(LANE, parts.lane)
    priorities = [JOB_PRIORITY, JOB_PRIORITY, 5, 1]
    _ = [Caller(queue, request(f"r{n}", priority=p)) for n, p in enumerate(priorities)]
    assert parts["a"].ids == ["r0/first", "r2/first", "r3/first"]


async def test_places_come_back_whatever_ends_a_request() -> None:
    parts, queue = PipelineParts(max_depth=2), MemoryQueue(100)
    queue.open(LANE, parts.lane)
    fails, streams, leaves, waits = (Caller(queue, request(name)) for name in "abcd")
    parts["a"].take().finish(BackendError("no"))
    await parts["a"].holds(1)
    parts["a"].entries[0].part(msgspec.structs.replace(reply(), is_last=False))
    assert isinstance(await fails.outcome(), BackendError)
    assert isinstance(await streams.outcome(), UnsupportedError)
    await until(lambda: parts["a"].ids == ["c/first"])
    for n in range(50):
        Caller(queue, request(f"gone {n}")).entry.cancel()
    leaves.entry.cancel()
    await until(lambda: parts["a"].ids == ["d/first"])
    later = Caller(queue, request("e"))
    assert parts["a"].ids == ["d/first"]
    waits.entry.expire()
    await until(lambda: parts["a"].ids == ["e/first"])
    assert not later.heard


async def test_a_request_that_got_a_place_and_leaves_passes_it_on() -> None:
    parts, queue = PipelineParts(max_depth=2), MemoryQueue(100)
    queue.open(LANE, parts.lane)
    _, second, _ = (Caller(queue, request(name)) for name in "abc")
    parts["a"].take().finish(BackendError("no"))  # the place is the second one's
    second.entry.cancel()  # before the event loop resumes it
    await until(lambda: parts["a"].ids == ["c/first"])
