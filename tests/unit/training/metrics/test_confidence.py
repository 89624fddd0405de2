"""The interval is Wilson's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.metrics.confidence import wilson_interval


@pytest.mark.parametrize(
    ("right", "count", "interval"),
    # Newcombe, "Two-sided confidence intervals for the single proportion" (1998), table I.
    [(81, 263, (0.2553, 0.3662)), (15, 148, (0.0624, 0.1605)), (0, 20, (0.0, 0.1611)),
     (1, 29, (0.0061, 0.1718))],
)  # fmt: skip
def test_published_examples(right: int, count: int, interval: tuple[float, float]) -> None:
    assert wilson_interval(right / count, count) == pytest.approx(interval, abs=5e-5)


@given(st.integers(1, 10_000), st.floats(0, 1))
def test_it_holds_the_share_and_stays_a_share(count: int, share: float) -> None:
    low, high = wilson_interval(share, count)
    assert 0 <= low <= share + 1e-9
    assert share - 1e-9 <= high <= 1
