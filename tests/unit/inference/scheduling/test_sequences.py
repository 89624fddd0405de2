"""Sequences: their steps in order, one at a time, on the instance that began them."""

import asyncio
import time
from collections import defaultdict
from functools import partial

import numpy as np
import pytest

from flambeau.protocol.sequence_spec import Sequences
from services.errors import (
    BackendError,
    DeadlineExceededError,
    InvalidRequestError,
    ModelNotReadyError,
    QueueFullError,
    SequenceLostError,
)
from services.queueing.records import InferRequest, SequenceStep
from services.queueing.sequence_steps import MAX_WAITING_STEPS
from tests.fixtures.fake_backends import DoublingBackend
from tests.fixtures.running_worker import LANE, MAX_ROWS, Call, Running
from tests.fixtures.running_worker import running as running_any
from tests.fixtures.signatures import one_to_one

SIGNATURE = one_to_one((1,), rows=MAX_ROWS, sequence=Sequences())
"""Signature of a model that keeps its state itself."""
running = partial(running_any, signature=SIGNATURE)
CONTROL = {"start": (True, False), "end": (False, True), "": (False, False), "all": (True, True)}


def step_request(
    name: str, value: float, control: str = "", timeout_s: float = 60.0
) -> InferRequest:
    """Returns a step of one row."""
    return InferRequest(
        request_id=f"{name}-{value}",
        lane=LANE,
        inputs={"x": np.array([[value]], np.float32)},
        rows=1,
        deadline=time.monotonic() + timeout_s,
        sequence=SequenceStep(name, *CONTROL[control]),
    )


def step(
    made: Running, name: str, value: float, control: str = "", timeout_s: float = 60.0
) -> Call:
    """Sends a step."""
    return Call(made.queue, step_request(name, value, control, timeout_s))


async def busy_with(made: Running, value: float) -> Call:
    """Closes the first backend's gate behind a step, so that later ones form a batch."""
    made.backends[0].gate.clear()
    made.backends[0].started.clear()
    call = step(made, "busy", value, "all")
    await asyncio.to_thread(made.backends[0].started.wait)
    return call


async def test_steps_run_one_at_a_time_in_order_whatever_waits() -> None:
    backend = DoublingBackend()
    async with running(backend) as made:
        backend.gate.clear()
        calls = [step(made, "s", n, "start" if n == 0 else "") for n in range(5)]
        await asyncio.to_thread(backend.started.wait)
        backend.gate.set()
        assert [await call.values() for call in calls] == [[2.0 * n] for n in range(5)]
        assert [batch.ravel().tolist() for batch in backend.batches] == [[n] for n in range(5)]


async def test_steps_of_different_sequences_share_a_batch() -> None:
    backend = DoublingBackend()
    async with running(backend) as made:
        for name in "abc":
            await step(made, name, 0, "start").values()
        busy = await busy_with(made, 9)
        calls = [step(made, name, n) for n, name in enumerate("abc", 1)]
        calls += [step(made, "a", 4)]
        backend.gate.set()
        await busy.values()
        assert [await call.values() for call in calls] == [[2.0], [4.0], [6.0], [8.0]]
        assert [sorted(batch.ravel().tolist()) for batch in backend.batches[-2:]] == [
            [1, 2, 3],
            [4],
        ]


async def test_each_sequence_stays_on_its_instance_while_another_is_idle() -> None:
    backends = DoublingBackend(), DoublingBackend()
    async with running(*backends) as made:
        for name in range(6):
            await step(made, str(name), 100 * name, "start").values()
        for turn in range(1, 8):
            calls = [step(made, str(name), 100 * name + turn) for name in range(6)]
            for call in calls:
                await call.values()
        owners: dict[float, set[int]] = defaultdict(set)
        for number, backend in enumerate(backends):
            for value in np.concatenate([batch.ravel() for batch in backend.batches]):
                owners[value // 100].add(number)
        assert all(len(found) == 1 for found in owners.values()), owners
        assert {number for found in owners.values() for number in found} == {0, 1}


async def test_step_waits_for_its_instance_though_another_is_idle() -> None:
    backends = DoublingBackend(), DoublingBackend()
    async with running(*backends) as made:
        await step(made, "s", 1, "start").values()
        own = next(one for one in backends if one.batches)
        other = next(one for one in backends if one is not own)
        own.gate.clear()
        own.started.clear()
        first = step(made, "s", 2)
        await asyncio.to_thread(own.started.wait)
        second = step(made, "s", 3)
        assert await step(made, "other", 7, "all").values() == [14.0]
        assert other.batches[-1].ravel().tolist() == [7]
        assert not second.heard
        own.gate.set()
        assert (await first.values(), await second.values()) == ([4.0], [6.0])
        assert [batch.ravel().tolist() for batch in own.batches] == [[1], [2], [3]]


@pytest.mark.parametrize("control", ["", "end"])
async def test_step_of_a_sequence_that_was_not_started_is_refused(control: str) -> None:
    async with running(DoublingBackend()) as made:
        error = await step(made, "s", 1, control).error()
        assert isinstance(error, SequenceLostError)
        assert "start it again" in str(error)
        assert (error.http_status, error.retryable) == (409, False)


async def test_sequence_that_has_ended_is_refused_until_it_starts_again() -> None:
    async with running(DoublingBackend()) as made:
        assert await step(made, "s", 1, "all").values() == [2.0]
        assert isinstance(await step(made, "s", 2).error(), SequenceLostError)
        assert await step(made, "s", 3, "start").values() == [6.0]
        assert await step(made, "s", 4, "end").values() == [8.0]
        assert isinstance(await step(made, "s", 5).error(), SequenceLostError)


async def test_cancelled_and_expired_steps_let_the_next_go_on() -> None:
    backend = DoublingBackend()
    async with running(backend) as made:
        await step(made, "s", 0, "start").values()
        busy = await busy_with(made, 9)
        cancelled, expiring = step(made, "s", 1), step(made, "s", 2, timeout_s=0.1)
        last = step(made, "s", 3)
        cancelled.entry.cancel()
        assert isinstance(await expiring.error(), DeadlineExceededError)
        assert not last.heard
        backend.gate.set()
        await busy.values()
        assert await last.values() == [6.0]
        assert made.queue.unanswered == 0


async def test_steps_behind_another_are_limited() -> None:
    backend = DoublingBackend()
    async with running(backend) as made:
        await step(made, "s", 0, "start").values()
        busy = await busy_with(made, 9)
        calls = [step(made, "s", 100 + n) for n in range(MAX_WAITING_STEPS)]
        refused = step(made, "s", 99)
        assert isinstance(await refused.error(), QueueFullError)
        backend.gate.set()
        await busy.values()
        found = [await call.values() for call in calls]
        assert found == [[200 + 2.0 * n] for n in range(MAX_WAITING_STEPS)]


async def test_failed_step_is_not_run_again_and_the_sequence_goes_on() -> None:
    backend = DoublingBackend(ValueError("a bad step"))
    async with running(backend) as made:
        assert isinstance(await step(made, "s", 1, "start").error(), BackendError)
        assert len(backend.batches) == 1
        assert await step(made, "s", 2).values() == [4.0]


async def test_exchange_of_the_artifact_loses_open_sequences() -> None:
    backend, new = DoublingBackend(), DoublingBackend()
    async with running(backend) as made:
        await step(made, "s", 0, "start").values()
        busy = await busy_with(made, 9)
        waiting, behind = step(made, "s", 1), step(made, "s", 2)
        made.backends.append(new)
        made.worker.replace_backends([new], lambda: new, {}, 1)
        for call in (waiting, behind):
            assert isinstance(await call.error(), SequenceLostError)
        assert made.counted("flambeau_ended_sequences_total", reason="lost") == 2
        assert made.counted("flambeau_open_sequences") == 0
        backend.gate.set()
        assert await busy.values() == [18.0]
        assert await step(made, "s", 3, "start").values() == [6.0]
        assert new.batches[-1].ravel().tolist() == [3]


async def test_instance_that_blocks_loses_its_sequences_and_those_of_others_go_on() -> None:
    backends = DoublingBackend(), DoublingBackend()
    async with running(*backends, reopened=[DoublingBackend()], execution_timeout_s=0.3) as made:
        for name in "ab":
            await step(made, name, ord(name), "start").values()
        blocked = next(one for one in backends if one.batches[0].ravel()[0] == ord("a"))
        blocked.gate.clear()
        hanging, behind = step(made, "a", 1), step(made, "a", 2)
        assert isinstance(await hanging.error(), BackendError)
        assert isinstance(await behind.error(), SequenceLostError)
        assert await step(made, "b", 3).values() == [6.0]
        assert await step(made, "a", 4, "start").values() == [8.0]


async def test_closed_lane_refuses_the_steps_behind_and_answers_the_one_under_way() -> None:
    backend = DoublingBackend()
    async with running(backend) as made:
        backend.gate.clear()
        running_one, behind = step(made, "s", 1, "start"), step(made, "s", 2)
        await asyncio.to_thread(backend.started.wait)
        made.close()
        assert isinstance(await behind.error(), ModelNotReadyError)
        backend.gate.set()
        assert await running_one.values() == [2.0]


async def test_request_without_a_sequence_is_refused() -> None:
    backend = DoublingBackend()
    async with running(backend) as made:
        error = await made.infer(1).error()
        assert isinstance(error, InvalidRequestError)
        assert "give a sequence_id" in str(error)
        assert not backend.batches
