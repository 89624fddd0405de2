"""The worker answers every request exactly once, under any arrivals, cancellations and failures."""

import asyncio
from collections.abc import Sequence
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.errors import (
    BackendError,
    DeadlineExceededError,
    DeviceError,
    InputRefusedError,
    WouldMissDeadlineError,
)
from services.inference.scheduling import instance_pool
from services.inference.scheduling import worker as worker_module
from services.queueing.records import JOB_PRIORITY, InferReply
from tests.fixtures.fake_backends import (
    POISON,
    DoublingBackend,
    NamelessBackend,
    WrongRowsBackend,
)
from tests.fixtures.queue_ends import FURTHER, Shelf
from tests.fixtures.running_worker import (
    MAX_ROWS,
    Call,
    Running,
    ran,
    running,
    values_of,
)


async def test_an_idle_worker_runs_what_is_there_at_once() -> None:
    backend = DoublingBackend()
    async with running(backend) as made:
        assert await made.infer(1.0).values() == [2.0]
    assert ran(backend) == [[1.0]]


async def test_requests_gather_while_the_worker_is_busy() -> None:
    backend = DoublingBackend()
    async with running(backend) as made:
        calls = [await made.busy_with(0.0)]
        calls += [made.infer(float(n)) for n in range(1, 7)]
        backend.gate.set()
        assert [await call.values() for call in calls] == [[2.0 * n] for n in range(7)]
        assert made.counted("flambeau_batch_size_sum") == 7
        assert made.counted("flambeau_batch_size_count") == 3
        assert made.counted("flambeau_queue_duration_seconds_count") == 7
    assert [len(b) for b in backend.batches] == [1, 4, 2]


async def test_requests_of_one_moment_share_a_batch() -> None:
    backend = DoublingBackend()
    async with running(backend) as made:
        calls = [made.infer(float(n)) for n in range(3)]
        assert [await call.values() for call in calls] == [[0.0], [2.0], [4.0]]
    assert ran(backend) == [[0.0, 1.0, 2.0]]


async def test_the_rows_of_a_request_stay_together() -> None:
    backend = DoublingBackend()
    async with running(backend) as made:
        calls = [made.infer(1.0, 2.0, 3.0), made.infer(4.0, 5.0, 6.0)]
        assert [await call.values() for call in calls] == [[2.0, 4.0, 6.0], [8.0, 10.0, 12.0]]
    assert ran(backend) == [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]


async def test_every_instance_runs_a_batch_of_its_own() -> None:
    first, second = DoublingBackend(), DoublingBackend()
    async with running(first, second) as made:
        first.gate.clear()
        second.gate.clear()
        calls = [made.infer(1.0)]
        await asyncio.to_thread(second.started.wait)
        calls += [made.infer(2.0)]
        await asyncio.to_thread(first.started.wait)
        first.gate.set()
        second.gate.set()
        assert [await call.values() for call in calls] == [[2.0], [4.0]]


async def test_a_batch_waits_for_company_as_long_as_it_was_told() -> None:
    backend = DoublingBackend()
    async with running(backend, wait_s=0.02) as made:
        first = made.infer(1.0)
        assert await first.values() == [2.0]
        outcome = first.heard[0]
        assert isinstance(outcome, InferReply)
        assert outcome.queue_s >= 0.02


async def test_a_full_batch_waits_for_nothing() -> None:
    backend = DoublingBackend()
    async with running(backend, wait_s=1000.0) as made:
        calls = [made.infer(float(n)) for n in range(MAX_ROWS)]
        assert [await call.values() for call in calls] == [[0.0], [2.0], [4.0], [6.0]]
    assert len(backend.batches) == 1


async def test_the_event_loop_has_a_turn_between_the_answers_of_a_large_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker_module, "ANSWERS_AT_ONCE", 2)
    async with running(DoublingBackend()) as made:
        calls = [made.infer(float(n)) for n in range(MAX_ROWS)]
        await calls[0].values()
        assert [len(call.heard) for call in calls] == [1, 1, 0, 0]
        made.close()  # the rest is answered all the same
        assert [await call.values() for call in calls] == [[0.0], [2.0], [4.0], [6.0]]


async def test_a_poisoned_request_fails_alone() -> None:
    backend = DoublingBackend()
    async with running(backend) as made:
        good, bad, other = (made.infer(v) for v in (1.0, POISON, 3.0))
        assert await good.values() == [2.0]
        assert await other.values() == [6.0]
        error = await bad.error()
    assert type(error) is BackendError
    assert "cannot double" in str(error)
    assert ran(backend) == [[1.0, POISON, 3.0], [1.0], [POISON], [3.0]]


async def test_what_a_python_step_refuses_is_refused_alone() -> None:
    refusal = InputRefusedError("no words")
    backend = DoublingBackend(refusal, refusal)  # the batch, and then its first request alone
    async with running(backend) as made:
        bad, good = made.infer(1.0), made.infer(2.0)
        error = await bad.error()
        assert type(error) is InputRefusedError
        assert str(error) == "model 'm' version 1 does not take this input: no words"
        assert await good.values() == [4.0]
    assert ran(backend) == [[1.0, 2.0], [1.0], [2.0]]


async def test_a_model_that_ends_the_program_only_fails_its_request() -> None:
    async with running(DoublingBackend(SystemExit("the end"))) as made:
        assert isinstance(await made.infer(1.0).error(), BackendError)
        assert await made.infer(2.0).values() == [4.0]


@pytest.mark.parametrize(
    ("backend", "message"),
    [
        (WrongRowsBackend(), r"'y' of shape \[1, 1\] for a batch of 2 rows"),
        (NamelessBackend(), "no output 'y'"),
    ],
)
async def test_outputs_unlike_the_signature_are_an_error(
    backend: DoublingBackend, message: str
) -> None:
    async with running(backend) as made:
        error = await made.infer(1.0, 2.0).error()
    with pytest.raises(BackendError, match=message):
        raise error


async def test_cancelled_work_never_reaches_the_backend() -> None:
    backend = DoublingBackend()
    async with running(backend) as made:
        first = await made.busy_with(0.0)
        gone, stays = made.infer(1.0), made.infer(2.0)
        gone.entry.cancel()
        backend.gate.set()
        await first.values()
        await stays.values()
        assert made.counted("flambeau_dropped_requests_total", reason="cancelled") == 1
    assert ran(backend) == [[0.0], [2.0]]
    assert not gone.heard


async def test_what_has_not_begun_can_be_given_up() -> None:
    backend = DoublingBackend()
    async with running(backend) as made:
        assert made.worker.capacity == 2 * MAX_ROWS
        first = await made.busy_with(0.0)
        waits = made.infer(1.0)
        assert made.worker.release(waits.entry)
        assert not made.worker.release(waits.entry)
        assert not made.worker.release(first.entry)
        waits.entry.cancel()
        backend.gate.set()
        assert await first.values() == [0.0]
        assert made.counted("flambeau_dropped_requests_total", reason="cancelled") is None
    assert ran(backend) == [[0.0]]


async def test_jobs_run_in_batches_when_nothing_else_waits() -> None:
    backend = DoublingBackend()
    async with running(backend) as made:
        first = await made.busy_with(0.0)
        jobs = [made.infer(float(n), priority=JOB_PRIORITY) for n in (1, 2)]
        online = made.infer(3.0)
        assert made.worker.background_capacity == 0
        assert not made.worker.idle
        backend.gate.set()
        for call in (first, online, *jobs):
            await call.values()
        assert made.worker.background_capacity == made.worker.capacity
    assert ran(backend) == [[0.0], [3.0], [1.0, 2.0]]


async def test_a_job_that_is_cancelled_does_not_run() -> None:
    backend = DoublingBackend()
    async with running(backend) as made:
        first = await made.busy_with(0.0)
        gone, stays = (made.infer(float(n), priority=JOB_PRIORITY) for n in (1, 2))
        gone.entry.cancel()
        assert made.worker.release(stays.entry)
        backend.gate.set()
        await first.values()
    assert ran(backend) == [[0.0]]


async def test_jobs_do_not_run_while_they_would_make_others_late() -> None:
    backend = DoublingBackend()
    async with running(backend, seeds={1: 0.2, MAX_ROWS: 0.2}) as made:
        await made.infer(0.0, timeout_s=0.3).outcome()
        job = made.infer(1.0, priority=JOB_PRIORITY)
        await made.infer(2.0, timeout_s=0.3).outcome()
        assert not job.heard
        job.entry.cancel()
    assert ran(backend) == [[0.0], [2.0]]


async def test_a_request_that_is_refused_holds_no_job_up() -> None:
    backend = DoublingBackend()
    backend.gate.set()
    async with running(backend, seeds={1: 0.2, MAX_ROWS: 0.2}) as made:
        await made.infer(0.0, timeout_s=0.001).error()
        await made.infer(1.0, priority=JOB_PRIORITY).values()
    assert ran(backend) == [[1.0]]


async def test_jobs_that_may_not_run_ask_again_one_at_a_time() -> None:
    backend = DoublingBackend()
    backend.gate.set()
    async with running(backend, seeds={1: 0.2, MAX_ROWS: 0.2}) as made:
        await made.infer(0.0, timeout_s=0.3).outcome()
        with mock.patch.object(asyncio.get_running_loop(), "call_later") as call_later:
            for _ in range(5):
                assert made.worker.take_background_turn() is None  # nothing waits
            job = made.infer(1.0, priority=JOB_PRIORITY)
            for _ in range(5):
                assert made.worker.take_background_turn() is None
        assert call_later.call_count == 1
        job.entry.cancel()


async def test_work_whose_time_is_up_never_reaches_the_backend() -> None:
    backend = DoublingBackend()
    async with running(backend) as made:
        first = await made.busy_with(0.0)
        assert isinstance(await made.infer(1.0, timeout_s=0.01).error(), DeadlineExceededError)
        backend.gate.set()
        await first.values()
        assert made.counted("flambeau_dropped_requests_total", reason="expired") == 1
    assert ran(backend) == [[0.0]]


async def test_work_that_has_become_hopeless_never_reaches_the_backend() -> None:
    backend = DoublingBackend()
    async with running(backend) as made:
        first = await made.busy_with(0.0)
        hopeless = made.infer(1.0, timeout_s=5)
        for _ in range(2):  # only now it turns out how slow the model is
            made.latency.curve((), 1).observe(1, 100.0)
        backend.gate.set()
        await first.values()
        assert isinstance(await hopeless.error(), DeadlineExceededError)
        assert made.counted("flambeau_dropped_requests_total", reason="infeasible") == 1
    assert ran(backend) == [[0.0]]


async def test_what_cannot_make_its_deadline_is_refused_at_once() -> None:
    backend = DoublingBackend()
    async with running(backend, seeds={1: 1.0}) as made:
        (error,) = made.infer(1.0, timeout_s=0.5).heard
        assert isinstance(error, WouldMissDeadlineError)
        assert "would need an estimated 1200.0 ms" in str(error)
        assert "leaves 500.0 ms" in str(error) or "leaves 499." in str(error)
    assert not backend.batches


@pytest.mark.parametrize(
    ("run_s", "timeout_s", "needed"), [(2e-5, 1e-6, "0.024 ms"), (1.0, 0.0, "no time")]
)
async def test_short_times_are_told_too(run_s: float, timeout_s: float, needed: str) -> None:
    async with running(DoublingBackend(), seeds={1: run_s}) as made:
        (error,) = made.infer(1.0, timeout_s=timeout_s).heard
        assert needed in str(error)
        assert " 0.0 ms" not in str(error)


async def test_what_cannot_make_its_deadline_goes_to_the_lane_named_for_that() -> None:
    backend, faster = DoublingBackend(), Shelf()
    async with running(backend, seeds={1: 1.0}) as made:
        made.queue.open(FURTHER, faster)
        call = made.infer(1.0, timeout_s=0.5, degrade_to=FURTHER)
        assert [entry.request.lane for entry in faster.entries] == [FURTHER]
        assert not call.heard
        call.entry.cancel()
    assert not backend.batches


async def test_the_backlog_counts_when_a_deadline_is_judged() -> None:
    backend = DoublingBackend()
    async with running(backend, seeds={1: 10.0, MAX_ROWS: 10.0}) as made:
        calls = [await made.busy_with(0.0)]
        calls += [made.infer(float(n)) for n in range(1, 5)]  # a full batch
        assert isinstance(made.infer(9.0, timeout_s=25).heard[0], WouldMissDeadlineError)
        calls += [made.infer(5.0, timeout_s=40)]
        backend.gate.set()
        assert [await call.values() for call in calls] == [[2.0 * n] for n in range(6)]


async def test_what_was_learned_wrongly_is_tried_again_some_day(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker_module, "DECAY_EVERY_S", 0.0)
    async with running(DoublingBackend(), seeds={1: 10.0}) as made:
        calls = [made.infer(1.0, timeout_s=6.0) for _ in range(7)]
        # 12 s by the seeds and what caution adds, a tenth less each time: 6.4 s, then 5.7 s.
        assert all(isinstance(call.heard[0], WouldMissDeadlineError) for call in calls)
        assert await made.infer(1.0, timeout_s=6.0).values() == [2.0]


async def test_a_device_s_failure_is_not_looked_for_in_the_requests() -> None:
    backend = DoublingBackend(DeviceError("out of memory"))
    async with running(backend) as made:
        errors = [await call.error() for call in [made.infer(1.0), made.infer(2.0)]]
        assert [str(error) for error in errors] == ["out of memory"] * 2
        assert all(isinstance(error, DeviceError) for error in errors)
        assert await made.infer(3.0).values() == [6.0]
    assert ran(backend) == [[1.0, 2.0], [3.0]]


async def test_a_backend_that_blocks_is_given_up_and_replaced() -> None:
    blocking, next_one = DoublingBackend(), DoublingBackend()
    async with running(blocking, reopened=[next_one], execution_timeout_s=0.05) as made:
        stuck = await made.busy_with(1.0)
        waits = made.infer(2.0)
        assert "did not finish within 0.05 s" in str(await stuck.error())
        assert await waits.values() == [4.0]
        assert made.counted("flambeau_worker_restarts_total", reason="blocked") == 1
        blocking.gate.set()  # it comes back after all, and nobody listens
        assert await asyncio.to_thread(blocking.closed.wait, 10)
    assert len(stuck.heard) == 1


async def test_opening_is_tried_until_it_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance_pool, "REOPEN_AFTER_S", 0.001)
    no_memory, next_one = OSError("no memory"), DoublingBackend()
    async with running(
        DoublingBackend(), reopened=[no_memory, no_memory, next_one], execution_timeout_s=0.02
    ) as made:
        stuck = await made.busy_with(1.0)
        waits = made.infer(2.0)
        assert isinstance(await stuck.error(), BackendError)
        assert await waits.values() == [4.0]


async def test_a_closed_lane_is_drained_before_the_backend_closes() -> None:
    backend = DoublingBackend()
    async with running(backend) as made:
        calls = [await made.busy_with(0.0)]
        calls += [made.infer(float(n)) for n in range(1, 9)]
        made.close()
        assert not backend.closed.is_set()
        backend.gate.set()
        assert [await call.values() for call in calls] == [[2.0 * n] for n in range(9)]


async def test_a_drain_ends_although_a_backend_blocks() -> None:
    backend = DoublingBackend()
    made = Running([backend])
    task = asyncio.create_task(made.worker.run())
    stuck = await made.busy_with(1.0)
    made.close()
    made.queue.fail_all(BackendError("the end"))
    assert not task.done()
    made.worker.abandon_runs()
    await task
    backend.gate.set()
    assert await asyncio.to_thread(backend.closed.wait, 10)
    assert [str(outcome) for outcome in stuck.heard] == ["the end"]


steps = st.lists(
    st.tuples(
        st.lists(st.sampled_from([1.0, 2.0, 3.0, POISON]), min_size=1, max_size=MAX_ROWS),
        st.sampled_from(["wait", "cancel"]),
        st.booleans(),  # let the loop turn after this request
    ),
    min_size=1,
    max_size=25,
)


@settings(max_examples=60)
@given(steps)
def test_every_request_is_answered_exactly_once(
    arrivals: Sequence[tuple[list[float], str, bool]],
) -> None:
    async def scenario() -> list[tuple[list[float], Call, bool]]:
        backend = DoublingBackend()
        sent: list[tuple[list[float], Call, bool]] = []
        async with running(backend) as made:
            for values, fate, turn in arrivals:
                call = made.infer(*values)
                if turn:
                    await asyncio.sleep(0)
                cancelled = fate == "cancel" and not call.entry.dead
                if cancelled:
                    call.entry.cancel()
                sent.append((values, call, cancelled))
        assert all(len(batch) <= MAX_ROWS for batch in backend.batches)
        return sent

    for values, call, cancelled in asyncio.run(scenario()):
        if cancelled:
            assert not call.heard
            continue
        (outcome,) = call.heard
        if POISON in values:
            assert isinstance(outcome, BackendError)
        else:
            assert isinstance(outcome, InferReply)
            assert values_of(outcome) == [2 * v for v in values]


async def test_a_worker_goes_over_to_other_backends_and_every_request_is_answered_once() -> None:
    before, after = DoublingBackend(), DoublingBackend()
    async with running(before) as made:
        calls = [await made.busy_with(0.0)]
        calls += [made.infer(float(n)) for n in range(1, 4)]
        made.backends.append(after)
        made.worker.replace_backends([after], DoublingBackend, {1: 0.001}, 1)
        calls += [made.infer(float(n)) for n in range(4, 7)]
        before.gate.set()
        assert [await call.values() for call in calls] == [[2.0 * n] for n in range(7)]
        assert [len(call.heard) for call in calls] == [1] * 7
        assert await asyncio.to_thread(before.closed.wait, 10)
    assert ran(before) == [[0.0]]
    assert sorted(value for batch in ran(after) for value in batch) == [1, 2, 3, 4, 5, 6]


async def test_what_was_learned_of_the_backends_before_does_not_count_for_the_next() -> None:
    slow, quick = DoublingBackend(), DoublingBackend()
    async with running(slow, seeds={1: 100.0}) as made:
        error = await made.infer(1.0, timeout_s=1).error()
        assert isinstance(error, WouldMissDeadlineError)
        made.backends.append(quick)
        made.worker.replace_backends([quick], DoublingBackend, {1: 0.001}, 1)
        assert await made.infer(1.0, timeout_s=1).values() == [2.0]


async def test_a_backend_that_blocks_while_its_worker_goes_over_is_not_replaced() -> None:
    before, after = DoublingBackend(), DoublingBackend()
    async with running(before, execution_timeout_s=0.05) as made:
        blocked = await made.busy_with(0.0)
        made.backends.append(after)
        made.worker.replace_backends([after], DoublingBackend, {}, 1)
        assert isinstance(await blocked.error(), BackendError)
        assert await made.infer(1.0).values() == [2.0]
