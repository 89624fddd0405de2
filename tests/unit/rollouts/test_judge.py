"""Verdicts: roll back with evidence against, promote with evidence for, else what is missing."""

import json
import math
import random
import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from pydantic import ValidationError

from model_store.rollouts.guards import (
    DisagreementGuard,
    Guards,
    LatencyGuard,
    OutputGuard,
    RateGuard,
)
from services.rollouts.evidence.evidence import Evidence, Version, score_step
from services.rollouts.evidence.judge import judge, remembered
from services.rollouts.evidence.verdict import Finding, Verdict

ONLY_ERRORS = Guards(disagreement=None, latency=None, nan=None, outputs=None)
ONLY_PAIRS = Guards(
    errors=None, latency=None, nan=None, outputs=None, disagreement=DisagreementGuard(limit=0.02)
)
ONLY_NAN = Guards(
    errors=None, disagreement=None, latency=None, outputs=None, nan=RateGuard(rate=0.01)
)
ONLY_LATENCY = Guards(errors=None, disagreement=None, nan=None, outputs=None)
ONLY_OUTPUTS = Guards(
    errors=None, disagreement=None, latency=None, nan=None, outputs=OutputGuard(values=3)
)


def traffic(
    requests: int,
    count: Callable[[Evidence, random.Random, Version], None],
    share: float = 0.5,
) -> Evidence:
    drawn, evidence = random.Random(5), Evidence()
    for _ in range(requests):
        count(evidence, drawn, "candidate" if drawn.random() < share else "live")
    return evidence


def only(verdict: Verdict) -> Finding:
    (finding,) = verdict.findings
    return finding


def failing(rate: float) -> Callable[[Evidence, random.Random, Version], None]:
    def count(evidence: Evidence, drawn: random.Random, version: Version) -> None:
        likely = rate if version == "candidate" else 0.001
        evidence.count_request(0.5, version, failed=drawn.random() < likely)

    return count


def test_silence_is_no_evidence() -> None:
    verdict = judge(Evidence(), Guards())
    assert verdict.decision == "undecided"
    said = r"errors: no requests yet; at least [\d,]+ requests of both versions are needed"
    assert re.fullmatch(said, verdict.reason)
    assert {finding.state for finding in verdict.findings} == {"open"}
    assert all(finding.log_e_for <= 1e-9 for finding in verdict.findings)
    assert verdict.more_requests == verdict.findings[0].more


def test_no_guard_promotes_nothing() -> None:
    none = Guards(errors=None, disagreement=None, latency=None, nan=None, outputs=None)
    assert judge(Evidence(), none).decision == "undecided"


def test_many_errors_roll_back() -> None:
    verdict = judge(traffic(3000, failing(0.02)), ONLY_ERRORS)
    assert (verdict.decision, verdict.guard) == ("roll_back", "errors")
    said = (
        r"the guard 'errors' is broken: candidate [12][.\d]*% \(\S+% to \S+%\), live \S+% .*; "
        r"allowed: 1\.5 times the live rate, or 0\.1%; e-value \S+, 100 is enough"
    )
    assert re.fullmatch(said, verdict.reason)
    finding = only(verdict)
    assert finding.log_e_against >= finding.log_e_to_roll_back == pytest.approx(math.log(100))
    assert finding.figures["candidate_rate"] == pytest.approx(0.02, abs=0.006)
    ratio_low = finding.figures["ratio_low"]
    assert ratio_low is not None
    assert 1 < ratio_low < 20


def test_a_rate_that_is_always_tolerated_rolls_nothing_back() -> None:
    guards = ONLY_ERRORS.model_copy(update={"errors": RateGuard(rate=0.05)})
    assert judge(traffic(3000, failing(0.02)), guards).decision == "promote"


def test_few_requests_with_errors_are_told_how_many_more_are_expected() -> None:
    """As many as are said to be needed, with the same figures, promote."""
    guards = ONLY_ERRORS.model_copy(update={"errors": RateGuard(rate=0.01)})
    early = traffic(300, failing(0.0))
    verdict = judge(early, guards)
    assert verdict.decision == "undecided"
    assert verdict.more_requests is not None
    factor = (300 + verdict.more_requests) / 300
    grown = Evidence({name: math.ceil(count * factor) for name, count in early.counts.items()})
    assert judge(grown, guards).decision == "promote"
    fewer = Evidence({name: int(count * factor * 0.9) for name, count in early.counts.items()})
    assert judge(fewer, guards).decision == "undecided"


def test_a_candidate_too_near_to_its_limit_is_told_so() -> None:
    evidence = Evidence({"pairs/0": 9800, "pairs/1000": 200})
    verdict = judge(evidence, ONLY_PAIRS)
    assert verdict.decision == "undecided"
    assert "no number would be enough" in verdict.reason
    assert only(verdict).more is None


@pytest.mark.parametrize(("differ", "decision"), [(0, "promote"), (50, "roll_back")])
def test_pairs_decide(differ: int, decision: str) -> None:
    verdict = judge(Evidence({"pairs/0": 600 - differ, "pairs/1000": differ}), ONLY_PAIRS)
    assert verdict.decision == decision
    figures = only(verdict).figures
    is_told = "broken: 8.33% (" in verdict.reason and "; allowed: 2%; " in verdict.reason
    assert is_told == (decision == "roll_back")
    low, high = figures["mean_low"], figures["mean_high"]
    assert low is not None
    assert high is not None
    assert low <= differ / 600 <= high < 0.2


def test_small_disagreements_add_up() -> None:
    """A mean of 0.05 where 0.02 is allowed, without a pair that differs wholly."""
    assert judge(Evidence({"pairs/50": 400}), ONLY_PAIRS).decision == "roll_back"
    assert judge(Evidence({"pairs/5": 400}), ONLY_PAIRS).decision == "promote"


def test_nan_rolls_back() -> None:
    def count(evidence: Evidence, drawn: random.Random, version: Version) -> None:
        wrong = version == "candidate" and drawn.random() < 0.1
        evidence.count_request(0.5, version, nan=wrong)

    verdict = judge(traffic(600, count), ONLY_NAN)
    assert (verdict.decision, verdict.guard) == ("roll_back", "nan")


def test_nan_of_both_versions_is_not_the_candidates_fault() -> None:
    def count(evidence: Evidence, drawn: random.Random, version: Version) -> None:
        evidence.count_request(0.5, version, nan=drawn.random() < 0.1)

    assert judge(traffic(6000, count), ONLY_NAN).decision == "promote"


@pytest.mark.parametrize(("slower", "decision"), [(1.0, "promote"), (1.5, "roll_back")])
def test_latencies_decide(slower: float, decision: str) -> None:
    drawn, evidence = random.Random(3), Evidence()
    assert ONLY_LATENCY.latency is not None
    for _ in range(9000):
        own, live = (0.01 * drawn.lognormvariate(0, 0.4) for _ in range(2))
        evidence.count_latencies(own * slower, live, ONLY_LATENCY.latency.ratio)
    verdict = judge(evidence, ONLY_LATENCY)
    assert verdict.decision == decision
    assert ("; allowed: a ratio of 1.2; " in verdict.reason) == (decision == "roll_back")
    figures = only(verdict).figures
    for name in ("p50", "p99"):
        low, high = figures[f"{name}_ratio_low"], figures[f"{name}_ratio_high"]
        assert low is not None
        assert high is not None
        assert low <= slower <= high
    assert figures["candidate_p50_s"] == pytest.approx(0.01 * slower, rel=0.06)


def classes(shares: tuple[float, ...]) -> Callable[[Evidence, random.Random, Version], None]:
    def count(evidence: Evidence, drawn: random.Random, version: Version) -> None:
        weights = shares if version == "candidate" else (0.5, 0.3, 0.2)
        (output,) = drawn.choices((0, 1, 2), weights)
        evidence.count_request(0.5, version, output=output)

    return count


@pytest.mark.parametrize(
    ("shares", "decision"),
    [((0.5, 0.3, 0.2), "promote"), ((0.3, 0.5, 0.2), "roll_back")],
)
def test_shares_of_classes_decide(shares: tuple[float, ...], decision: str) -> None:
    verdict = judge(traffic(12000, classes(shares)), ONLY_OUTPUTS)
    assert verdict.decision == decision
    assert ("; allowed: 5 points; " in verdict.reason) == (decision == "roll_back")
    assert (only(verdict).log_e_for > 0) == (decision == "promote")  # one class is as before
    figures = only(verdict).figures
    low, high = figures["difference_low"], figures["difference_high"]
    assert low is not None
    assert high is not None
    truth = shares[int(figures["class"] or 0)] - (0.5, 0.3, 0.2)[int(figures["class"] or 0)]
    assert low <= truth <= high


def test_a_class_beyond_those_of_the_guard_is_counted_as_the_last() -> None:
    evidence = Evidence()
    for output in (2, 9, 700):
        evidence.count_request(0.5, "live", output=output)
    evidence.count_request(0.5, "candidate", output=2)
    assert only(judge(evidence, ONLY_OUTPUTS)).observed == 4


@pytest.mark.parametrize(("lift", "decision"), [(0.0, "promote"), (0.2, "roll_back")])
def test_mean_scores_decide(lift: float, decision: str) -> None:
    guards = ONLY_OUTPUTS.model_copy(update={"outputs": OutputGuard(kind="scores")})

    def count(evidence: Evidence, drawn: random.Random, version: Version) -> None:
        score = drawn.uniform(0.2, 0.6) + (lift if version == "candidate" else 0)
        evidence.count_request(0.5, version, output=score_step(score))

    assert judge(traffic(12000, count), guards).decision == decision


def test_a_peak_is_not_forgotten_at_a_restart() -> None:
    bad = Evidence({"pairs/0": 550, "pairs/1000": 50})
    kept = remembered(bad, judge(bad, ONLY_PAIRS))
    kept.counts["pairs/0"] += 50_000
    restored = Evidence.from_plain(json.loads(json.dumps(kept.as_plain())))
    assert judge(restored, ONLY_PAIRS).decision == "roll_back"
    assert judge(replace(restored, peaks={}), ONLY_PAIRS).decision == "promote"


def test_steps_of_a_rollout_are_weighed_by_their_own_share() -> None:
    """Live errors of a step with 1 % for the candidate say little about one with 50 %."""
    evidence = Evidence()
    for share, version, requests, errors in (
        (0.01, "candidate", 100, 0), (0.01, "live", 9900, 10),
        (0.5, "candidate", 1000, 30), (0.5, "live", 1000, 1),
    ):  # fmt: skip
        for number in range(requests):
            evidence.count_request(share, version, failed=number < errors)  # type: ignore[arg-type]
    assert judge(evidence, ONLY_ERRORS).decision == "roll_back"


def test_the_risk_is_shared() -> None:
    assert sum(Guards().shares_of_risk().values()) == pytest.approx(0.01)
    assert ONLY_PAIRS.shares_of_risk() == {"disagreement": pytest.approx(0.01)}


@pytest.mark.parametrize(
    "wrong",
    [
        {"risk": 0}, {"risk": 0.5}, {"errors": {"ratio": 0.5}}, {"errors": {"rate": 1}},
        {"disagreement": {"limit": 0}}, {"latency": {"quantiles": []}}, {"latency": {"ratio": 1}},
        {"latency": {"quantiles": [1.0]}}, {"latency": {"quantiles": [0.5] * 9}},
        {"outputs": {"values": 1001}}, {"outputs": {"kind": "texts"}}, {"error": {}},
        {"nan": {"weight": 0}},
    ],
)  # fmt: skip
def test_wrong_guards_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Guards.model_validate(wrong)


def test_guards_and_verdicts_are_plain_data() -> None:
    guards = Guards(latency=LatencyGuard(quantiles=(0.9,)))
    assert Guards.model_validate(json.loads(guards.model_dump_json())) == guards
    plain = json.loads(json.dumps(judge(Evidence(), guards).as_plain()))
    assert plain["findings"][0]["guard"] == "errors"
