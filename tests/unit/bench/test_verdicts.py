"""Figures beside their targets: percentiles, ratios, verdicts and tables."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.figures.verdicts import MISSING, Verdict, percentile, ratio, short, table


def verdict(value: float, bound: str) -> Verdict:
    return Verdict(what="x", value=value, bound=bound, target=5, unit="ms")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "bound", "reached"),
    [
        (5, "at most", True),
        (5.01, "at most", False),
        (5, "at least", True),
        (4.99, "at least", False),
        (MISSING, "at most", False),
        (MISSING, "at least", False),
    ],
)
def test_a_target_is_reached_up_to_itself_and_never_by_a_missing_figure(
    value: float, bound: str, reached: bool
) -> None:
    assert verdict(value, bound).reached is reached


def test_a_verdict_is_printed_beside_its_target() -> None:
    assert verdict(7.25, "at most").line() == "not reached  x: 7.25 ms (target: at most 5 ms)"


def test_a_missing_figure_is_null_in_the_results() -> None:
    record = json.dumps(verdict(MISSING, "at most").as_record(), allow_nan=False)
    assert json.loads(record)["value"] is None


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0, 100))
def test_a_percentile_lies_between_the_extremes(values: list[float], percent: float) -> None:
    assert min(values) <= percentile(values, percent) <= max(values) * (1 + 1e-12)


def test_percentiles_interpolate() -> None:
    assert percentile([1, 2, 3, 4], 50) == 2.5
    assert percentile(range(101), 99) == 99


def test_nothing_has_no_percentile_and_no_ratio() -> None:
    assert math.isnan(percentile([], 99))
    assert math.isnan(ratio(3, 0))
    assert ratio(3, 4) == 0.75


def test_numbers_are_short() -> None:
    texts = [short(value) for value in (0.03456, 7.25, 64.25, 1234.5, 12, MISSING)]
    assert texts == ["0.0346", "7.25", "64.2", "1,234", "12", "-"]


def test_a_table_aligns_text_left_and_numbers_right() -> None:
    assert table(["name", "ms"], [["a", 1.5], ["long name", 120]]) == (
        "name        ms\na          1.5\nlong name  120"
    )
