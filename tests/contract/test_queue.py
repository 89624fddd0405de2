"""The queue's contract, for every implementation."""

import time
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

from flambeau.protocol.tensors import Array, object_array
from services.errors import (
    BackendError,
    DeadlineExceededError,
    ModelNotReadyError,
    QueueFullError,
    WouldMissDeadlineError,
)
from services.queueing.records import InferReply, Lane
from services.queueing.redis_streams import receiver
from tests.fixtures.queue_ends import (
    FURTHER,
    LANE,
    MAX_DEPTH,
    Ends,
    Shelf,
    memory_ends,
    redis_ends,
    reply,
    reply_of,
    shared_memory_ends,
)
from tests.fixtures.redis_servers import FLAVOURS, running_redis, until

HOST = "redis, one host"


@pytest.fixture(params=("memory", "shared memory", *FLAVOURS, HOST))
async def ends(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Ends]:
    if request.param == "memory":
        async with memory_ends() as ends:
            yield ends
    elif request.param == "shared memory":
        async with shared_memory_ends() as ends:
            yield ends
    else:
        flavour, host = request.param, None
        if flavour == HOST:
            flavour, host = FLAVOURS[0], tmp_path / "host"
        async with running_redis(flavour, tmp_path) as redis, redis_ends(redis.url, host) as ends:
            yield ends


async def test_each_caller_gets_its_own_reply(ends: Ends) -> None:
    first, second = ends.send(1), ends.send(2)
    await ends.shelf.holds(2)
    assert ends.shelf.ids == ["1", "2"]
    ends.shelf.entries[1].finish(reply(2))
    assert await second.value() == 2
    assert not first.heard
    ends.shelf.entries[0].finish(reply(1))
    assert await first.value() == 1
    assert (len(first.heard), len(second.heard)) == (1, 1)


async def test_a_reply_says_what_the_worker_said(ends: Ends) -> None:
    caller = ends.send()
    (entry,) = await ends.shelf.holds(1)
    entry.finish(reply(1))
    outcome = await caller.outcome()
    assert isinstance(outcome, InferReply)
    assert (outcome.lane, outcome.datatypes, outcome.batch_rows) == (LANE, {"y": "FP32"}, 1)
    assert (outcome.queue_s, outcome.execution_s) == (0.25, 0.5)


async def test_scalars_and_texts_arrive_as_they_were(ends: Ends) -> None:
    caller = ends.send()
    (entry,) = await ends.shelf.holds(1)
    outputs: dict[str, Array] = {
        "scalar": np.array(7),
        "state": np.ones((2, 1, 3), np.float32),
        "texts": object_array([b"", "é".encode()]).reshape(2, 1),
    }
    entry.finish(reply_of(outputs))
    outcome = await caller.outcome()
    assert isinstance(outcome, InferReply)
    for name, array in outputs.items():
        assert outcome.outputs[name].shape == array.shape
        assert outcome.outputs[name].tolist() == array.tolist()


async def test_a_second_reply_changes_nothing(ends: Ends) -> None:
    caller = ends.send()
    await ends.shelf.holds(1)
    entry = ends.shelf.take()
    entry.finish(reply(1))
    entry.finish(reply(2))
    entry.finish(BackendError("too late"))
    entry.cancel()
    assert await caller.value() == 1
    after = ends.send()
    await ends.shelf.holds(1)
    ends.shelf.take().finish(reply(3))
    assert await after.value() == 3  # whatever came of the others came before this
    assert len(caller.heard) == 1
    assert not ends.shelf.discarded


async def test_an_error_reaches_the_caller_as_what_it_is(ends: Ends) -> None:
    caller = ends.send()
    await ends.shelf.holds(1)
    ends.shelf.take().finish(BackendError("broken"))
    error = await caller.outcome()
    assert type(error) is BackendError
    assert str(error) == "broken"


async def test_a_full_lane_refuses_and_keeps_what_it_has(ends: Ends) -> None:
    callers = [ends.send(n) for n in range(MAX_DEPTH)]
    await ends.shelf.holds(MAX_DEPTH)
    refused = ends.send(99)
    error = await refused.outcome()
    assert isinstance(error, QueueFullError)
    assert f"holds {MAX_DEPTH} requests" in str(error)
    assert refused.entry.dead
    for _ in callers:
        entry = ends.shelf.take()
        entry.finish(reply(int(entry.request.request_id)))
    assert [await caller.value() for caller in callers] == list(range(MAX_DEPTH))


async def test_a_place_given_back_is_free_again(ends: Ends) -> None:
    callers = [ends.send(n) for n in range(MAX_DEPTH)]
    await ends.shelf.holds(MAX_DEPTH)
    callers[0].entry.cancel()
    await ends.shelf.holds(MAX_DEPTH - 1)
    caller = ends.send(99)
    await ends.shelf.holds(MAX_DEPTH)
    assert not caller.heard


async def test_a_cancelled_caller_is_not_called_and_its_request_goes(ends: Ends) -> None:
    cancelled, other = ends.send("cancelled"), ends.send("other")
    entry, _ = await ends.shelf.holds(2)
    cancelled.entry.cancel()
    assert cancelled.entry.dead
    await ends.shelf.holds(1)
    assert ends.shelf.discarded == [(entry, "cancelled")]
    entry.finish(reply())  # harmless
    ends.shelf.take().finish(reply(1))
    assert await other.value() == 1
    assert not cancelled.heard


async def test_a_deadline_that_passes_answers_the_caller(ends: Ends) -> None:
    caller = ends.send(timeout_s=0.1)
    (entry,) = await ends.shelf.holds(1)
    error = await caller.outcome()
    assert isinstance(error, DeadlineExceededError)
    assert "reached its deadline" in str(error)
    assert time.monotonic() >= caller.entry.request.deadline
    await until(lambda: entry.dead)
    assert not ends.shelf.entries


async def test_a_lane_that_is_not_open_is_refused(ends: Ends) -> None:
    error = await ends.send(lane=Lane("m", 2)).outcome()
    assert isinstance(error, ModelNotReadyError)
    assert "'m' version 2" in str(error)


async def test_a_closed_lane_refuses_and_what_it_holds_is_answered(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiver, "LINGER_S", 0.0)
    waiting = ends.send()
    await ends.shelf.holds(1)
    ends.worker.close(LANE, lambda: None)
    refused = [ends.send()]
    await until(lambda: refused[-1].heard or ends.shelf.waiting > 1)
    while ends.shelf.waiting > 1:  # it came before the lane was closed
        ends.shelf.entries.pop().finish(reply())
        refused.append(ends.send())
        await until(lambda: refused[-1].heard or ends.shelf.waiting > 1)
    assert isinstance(await refused[-1].outcome(), ModelNotReadyError)
    assert not waiting.heard
    ends.shelf.take().finish(reply(1))
    assert await waiting.value() == 1


async def test_a_closed_lane_says_so_when_nothing_more_comes(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiver, "LINGER_S", 0.0)
    closed: list[bool] = []
    ends.worker.close(LANE, lambda: closed.append(True))
    await until(lambda: closed)
    assert closed == [True]


async def further_lane(ends: Ends) -> Shelf:
    """Opens the lane of another artifact of the version."""
    shelf = Shelf()
    ends.worker.open(FURTHER, shelf)
    if isinstance(ends.worker, receiver.RedisReceiver):
        worker = ends.worker
        await until(lambda: worker.serves(FURTHER))
    return shelf


async def test_the_artifacts_of_a_version_have_lanes_of_their_own(ends: Ends) -> None:
    shelf = await further_lane(ends)
    default, further = ends.send("default"), ends.send("further", lane=FURTHER)
    await ends.shelf.holds(1)
    await shelf.holds(1)
    assert (ends.shelf.ids, shelf.ids) == (["default"], ["further"])
    shelf.take().finish(reply(2, lane=FURTHER))
    ends.shelf.take().finish(reply(1))
    assert (await default.value(), await further.value()) == (1, 2)
    outcome = await further.outcome()
    assert isinstance(outcome, InferReply)
    assert outcome.lane == FURTHER


async def test_what_a_full_lane_refuses_goes_to_the_lane_named_for_that(ends: Ends) -> None:
    shelf = await further_lane(ends)
    callers = [ends.send(n, degrade_to=FURTHER) for n in range(MAX_DEPTH)]
    await ends.shelf.holds(MAX_DEPTH)
    degraded, refused = ends.send("degraded", degrade_to=FURTHER), ends.send("refused")
    (entry,) = await shelf.holds(1)
    assert shelf.ids == ["degraded"]
    assert isinstance(await refused.outcome(), QueueFullError)
    assert not [caller for caller in (*callers, degraded) if caller.heard]
    entry.finish(reply(7, lane=FURTHER))
    assert await degraded.value() == 7


async def test_what_both_lanes_refuse_is_refused_once(ends: Ends) -> None:
    shelf = await further_lane(ends)
    for n in range(MAX_DEPTH):
        ends.send(n)
        ends.send(n, lane=FURTHER)
    await ends.shelf.holds(MAX_DEPTH)
    await shelf.holds(MAX_DEPTH)
    refused = ends.send(degrade_to=FURTHER)
    assert isinstance(await refused.outcome(), QueueFullError)
    assert len(refused.heard) == 1
    assert refused.entry.dead


async def test_a_worker_that_would_be_late_leaves_it_to_the_other_lane(ends: Ends) -> None:
    shelf = await further_lane(ends)
    caller = ends.send(degrade_to=FURTHER)
    await ends.shelf.holds(1)
    ends.shelf.take().refuse(WouldMissDeadlineError("no time"))
    (entry,) = await shelf.holds(1)
    entry.finish(reply(3, lane=FURTHER))
    assert await caller.value() == 3


async def test_a_caller_that_was_degraded_can_still_cancel(ends: Ends) -> None:
    shelf = await further_lane(ends)
    for n in range(MAX_DEPTH):
        ends.send(n)
    await ends.shelf.holds(MAX_DEPTH)
    caller = ends.send("degraded", degrade_to=FURTHER)
    await shelf.holds(1)
    caller.entry.cancel()
    await until(lambda: not shelf.entries)
    assert [reason for _, reason in shelf.discarded] == ["cancelled"]
    assert not caller.heard


async def test_an_error_of_the_model_is_no_reason_to_try_another_lane(ends: Ends) -> None:
    shelf = await further_lane(ends)
    caller = ends.send(degrade_to=FURTHER)
    await ends.shelf.holds(1)
    ends.shelf.take().finish(BackendError("broken"))
    assert isinstance(await caller.outcome(), BackendError)
    assert not shelf.entries
