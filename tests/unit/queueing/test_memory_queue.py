"""Guarantees of the single-process queue alone: all effects are immediate."""

import pytest

from services.errors import BackendError, DeadlineExceededError
from services.queueing.memory_queue import MemoryQueue, Outcome
from tests.fixtures.queue_ends import LANE, MAX_DEPTH, Ends, Shelf, reply


@pytest.fixture
def ends() -> Ends:
    queue, shelf = MemoryQueue(MAX_DEPTH), Shelf()
    queue.open(LANE, shelf)
    return Ends(queue, queue, shelf)


async def test_an_entry_is_handed_over_before_submit_returns(ends: Ends) -> None:
    caller = ends.send()
    assert ends.shelf.entries == [caller.entry]
    assert not caller.entry.dead
    assert not caller.heard


async def test_an_intake_may_answer_at_once(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = reply()
    with monkeypatch.context() as patch:
        patch.setattr(ends.shelf, "accept", lambda entry: entry.finish(answer))
        caller = ends.send(timeout_s=0.01)
    assert caller.heard == [answer]
    assert caller.entry.dead
    await ends.send(timeout_s=0.02).outcome()  # the deadline of the first counts no more
    assert caller.heard == [answer]


async def test_a_caller_that_raises_harms_nobody(ends: Ends) -> None:
    def raising(_: Outcome) -> None:
        raise RuntimeError("a fault of the edge")

    entry = ends.gateway.submit(ends.send().entry.request, raising)
    entry.finish(reply())
    assert entry.dead


async def test_a_cancelled_caller_leaves_a_dead_entry(ends: Ends) -> None:
    entry = ends.send().entry
    entry.cancel()
    entry.finish(reply())  # harmless
    entry.cancel()
    assert ends.shelf.discarded == [(entry, "cancelled")]


async def test_a_deadline_that_passes_while_it_runs_answers_the_caller(ends: Ends) -> None:
    caller = ends.send(timeout_s=0.01)
    running = ends.shelf.take()
    assert isinstance(await caller.outcome(), DeadlineExceededError)
    running.finish(reply())
    assert len(caller.heard) == 1


async def test_deadlines_pass_in_their_own_order(ends: Ends) -> None:
    late, early = ends.send(timeout_s=0.05), ends.send(timeout_s=0.01)
    await early.outcome()
    assert not late.heard
    assert isinstance(await late.outcome(), DeadlineExceededError)


async def test_an_entry_of_a_closed_lane_can_still_be_cancelled(ends: Ends) -> None:
    entry = ends.send().entry
    ends.gateway.close(LANE)
    entry.cancel()
    assert ends.shelf.discarded == [(entry, "cancelled")]


async def test_everybody_who_waits_can_be_told_at_once(ends: Ends) -> None:
    runs, waits, answered = (ends.send(n) for n in range(3))
    running, answer = ends.shelf.take(), reply(3)
    ends.shelf.entries[1].finish(answer)
    error = BackendError("the end")
    ends.gateway.fail_all(error)
    running.finish(reply(1))  # too late, and harmless
    assert runs.heard == waits.heard == [error]
    assert answered.heard == [answer]
    assert ends.shelf.discarded == [(waits.entry, "failed")]
