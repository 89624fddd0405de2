"""The Pareto front: never empty, no duplicates, and only dominated entries are dropped."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.training.reporting.test_report import accuracy, artifact
from training.auto.candidates import simplicity
from training.auto.pareto_front import MEMORY_BYTES, advantages, drop_reasons
from training.reporting.report import ArtifactReport

MIB = 2**20
LATENCY = {1: 1.0, 8: 4.0, 32: 10.0}


def measured(name: str = "onnx", **changes: Any) -> ArtifactReport:
    kind, _, precision = name.partition("-")
    fields: dict[str, Any] = {
        "kind": kind,
        "precision": precision or "fp32",
        "metric": accuracy(0.95, (0.92, 0.97)),
        "latency_ms": LATENCY,
        "peak_memory_bytes": 100 * MIB,
    }
    return artifact(name, **{**fields, **changes})


def value_of(one: ArtifactReport) -> float:
    assert one.metric is not None
    return one.metric.value


def faster(share: float) -> dict[int, float]:
    return {rows: ms * share for rows, ms in LATENCY.items()}


NAMES = ("onnx", "onnx-int8", "openvino", "openvino-bf16", "pt2", "aoti-int8", "torchscript")


@st.composite
def many(draw: st.DrawFn) -> list[ArtifactReport]:
    """Artifacts whose figures are often the same, or apart by about as much as noise is."""
    found = []
    for name in draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=9)):
        share = draw(st.sampled_from([0.90, 0.95, 0.96, 0.99]))
        latency = {
            rows: draw(st.sampled_from([0.1, 0.14, 1.0, 1.1, 1.2, 1.3, 1.45, 1.6])) * rows
            for rows in (1, 32)
        }
        changes = {
            "method": draw(st.sampled_from(["static", "dynamic"])),
            "metric": accuracy(share, (share - 0.025, share + 0.025)),
            "latency_ms": latency,
            "peak_memory_bytes": draw(
                st.sampled_from([None, *(mib * MIB for mib in (10, 12, 99, 105, 111, 125))])
            ),
        }
        found.append(measured(name, **changes))
    return found


def kept(proven: list[ArtifactReport]) -> list[ArtifactReport]:
    pairs = zip(proven, drop_reasons(proven), strict=True)
    return [one for one, reason in pairs if reason is None]


@given(many())
def test_something_is_kept_and_of_each_name_one_at_most(proven: list[ArtifactReport]) -> None:
    names = [one.name for one in kept(proven)]
    assert names
    assert len(names) == len(set(names))
    exact = [one for one in proven if one.precision == "fp32"]
    assert not exact or any(one.precision == "fp32" for one in kept(proven))


def without_unknown_memory(proven: list[ArtifactReport]) -> list[ArtifactReport]:
    if any(one.peak_memory_bytes is None for one in proven):
        return [one.model_copy(update={"peak_memory_bytes": None}) for one in proven]
    return proven


@given(many())
def test_what_is_not_the_simplest_earns_its_place(proven: list[ArtifactReport]) -> None:
    found = kept(without_unknown_memory(proven))
    found.sort(key=lambda one: simplicity(one.kind, one.precision))
    for position, one in enumerate(found):
        assert all(advantages(one, simpler) for simpler in found[:position])


@given(many())
def test_no_kept_one_is_dominated_by_another(proven: list[ArtifactReport]) -> None:
    found = kept(without_unknown_memory(proven))
    for one in found:
        for other in found:
            if one is other:
                continue
            no_worse = (
                all(other.latency_ms[rows] <= ms for rows, ms in one.latency_ms.items())
                and value_of(other) >= value_of(one)
                and (other.peak_memory_bytes or 0) <= (one.peak_memory_bytes or 0)
                and (other.precision == "fp32" or one.precision != "fp32")
            )
            assert not (no_worse and advantages(other, one))


@given(many())
def test_for_each_dropped_one_there_is_a_kept_one_that_is_as_good(
    proven: list[ArtifactReport],
) -> None:
    proven = without_unknown_memory(proven)
    reasons = drop_reasons(proven)
    stays = [one for one, reason in zip(proven, reasons, strict=True) if reason is None]
    for one, reason in zip(proven, reasons, strict=True):
        if reason is None:
            continue
        if reason.startswith("method"):
            assert [
                other for other in stays if other.name == one.name
            ] or "version has one" in reason
        else:
            assert any(not advantages(one, other) for other in stays)


@given(many())
def test_the_order_of_attempts_decides_nothing(proven: list[ArtifactReport]) -> None:
    unique = list({one.name: one for one in proven}.values())
    names = {one.name for one in kept(unique)}
    assert {one.name for one in kept(unique[::-1])} == names


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"latency_ms": faster(0.7)}, ["latency"]),
        ({"latency_ms": faster(0.85)}, []),  # as much as noise
        ({"latency_ms": {1: 0.5, 8: 8.0, 32: 20.0}}, ["latency"]),  # of a single row
        ({"metric": accuracy(0.975)}, ["accuracy"]),
        ({"metric": accuracy(0.965)}, []),  # within the interval of the other
        ({"peak_memory_bytes": 80 * MIB}, ["memory"]),
        ({"peak_memory_bytes": 95 * MIB}, []),
        ({}, []),
    ],
)
def test_a_difference_counts_when_it_is_more_than_noise(
    changes: dict[str, Any], found: list[str]
) -> None:
    assert advantages(measured(**changes), measured()) == found


def test_differences_that_nobody_feels_do_not_count() -> None:
    tiny = {1: 0.04, 32: 0.1}
    assert advantages(measured(latency_ms=tiny), measured(latency_ms={1: 0.08, 32: 0.14})) == []
    small = measured(peak_memory_bytes=MEMORY_BYTES)
    assert advantages(small, measured(peak_memory_bytes=2 * MEMORY_BYTES - 1)) == []


def test_what_rounds_is_not_exact_however_well_it_does() -> None:
    assert advantages(measured(), measured("onnx-int8")) == ["exactness"]
    quick = measured("onnx-int8", latency_ms=faster(0.2), peak_memory_bytes=20 * MIB)
    assert drop_reasons([measured(), quick]) == [None, None]


def test_reasons_name_what_made_an_artifact_superfluous() -> None:
    slow = measured("pt2", latency_ms=faster(3))
    same = measured("openvino", latency_ms=faster(0.9))
    quick = measured("openvino-int8", method="static", latency_ms=faster(0.3))
    twin = measured("openvino-int8", method="weights", latency_ms=faster(0.5))
    assert drop_reasons([measured(), slow, same, quick, twin]) == [
        None,
        "dominated by onnx: that is better in latency, and worse in nothing",
        "no better than onnx in anything, which is simpler",
        None,
        "method static is faster, and a version has one openvino-int8",
    ]


def test_a_cycle_of_small_differences_ends_with_one() -> None:
    steps = [("onnx", 1.0), ("openvino", 0.85), ("pt2", 0.72)]
    found = kept([measured(name, latency_ms=faster(share)) for name, share in steps])
    assert [one.name for one in found] == ["openvino"]
    assert drop_reasons([]) == []
