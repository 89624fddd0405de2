"""Workers that share a device: the cost charged to a lane, and concurrent runs."""

import asyncio
import time

import pytest

from services.errors import DisplacedError
from services.inference.scheduling import worker as worker_module
from services.inference.scheduling.device_turns import DeviceTurns, Runner
from services.queueing.records import JOB_PRIORITY, MIRROR_PRIORITY
from tests.fixtures.fake_backends import DoublingBackend
from tests.fixtures.running_worker import MAX_ROWS, ran, running


async def test_short_batches_go_beside_a_long_one() -> None:
    turns = DeviceTurns(1)
    async with (
        running(DoublingBackend(), seeds={MAX_ROWS: 10.0}, turns=turns) as long,
        running(DoublingBackend(), seeds={MAX_ROWS: 1e-4}, turns=turns) as short,
    ):
        await long.busy_with(1.0)
        # The second is due after a pause, and nothing else comes that could start it.
        for value in (1.0, 2.0):
            assert await short.infer(value).values() == [2 * value]


async def test_short_batches_gather_before_they_go_beside_a_long_one_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker_module, "PAUSE", 1e9)
    turns, backend = DeviceTurns(1), DoublingBackend()
    async with (
        running(DoublingBackend(), seeds={MAX_ROWS: 10.0}, turns=turns) as long,
        running(backend, seeds={MAX_ROWS: 1e-4}, turns=turns) as short,
    ):
        busy = await long.busy_with(1.0)
        await short.infer(1.0).values()
        calls = [short.infer(2.0)]
        await asyncio.to_thread(lambda: None)  # the worker has been asked, and has not begun
        calls += [short.infer(3.0)]
        long.backends[0].gate.set()
        await busy.values()
        assert [await call.values() for call in calls] == [[4.0], [6.0]]
    assert ran(backend) == [[1.0], [2.0, 3.0]]


async def test_a_full_batch_waits_for_no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "PAUSE", 1e9)
    turns = DeviceTurns(1)
    async with (
        running(DoublingBackend(), seeds={MAX_ROWS: 10.0}, turns=turns) as long,
        running(DoublingBackend(), seeds={MAX_ROWS: 1e-4}, turns=turns) as short,
    ):
        await long.busy_with(1.0)
        await short.infer(1.0).values()
        calls = [short.infer(2.0) for _ in range(MAX_ROWS)]
        assert [await call.values() for call in calls] == [[4.0]] * MAX_ROWS


async def test_a_lane_pays_for_what_its_backend_runs_and_not_for_a_busy_event_loop() -> None:
    class Bill(DeviceTurns):
        paid_s = 0.0

        def done(
            self, lane: Runner, expected_s: float, took_s: float, *, asks: bool = False
        ) -> None:
            self.paid_s += took_s
            super().done(lane, expected_s, took_s, asks=asks)

    bill = Bill(1)
    async with running(DoublingBackend(), turns=bill) as made:
        call = await made.busy_with(1.0)
        asyncio.get_running_loop().call_soon(time.sleep, 0.2)  # so that the answer has to wait
        made.backends[0].gate.set()
        await call.values()
    assert 0 < bill.paid_s < 0.1


async def test_job_that_comes_while_all_instances_run_begins_when_one_is_free() -> None:
    """The device has a turn for it at once, and the worker takes none."""
    backend = DoublingBackend()
    async with running(backend, turns=DeviceTurns(2)) as made:
        first = await made.busy_with(0.0)
        job = made.infer(1.0, priority=JOB_PRIORITY)
        backend.gate.set()
        await first.values()
        async with asyncio.timeout(10):
            await job.values()
    assert ran(backend) == [[0.0], [1.0]]


async def test_mirrored_request_is_refused_while_requests_wait() -> None:
    async with running(DoublingBackend()) as made:
        first = await made.busy_with(0.0)
        beside = made.infer(1.0, priority=MIRROR_PRIORITY)  # none waits: it is the next
        waiting = [made.infer(2.0), made.infer(3.0)]
        refused = made.infer(4.0, priority=MIRROR_PRIORITY)
        job = made.infer(5.0, priority=JOB_PRIORITY)
        assert isinstance(await refused.error(), DisplacedError)
        made.backends[0].gate.set()
        for call in (first, *waiting, beside, job):
            await call.values()


async def test_mirrored_request_that_does_not_get_to_run_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker_module, "MIRROR_WAITS_S", 0.02)
    backend = DoublingBackend()
    async with running(backend) as made:
        first = await made.busy_with(0.0)
        mirrored = made.infer(1.0, priority=MIRROR_PRIORITY)
        job = made.infer(2.0, priority=JOB_PRIORITY)
        assert isinstance(await mirrored.error(), DisplacedError)
        backend.gate.set()
        await first.values()
        await job.values()
    assert ran(backend) == [[0.0], [2.0]]


async def test_each_mirrored_request_waits_no_longer_than_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker_module, "MIRROR_WAITS_S", 1.0)
    backend = DoublingBackend()
    async with running(backend) as made:
        busy = await made.busy_with(0.0)
        first = made.infer(1.0, priority=MIRROR_PRIORITY)
        await asyncio.sleep(0.1)  # so that the second is not due with the first
        second, began = made.infer(2.0, priority=MIRROR_PRIORITY), time.monotonic()
        for mirrored in (first, second):
            assert isinstance(await mirrored.error(), DisplacedError)
        assert time.monotonic() - began < 1.6
        backend.gate.set()
        await busy.values()
