"""Counts of one process: requests, latencies in pairs, and figures of shadows."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.rollouts import shadow_figures
from services.rollouts.evidence.errors import InvalidEvidenceError
from services.rollouts.evidence.evidence import Evidence
from services.rollouts.shadow_figures import KeptPair, ShadowFigures
from services.rollouts.traffic_counts import (
    FORGOTTEN_AFTER_S,
    MOST_LATENCIES_A_BLOCK,
    Comparison,
    TrafficCounts,
    arm_id,
)


def pair(disagreement: float, request_id: str = "r") -> KeptPair:
    return KeptPair(
        disagreement=disagreement,
        difference=2 * disagreement,
        request_id=request_id,
        when=0.0,
        inputs=[{"name": "x", "datatype": "FP32", "shape": [1], "values": [1.0]}],
        live=[],
        candidate=[],
    )


def latencies(evidence: Evidence, version: str) -> int:
    return sum(
        count
        for name, count in evidence.counts.items()
        if name.startswith("latency/") and f"/{version}/" in name
    )


@pytest.mark.parametrize(("candidate", "live"), [(3, 40), (40, 3), (0, 9), (2000, 2000)])
def test_latencies_of_one_block_are_paired(candidate: int, live: int) -> None:
    comparison = Comparison()
    for _ in range(candidate):
        comparison.count(0.1, "candidate", 0.02)
    for _ in range(live):
        comparison.count(0.1, "live", 0.01)
    comparison.end_block()
    comparison.end_block()
    pairs = min(candidate, live, MOST_LATENCIES_A_BLOCK)
    assert latencies(comparison.evidence, "candidate") == pairs
    assert latencies(comparison.evidence, "live") == pairs


@pytest.mark.parametrize(("live_s", "patience_s"), [([], 5), ([0.01], 1), ([0.1, 0.2, 9], 4)])
def test_patience_follows_the_live_version(live_s: list[float], patience_s: float) -> None:
    comparison = Comparison()
    comparison.count(0.5, "candidate", 60)
    for seconds in live_s:
        comparison.count(0.5, "live", seconds)
    comparison.end_block()
    comparison.end_block()
    assert comparison.patience_s == pytest.approx(patience_s)


def test_failure_has_no_latency() -> None:
    comparison = Comparison()
    comparison.count(0.1, "candidate", 0.001, failed=True)
    comparison.count(0.1, "live", 0.01)
    comparison.end_block()
    assert comparison.evidence.counts == {
        "share/100000/candidate/requests": 1,
        "share/100000/candidate/errors": 1,
        "share/100000/live/requests": 1,
    }


def test_snapshot_is_a_copy_and_what_ended_is_forgotten() -> None:
    now = 7.0
    counts = TrafficCounts(lambda: now)
    counts.comparison("a").count(0.5, "live", 0.01)
    counts.arm("s", 2).count(0.5, "candidate", 0.01)
    counts.shadow("b", 3).drop("busy")
    found, shadows = counts.evidence("p"), counts.figures("p")
    assert counts.evidence_of("a", "p") == found["a"]
    assert counts.figures_of("b", "p") == shadows["b"]
    assert counts.evidence_of("b", "p") is None
    assert counts.figures_of("a", "p") is None
    counts.of("a").count_pair(1.0)
    counts.shadow("b").drop("busy")
    assert found == {
        "a": ("p", Evidence({"share/500000/live/requests": 1})),
        arm_id("s", 2): ("p", Evidence({"share/500000/candidate/requests": 1})),
    }
    assert shadows["b"][0] == "p"
    assert shadows["b"][1].dropped == {"busy": 1}
    assert list(counts.ids) == ["a", "s", "b"]
    counts.keep_only(["b"])
    now += FORGOTTEN_AFTER_S - 1
    counts.keep_only(["b", "s"])
    assert list(counts.ids) == ["a", "s", "b"]
    now += 1
    counts.keep_only(["b"])
    assert list(counts.ids) == ["s", "b"]
    now += FORGOTTEN_AFTER_S
    counts.keep_only([])
    assert not counts.ids


def test_a_look_at_a_shadow_copies_no_other_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = TrafficCounts()
    for keep, shadow_id in enumerate("abc"):
        counts.shadow(shadow_id, keep)
    copy, copied = ShadowFigures.copied, []

    def noted(figures: ShadowFigures) -> ShadowFigures:
        copied.append(figures.keep)
        return copy(figures)

    monkeypatch.setattr(ShadowFigures, "copied", noted)
    assert counts.figures_of("b", "p") == ("p", ShadowFigures(keep=1))
    assert copied == [1]


PAIRS = st.lists(st.tuples(st.floats(0, 1), st.floats(0.001, 10), st.booleans()), max_size=20)


def figures_of(pairs: list[tuple[float, float, bool]], keep: int = 5) -> ShadowFigures:
    figures = ShadowFigures(keep=keep)
    for number, (disagreement, seconds, fails) in enumerate(pairs):
        one = pair(disagreement, f"{number} of {len(pairs)}")
        figures.count_pair(one, live_s=seconds, candidate_s=None if fails else 2 * seconds)
    return figures


@given(PAIRS, PAIRS)
def test_figures_of_processes_add_up_and_keep_the_worst(
    one: list[tuple[float, float, bool]], other: list[tuple[float, float, bool]]
) -> None:
    total = shadow_figures.merged([figures_of(one), figures_of(other)])
    both = one + other
    assert total.pairs == len(both)
    assert total.failed == sum(fails for _, _, fails in both)
    worst = sorted((d for d, _, _ in both if d >= shadow_figures.AGREES_BELOW), reverse=True)[:5]
    assert [kept.disagreement for kept in total.worst] == worst


@given(PAIRS)
def test_figures_survive_json(pairs: list[tuple[float, float, bool]]) -> None:
    figures = figures_of(pairs)
    figures.drop("busy")
    assert ShadowFigures.from_plain(json.loads(json.dumps(figures.as_plain()))) == figures


@pytest.mark.parametrize("wrong", [None, {}, {"worst": [1]}, {"worst": [{}] * 1000}])
def test_wrong_figures_are_refused(wrong: object) -> None:
    with pytest.raises(InvalidEvidenceError, match="figures of a shadow cannot be read"):
        ShadowFigures.from_plain(wrong)


def test_latency_is_a_quantile_of_the_runs() -> None:
    figures = figures_of([(0.0, 0.01, False)] * 99 + [(0.0, 1.0, False)])
    assert figures.latency_s("live", 0.5) == pytest.approx(0.01, rel=0.02)
    assert figures.latency_s("candidate", 1.0) == pytest.approx(2.0, rel=0.02)
    assert ShadowFigures().latency_s("live", 0.5) is None


def test_counts_that_begin_anew_have_another_name() -> None:
    now = 0.0
    counts = TrafficCounts(lambda: now)
    counts.of("a")
    counts.shadow("b")
    assert counts.name_of("a", "server-1") == counts.name_of("b", "server-1") == "server-1"
    counts.keep_only({"b"})
    now = FORGOTTEN_AFTER_S
    counts.keep_only({"b"})
    counts.of("a")
    counts.arm("c", 2)
    assert counts.name_of("a", "server-1") == counts.name_of("c", "server-1") == "server-1.1"
    assert counts.name_of("b", "server-1") == "server-1"
    counts.keep_only({"b"})
    now = 2 * FORGOTTEN_AFTER_S
    counts.keep_only({"b"})
    counts.of("a")
    assert counts.name_of("a", "server-1") == "server-1.2"
