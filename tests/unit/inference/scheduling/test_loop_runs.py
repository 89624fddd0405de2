"""Which batches run on the event loop, and what becomes of those that fail there."""

import threading
from collections.abc import Mapping

import pytest

from flambeau.protocol.tensors import Array
from services.errors import BackendError, DeviceError
from services.inference.scheduling.batch_rules import Batch
from services.inference.scheduling.instance import BatchReport
from services.inference.scheduling.latency import LatencyCurve
from services.inference.scheduling.loop_runs import (
    LEAST_BOUND_S,
    MOST_BOOKED_S,
    MOST_BOUND_S,
    STALL_PAUSE_S,
    STALL_S,
    LaneLoopRuns,
    LoopRuns,
)
from tests.fixtures.fake_backends import POISON, DoublingBackend
from tests.fixtures.running_worker import Running, running

SHORT_S = 5e-5


def batch(seconds: float, runs: int = 1) -> Batch:
    """Returns a batch of one row, of a shape of which one row takes some seconds."""
    curve = LatencyCurve(64, {1: seconds})
    for _ in range(runs):
        curve.observe_cpu(1, seconds)
    return Batch(entries=[], rows=1, padded_rows=1, length=None, curve=curve)


def of_rows(rows: int, like: Batch) -> Batch:
    """Returns a batch of more rows of the same shape."""
    return Batch(entries=[], rows=rows, padded_rows=rows, length=None, curve=like.curve)


def report(seconds: float, cpu_s: float, *, on_loop: bool) -> BatchReport:
    return BatchReport([], 0.0, seconds, True, cpu_s=cpu_s, on_loop=on_loop)


def lane(shared: LoopRuns | None = None) -> LaneLoopRuns:
    made = LaneLoopRuns(shared or LoopRuns())
    made.fits = True
    return made


def test_a_short_batch_goes_on_the_loop_and_a_long_one_does_not() -> None:
    assert lane().takes(batch(SHORT_S), 0.0)
    assert not lane().takes(batch(MOST_BOUND_S * 1.01), 0.0)


def test_backends_that_do_not_fit_never_run_on_the_loop() -> None:
    assert not LaneLoopRuns(LoopRuns()).takes(batch(SHORT_S), 0.0)


def test_shapes_that_have_not_run_do_not_run_on_the_loop() -> None:
    assert not lane().takes(batch(SHORT_S, runs=0), 0.0)


def test_a_first_run_that_took_long_keeps_its_size_off_the_loop() -> None:
    one, slow = lane(), batch(SHORT_S, runs=0)
    one.ran(slow, report(2.6e-3, 2.6e-3, on_loop=False), 2.6e-3, 0.0)
    assert not one.takes(slow, 0.0)


def test_a_run_that_was_slow_for_once_keeps_nothing_off_the_loop() -> None:
    one, short = lane(), batch(SHORT_S)
    one.ran(short, report(STALL_S * 0.9, STALL_S * 0.9, on_loop=True), STALL_S, 0.0)
    assert one.takes(short, 0.0)


def test_sizes_that_have_not_run_are_scaled_up_from_those_that_have() -> None:
    one, single = lane(), batch(2e-5)
    assert one.takes(of_rows(8, single), 0.0)
    assert not one.takes(of_rows(64, single), 0.0)
    one.ran(of_rows(64, single), report(SHORT_S, SHORT_S, on_loop=False), SHORT_S, 0.0)
    assert one.takes(of_rows(64, single), 0.0)


def test_batches_that_were_rerun_entry_by_entry_teach_nothing() -> None:
    one, failed = lane(), batch(SHORT_S, runs=0)
    apart = BatchReport([], 0.0, SHORT_S, together=False, cpu_s=SHORT_S)
    one.ran(failed, apart, SHORT_S, 0.0)
    assert not one.takes(failed, 0.0)


def test_the_runs_of_one_turn_are_limited_over_all_lanes() -> None:
    shared = LoopRuns()
    taken = sum(lane(shared).takes(batch(SHORT_S), 0.0) for _ in range(100))
    assert taken == pytest.approx(MOST_BOOKED_S / SHORT_S, abs=1)


def test_a_new_turn_has_room_again() -> None:
    shared = LoopRuns()
    one, others = lane(shared), [lane(shared) for _ in range(100)]
    assert one.takes(batch(SHORT_S), 0.0)
    while others and others.pop().takes(batch(SHORT_S), 0.0):
        pass
    one.ran(batch(SHORT_S), report(SHORT_S, SHORT_S, on_loop=True), SHORT_S, 0.0)
    assert one.takes(batch(SHORT_S), 0.0)


def test_batches_that_fail_on_the_loop_and_run_in_a_thread_take_no_room_for_ever() -> None:
    shared = LoopRuns()
    failing, other = lane(shared), lane(shared)
    for _ in range(100):
        failing.takes(batch(SHORT_S), 0.0)
        failing.ran(batch(SHORT_S), report(SHORT_S, SHORT_S, on_loop=False), SHORT_S, 0.0)
    assert other.takes(batch(SHORT_S), 0.0)


def test_after_a_stall_the_lane_keeps_off_the_loop_for_a_while() -> None:
    one = lane()
    one.ran(batch(SHORT_S), report(STALL_S, STALL_S, on_loop=True), STALL_S, 100.0)
    assert not one.takes(batch(SHORT_S), 100.0 + STALL_PAUSE_S * 0.99)
    assert one.takes(batch(SHORT_S), 100.0 + STALL_PAUSE_S)


@pytest.mark.parametrize(("hand_over_s", "bound_s"), [(1e-6, LEAST_BOUND_S), (1.0, MOST_BOUND_S)])
def test_the_bound_is_what_a_hand_over_costs_here(hand_over_s: float, bound_s: float) -> None:
    shared = LoopRuns()
    one = lane(shared)
    for _ in range(200):
        ran = report(SHORT_S, SHORT_S, on_loop=False)
        one.ran(batch(SHORT_S), ran, SHORT_S + hand_over_s, 0.0)
    assert shared.bound_s == pytest.approx(bound_s)


def test_what_a_thread_waits_for_does_not_count_as_its_run() -> None:
    one, waited = lane(), batch(SHORT_S, runs=0)
    slow_s = 4 * MOST_BOUND_S
    one.ran(waited, report(slow_s, SHORT_S, on_loop=False), slow_s, 0.0)
    assert one.takes(waited, 0.0)


class Watched(DoublingBackend):
    """A backend that fits the loop, and records the threads of its runs."""

    fits_loop = True

    def __init__(self, *failures: BaseException) -> None:
        super().__init__(*failures)
        self.on_loop: list[bool] = []

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Runs, and records where."""
        self.on_loop.append(threading.current_thread() is threading.main_thread())
        return super().run(inputs)


async def runs_on_loop(worker: Running, backend: Watched, rows: int = 1) -> None:
    """Sends batches until one runs on the loop: the thread's first ones warm the caches."""
    while not backend.on_loop or not backend.on_loop[-1]:
        calls = [worker.infer(1.0) for _ in range(rows)]
        for call in calls:
            assert await call.values() == [2.0]


async def test_batches_of_a_backend_that_fits_run_on_the_loop_and_are_counted() -> None:
    backend = Watched()
    async with running(backend) as worker:
        await runs_on_loop(worker, backend)
        counted = worker.counted("flambeau_loop_batches_total")
    assert not backend.on_loop[0]  # it shows how long a run takes
    assert counted == sum(backend.on_loop)


async def test_a_batch_that_fails_on_the_loop_is_rerun_by_the_thread() -> None:
    backend = Watched()
    async with running(backend) as worker:
        await runs_on_loop(worker, backend, rows=3)
        backend.on_loop.clear()
        calls = [worker.infer(value) for value in (1.0, POISON, 3.0)]
        assert await calls[0].values() == [2.0]
        assert isinstance(await calls[1].error(), BackendError)
        assert await calls[2].values() == [6.0]
    assert backend.on_loop == [True, False, False, False, False]


async def test_a_batch_that_fails_because_of_the_device_is_not_rerun() -> None:
    backend = Watched()
    async with running(backend) as worker:
        await runs_on_loop(worker, backend)
        backend.on_loop.clear()
        backend.failures.append(DeviceError("no memory"))
        assert isinstance(await worker.infer(1.0).error(), DeviceError)
    assert backend.on_loop == [True]
