"""Workers of backends that share weights: full batches overlap, and small ones do not."""

import asyncio

import pytest

from services.inference.scheduling.device_turns import DeviceTurns
from services.queueing.records import JOB_PRIORITY
from tests.fixtures.fake_backends import DoublingBackend, GatedBackend
from tests.fixtures.running_worker import MAX_ROWS, Call, Running, ran, running


def pair() -> tuple[DoublingBackend, DoublingBackend]:
    """A backend and its twin."""
    own, twin = DoublingBackend(), DoublingBackend()
    twin.is_twin = True
    return own, twin


async def begun(made: Running) -> tuple[Call, GatedBackend, GatedBackend]:
    """Starts a batch of one row: its call, the backend that runs it, and the idle one."""
    for backend in made.backends:
        backend.gate.clear()
    call = made.infer(1.0)
    idle, busy = made.backends
    await asyncio.to_thread(busy.started.wait, 10)
    return call, busy, idle


@pytest.mark.parametrize("priority", [5, JOB_PRIORITY])
async def test_only_a_full_batch_runs_beside_another(priority: int) -> None:
    async with running(*pair(), turns=DeviceTurns(2)) as made:
        _, _, idle = await begun(made)
        calls = [made.infer(float(n), priority=priority) for n in range(2, MAX_ROWS + 1)]
        await asyncio.sleep(0)
        await asyncio.to_thread(lambda: None)
        assert not idle.started.is_set()
        calls += [made.infer(9.0, priority=priority)]
        await asyncio.to_thread(idle.started.wait, 10)
        idle.gate.set()
        for call in calls:
            await call.values()
        assert isinstance(idle, DoublingBackend)
        assert ran(idle) == [[2.0, 3.0, 4.0, 9.0]]


async def test_a_small_batch_runs_when_the_other_has_ended() -> None:
    async with running(*pair(), turns=DeviceTurns(2)) as made:
        first, busy, idle = await begun(made)
        second = made.infer(5.0)
        idle.gate.set()
        busy.gate.set()
        assert await first.values() == [2.0]
        assert await second.values() == [10.0]


async def test_a_small_batch_runs_when_the_other_is_given_up() -> None:
    async with running(
        *pair(), turns=DeviceTurns(2), execution_timeout_s=0.2, reopened=[RuntimeError("no memory")]
    ) as made:
        first, _, idle = await begun(made)
        second = made.infer(5.0)
        idle.gate.set()
        assert "did not finish" in str(await first.error())
        assert await second.values() == [10.0]
