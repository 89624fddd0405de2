"""Small batches of a backend in its own process: the event loop begins them and takes outputs."""

import asyncio
import os
import time

import numpy as np
import pytest

from services.errors import BackendError, WorkerProcessDiedError
from services.inference.isolation.shared_tensors import SMALL_BYTES
from tests.fixtures.doubling_process import (
    CLAIMS_ALL,
    DIES,
    DISORDER,
    HANGS,
    TOO_FEW,
    IsolatedDoubling,
)
from tests.fixtures.fake_backends import POISON
from tests.fixtures.running_worker import running
from tests.fixtures.signatures import one_to_one

MANY = SMALL_BYTES // 4 + 1
"""Rows of one number that no event loop copies."""


async def test_the_loop_begins_small_batches_and_takes_their_outputs() -> None:
    backend = IsolatedDoubling()
    async with running(backend) as made:
        assert await made.infer(1.0).values() == [2.0]  # its outputs come with new memory
        finished = backend.finished
        for value in range(10):
            assert await made.infer(value).values() == [2.0 * value]
        assert (backend.begun, backend.finished) == (11, finished)


async def test_a_large_batch_is_its_threads() -> None:
    backend = IsolatedDoubling()
    async with running(backend, signature=one_to_one((1,), rows=MANY)) as made:
        assert set(await made.infer(*np.ones(MANY)).values()) == {2.0}
        assert backend.begun == 0


async def test_a_failing_batch_is_rerun_row_by_row() -> None:
    backend = IsolatedDoubling()
    async with running(backend) as made:
        poisoned, sound = made.infer(POISON), made.infer(2.0)
        assert "cannot double" in str(await poisoned.error())
        assert await sound.values() == [4.0]
        assert await made.infer(3.0).values() == [6.0]


async def test_outputs_that_are_not_the_signatures_are_an_error() -> None:
    async with running(IsolatedDoubling()) as made:
        await made.infer(1.0).values()
        error = await made.infer(1.0, TOO_FEW).error()
        assert type(error) is BackendError
        assert "a batch of 2 rows" in str(error)
        assert await made.infer(3.0).values() == [6.0]


async def test_a_process_that_ends_during_an_awaited_run_is_replaced() -> None:
    others = [IsolatedDoubling(), IsolatedDoubling()]
    async with running(IsolatedDoubling(), reopened=others) as made:
        deadly, sound = made.infer(DIES), made.infer(2.0)
        assert "ended its process on this input (exit code 7)" in str(await deadly.error())
        assert await sound.values() == [4.0]
        assert await made.infer(3.0).values() == [6.0]


async def test_a_process_that_ended_before_a_run_is_replaced() -> None:
    first = IsolatedDoubling()
    async with running(first, reopened=[IsolatedDoubling()]) as made:
        await made.infer(1.0).values()
        first.kill()
        assert await made.infer(3.0).values() == [6.0]


async def test_an_awaited_run_that_hangs_is_abandoned() -> None:
    async with running(
        IsolatedDoubling(), reopened=[IsolatedDoubling()], execution_timeout_s=0.3
    ) as made:
        assert "did not finish within 0.3 s" in str(await made.infer(HANGS).error())
        assert await made.infer(3.0).values() == [6.0]


@pytest.mark.parametrize("value", [DISORDER, CLAIMS_ALL])
async def test_a_process_that_breaks_the_protocol_is_ended(value: float) -> None:
    async with running(
        IsolatedDoubling(), reopened=[IsolatedDoubling(), IsolatedDoubling()]
    ) as made:
        await made.infer(1.0).values()
        assert "ended its process" in str(await made.infer(value).error())
        assert await made.infer(3.0).values() == [6.0]


async def test_the_loop_goes_on_while_a_run_is_awaited() -> None:
    async with running(
        IsolatedDoubling(), reopened=[IsolatedDoubling()], execution_timeout_s=0.5
    ) as made:
        call, longest_s = made.infer(HANGS), 0.0
        outcome = asyncio.ensure_future(call.outcome())
        while not outcome.done():
            before = time.monotonic()
            await asyncio.sleep(0.001)
            longest_s = max(longest_s, time.monotonic() - before)
        assert longest_s < 0.4


def test_an_outcome_left_to_the_thread_raises_there() -> None:
    backend = IsolatedDoubling()
    backend.begin({"x": np.full((1, 1), DIES, np.float32)})
    backend.kill()
    with pytest.raises(WorkerProcessDiedError):
        backend.finish()
    backend.close()


def test_a_thread_waits_on_a_channel_that_an_event_loop_has_watched() -> None:
    backend, x = IsolatedDoubling(), np.ones((1, 1), np.float32)
    backend.begin({"x": x})
    os.set_blocking(backend.fileno(), False)  # as uvloop does
    assert backend.finish()["y"] == 2.0
    os.set_blocking(backend.fileno(), False)
    assert backend.run({"x": x})["y"] == 2.0
    backend.close()
