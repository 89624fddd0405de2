"""The state machine of training jobs, under any events in any order."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from services.errors import ConflictError
from services.trainer.records import LONGEST_TEXT, OVER, TrainingJob
from services.trainer.stores import transitions
from services.trainer.stores.transitions import Change
from tests.fixtures.training_jobs import job

LEASE_S, GRACE_S = 10.0, 3.0
Step = Callable[[TrainingJob, float], Change | None]
STEPS: dict[str, Step] = {
    "taken": lambda x, now: transitions.taken(x, f"w{now:g}", f"h{now:g}", now, LEASE_S),
    "taken apart": lambda x, now: transitions.taken(x, "w", f"h{now:g}", now, LEASE_S, True),
    "renewed": lambda x, now: transitions.renewed(x, x.holder, now, LEASE_S),
    "succeeded": lambda x, now: transitions.succeeded(x, x.holder, now, 7),
    "failed": lambda x, now: transitions.failed(x, x.holder, now, "broken"),
    "stopped": lambda x, now: transitions.stopped(x, x.holder, now),
    "abandoned": lambda x, now: transitions.abandoned(x, now, 1, GRACE_S),
    "cancelled": transitions.cancelled,
    "ended apart": transitions.ended_apart,
    "resumed": transitions.resumed,
    "progressed": lambda x, _: transitions.progressed(x, x.holder, run_folder="/r", epoch=3),
}
steps = st.lists(st.tuples(st.sampled_from(sorted(STEPS)), st.floats(0, 15)), max_size=30)


@given(steps)
def test_a_job_keeps_its_laws_whatever_happens(history: list[tuple[str, float]]) -> None:
    found, now, deaths_since_resumed = job(), 100.0, 0
    for name, later_s in history:
        now += later_s
        try:
            change = STEPS[name](found, now)
        except ConflictError:
            assert name == "resumed"
            continue
        if change is None:
            continue
        before, (found, events) = found, change
        assert found.revision == before.revision + 1
        assert (found.state == "running") == bool(found.worker) == bool(found.holder)
        assert (found.finished_at is not None) == found.is_over
        assert (found.version is not None) == (found.state == "succeeded")
        assert bool(found.error) == (found.state == "failed")
        assert found.attempts == before.attempts + name.startswith("taken")
        assert found.resumptions == before.resumptions + (name == "resumed")
        if found.state == "cancelled" and before.runs_apart:
            assert name == "ended apart", "before that it may publish"
        assert before.state != found.state or not events or name == "cancelled"
        assert all(event.state == found.state for event in events)
        if before.state in OVER:
            assert name == "resumed"
            deaths_since_resumed = 0
        if name == "abandoned" and before.last_call:
            deaths_since_resumed += not before.cancel_asked
        assert found.last_call == (name == "abandoned" and not before.last_call) or (
            found.last_call and name in ("cancelled", "progressed")
        )
        assert deaths_since_resumed <= 2
        assert found.state == "failed" or deaths_since_resumed <= 1 or found.state == "cancelled"


def running(*, cancel_asked: bool = False, **fields: object) -> TrainingJob:
    apart = bool(fields.pop("runs_apart", False))
    change = transitions.taken(job(**fields), "w", "h", 100.0, LEASE_S, apart)
    assert change is not None
    return replace(change[0], cancel_asked=cancel_asked)


def called(found: TrainingJob, now: float) -> TrainingJob:
    """A job whose worker was silent until then, and got its last call."""
    change = transitions.abandoned(found, now, 1, GRACE_S)
    assert change is not None
    assert change[1] == []
    return change[0]


def test_a_job_outlives_its_worker_once() -> None:
    first = running()
    assert transitions.abandoned(first, 110.0, 1, GRACE_S) is None, "its lease holds until then"
    asked = called(first, 110.1)
    assert (asked.state, asked.deaths, asked.lease_until) == ("running", 0, 113.1)
    assert transitions.abandoned(asked, 113.1, 1, GRACE_S) is None, "it may still answer"
    change = transitions.abandoned(asked, 113.2, 1, GRACE_S)
    assert change is not None
    queued, (event,) = change
    assert (queued.state, queued.deaths) == ("queued", 1)
    assert event.text == "worker w died; another takes over"
    again = transitions.taken(queued, "v", "g", 111.0, LEASE_S)
    assert again is not None
    assert again[1][0].text == "resumed from its checkpoint on v, attempt 2"
    last = transitions.abandoned(called(again[0], 200.0), 204.0, 1, GRACE_S)
    assert last is not None
    assert last[0].state == "failed"
    assert last[0].error.startswith("its worker died 2 times while it ran, the last time v in")


def test_who_answers_the_last_call_keeps_the_job_and_no_death_counts() -> None:
    found = running()
    for outage in (1000.0, 2000.0, 3000.0):
        renewed = transitions.renewed(called(found, outage), "h", outage + 1, LEASE_S)
        assert renewed is not None
        found = renewed[0]
        assert (found.state, found.deaths, found.last_call) == ("running", 0, False)
        assert transitions.abandoned(found, outage + LEASE_S, 1, GRACE_S) is None
    for rule, state in (
        (transitions.stopped(called(found, 4000.0), "h", 4001.0), "queued"),
        (transitions.succeeded(called(found, 4000.0), "h", 4001.0, 7), "succeeded"),
    ):
        assert rule is not None
        assert (rule[0].state, rule[0].deaths, rule[0].last_call) == (state, 0, False)


def test_handing_back_is_no_death() -> None:
    change = transitions.stopped(running(), "h", 105.0)
    assert change is not None
    assert (change[0].state, change[0].deaths) == ("queued", 0)


def test_what_a_late_worker_says_does_not_count() -> None:
    found = running()
    assert transitions.succeeded(found, "old", 105.0, 1) is None
    assert transitions.failed(found, "old", 105.0, "x") is None
    assert transitions.stopped(found, "old", 105.0) is None
    assert transitions.renewed(found, "old", 105.0, LEASE_S) is None
    assert transitions.progressed(found, "old", run_folder="", epoch=1) is None


def test_a_running_job_is_cancelled_by_its_worker() -> None:
    asked = transitions.cancelled(running(), 101.0)
    assert asked is not None
    assert asked[0].state == "running"
    assert transitions.cancelled(asked[0], 102.0) is None
    for rule in (
        transitions.stopped(asked[0], "h", 103.0),
        transitions.failed(asked[0], "h", 103.0, "killed"),
        transitions.abandoned(called(asked[0], 200.0), 204.0, 1, GRACE_S),
    ):
        assert rule is not None
        assert rule[0].state == "cancelled"
    won = transitions.succeeded(asked[0], "h", 103.0, 4)
    assert won is not None
    assert (won[0].state, won[0].version) == ("succeeded", 4), "what is published is published"


def test_what_runs_apart_is_cancelled_once_it_is_ended() -> None:
    """However its worker was lost."""
    found = running(runs_apart=True)
    drained = transitions.stopped(found, "h", 105.0)
    assert drained is not None
    asked = transitions.cancelled(found, 101.0)
    assert asked is not None
    for rule in (
        transitions.cancelled(drained[0], 106.0),
        transitions.stopped(asked[0], "h", 103.0),
        transitions.failed(asked[0], "h", 103.0, "killed"),
        transitions.abandoned(called(asked[0], 200.0), 204.0, 1, GRACE_S),
    ):
        assert rule is not None
        ending = rule[0]
        assert (ending.state, ending.cancel_asked, ending.deaths) == ("queued", True, 0)
        assert transitions.taken(ending, "v", "g", 205.0, LEASE_S, True) is None
        assert transitions.cancelled(ending, 205.0) is None
        with pytest.raises(ConflictError, match="is being cancelled"):
            transitions.resumed(ending, 205.0)
        ended = transitions.ended_apart(ending, 206.0)
        assert ended is not None
        assert (ended[0].state, ended[0].cancel_asked) == ("cancelled", False)
        assert transitions.ended_apart(ended[0], 207.0) is None
    assert transitions.ended_apart(drained[0], 206.0) is None, "nobody asked for its end"
    never_taken = transitions.cancelled(job(), 101.0)
    assert never_taken is not None
    assert never_taken[0].state == "cancelled"


def test_what_was_cancelled_or_failed_can_go_on() -> None:
    failed = transitions.failed(running(deaths=1), "h", 105.0, "x" * 2 * LONGEST_TEXT)
    assert failed is not None
    assert len(failed[0].error) == LONGEST_TEXT
    resumed = transitions.resumed(failed[0], 106.0)
    assert resumed is not None
    assert (resumed[0].state, resumed[0].deaths, resumed[0].error) == ("queued", 0, "")
    assert resumed[0].resumptions == 1
    assert transitions.resumed(resumed[0], 107.0) is None
    with pytest.raises(ConflictError, match="has succeeded"):
        transitions.resumed(job(state="succeeded", version=3), 107.0)
    with pytest.raises(ConflictError, match="is being cancelled"):
        transitions.resumed(running(cancel_asked=True), 107.0)
