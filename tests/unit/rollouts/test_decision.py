"""Decisions about rollouts: what each verdict, time and traffic lead to."""

import math
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from model_store.rollouts.traffic import Rollout
from services.rollouts.decision import DOUBTFUL, LEAST_REQUESTS, counts_by_share, decide
from services.rollouts.evidence.evidence import Evidence
from services.rollouts.evidence.verdict import Decision, Finding, Verdict

BEGAN = datetime(2026, 11, 28, 12, tzinfo=UTC)
ENDS = "2026-11-28 12:01:00 UTC"
STEPS = (0.01, 0.5, 1.0)


def rollout_at(step: int, steps: tuple[float, ...] = STEPS, **fields: Any) -> Rollout:
    return Rollout(
        candidate=4, baseline=3, steps=steps, every_s=60, step=step, step_began=BEGAN, **fields
    )


def verdict_of(decision: Decision, *findings: Finding) -> Verdict:
    return Verdict(
        decision=decision,
        reason=f"it is {decision}",
        guard=None,
        more_requests=None,
        findings=findings,
    )


def evidence_of(requests: int, share: float) -> Evidence:
    return Evidence({f"share/{round(share * 1e6)}/candidate/requests": requests})


@pytest.mark.parametrize(("e_value", "move"), [(DOUBTFUL, None), (0.99 * DOUBTFUL, "advanced")])
def test_candidate_in_doubt_gets_no_larger_share(e_value: float, move: str | None) -> None:
    """One that has just failed some of its first requests, for example."""
    finding = Finding(
        guard="errors",
        state="open",
        log_e_against=5.0,  # an earlier look's
        log_e_now=math.log(e_value),
        log_e_to_roll_back=5.3,
        log_e_for=0.0,
        log_e_to_promote=4.6,
        observed=57,
        unit="requests",
        more=None,
        figures={},
    )
    rollout = rollout_at(0)
    found = decide(
        rollout,
        verdict_of("undecided", finding),
        evidence_of(57, rollout.share),
        BEGAN + timedelta(seconds=60),
    )
    assert found.move == move
    assert move or found.why.startswith(
        "the guard 'errors' speaks against the candidate: e-value 10, "
    )


@pytest.mark.parametrize(
    ("step", "verdict", "after_s", "requests", "move", "why"),
    [
        (0, "undecided", 60, LEAST_REQUESTS, "advanced", "no guard is broken"),
        (0, "promote", 60, LEAST_REQUESTS, "advanced", "no guard is broken"),
        (0, "undecided", 59, LEAST_REQUESTS, None, f"the step lasts until {ENDS}"),
        (0, "promote", 59, LEAST_REQUESTS, None, f"the step lasts until {ENDS}"),
        (0, "undecided", 1e6, LEAST_REQUESTS - 1, None, "too little traffic: the candidate has"),
        (0, "roll_back", 0, 0, "rolled_back", "it is roll_back"),
        (1, "promote", 60, LEAST_REQUESTS, "promoted", "it is promote"),
        (1, "promote", 60, 0, None, "too little traffic"),
        (1, "undecided", 1e6, 1_000_000, None, "not promoted yet: it is undecided"),
        (1, "roll_back", 1e6, 1_000_000, "rolled_back", "it is roll_back"),
        (0, "undecided", -1e6, LEAST_REQUESTS, None, "the step lasts"),
    ],
)
def test_move_follows_from_verdict_time_and_traffic(
    step: int, verdict: Decision, after_s: float, requests: int, move: str | None, why: str
) -> None:
    rollout = rollout_at(step)
    now = BEGAN + timedelta(seconds=after_s)
    found = decide(rollout, verdict_of(verdict), evidence_of(requests, rollout.share), now)
    assert found.move == move
    assert found.why.startswith(why)


@pytest.mark.parametrize(
    ("verdict", "move"), [("promote", None), ("undecided", None), ("roll_back", "rolled_back")]
)
def test_paused_rollout_moves_only_back(verdict: Decision, move: str | None) -> None:
    rollout = rollout_at(1, paused="lunch")
    now = BEGAN + timedelta(hours=1)
    found = decide(rollout, verdict_of(verdict), evidence_of(1_000, 0.5), now)
    assert found.move == move
    assert move or found.why == "paused: lunch"


def test_last_step_below_one_stays() -> None:
    rollout = rollout_at(1, steps=(0.1, 0.2))
    now = BEGAN + timedelta(hours=1)
    found = decide(rollout, verdict_of("promote"), evidence_of(1_000, 0.2), now)
    assert (found.move, found.why) == (None, "at its last step; promote or abort it")


def test_requests_at_another_share_do_not_count() -> None:
    now = BEGAN + timedelta(hours=1)
    found = decide(rollout_at(1), verdict_of("promote"), evidence_of(1_000, 0.01), now)
    assert found.move is None


def test_counts_are_shown_by_share() -> None:
    evidence = Evidence()
    for failed in (False, True):
        evidence.count_request(0.1, "candidate", failed=failed, output=3)
    evidence.count_request(0.01, "live", nan=True)
    evidence.count_pair(0)
    evidence.count_pair(1)
    assert counts_by_share(evidence) == {
        "shares": {
            "0.01": {"live": {"requests": 1, "nan": 1}},
            "0.1": {"candidate": {"requests": 2, "errors": 1}},
        },
        "pairs": 2,
        "differing_pairs": 1,
    }


def test_times_without_a_zone_are_utc() -> None:
    document = rollout_at(0).model_dump(mode="json")
    for name in ("started", "step_began"):
        document[name] = "2026-11-28T12:00:00"
    rollout = Rollout.model_validate(document)
    now = BEGAN + timedelta(seconds=60)
    evidence = evidence_of(LEAST_REQUESTS, rollout.share)
    assert decide(rollout, verdict_of("undecided"), evidence, now).move == "advanced"
    assert rollout.started == BEGAN
