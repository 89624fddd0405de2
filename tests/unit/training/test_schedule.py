"""The learning rate: up in a straight line, down along half a cosine."""

import itertools

import pytest

from training.recipe import Cosine, SchedulePart
from training.schedule import learning_rate_factor


def factors(total: int, warmup_share: float, final_lr_share: float) -> list[float]:
    schedule = SchedulePart(warmup_share=warmup_share, cosine=Cosine(final_lr_share=final_lr_share))
    return [learning_rate_factor(step, total, schedule) for step in range(total)]


def test_the_warm_up_climbs_to_the_peak_and_the_cosine_ends_at_its_share() -> None:
    found = factors(101, 0.1, 0.2)
    assert found[:10] == pytest.approx([0.1 * (step + 1) for step in range(10)])
    assert found[10] == 1.0
    assert found[55] == pytest.approx(0.6)  # half-way down
    assert found[-1] == pytest.approx(0.2)
    assert all(high >= low for high, low in itertools.pairwise(found[10:]))


def test_no_warm_up_starts_at_the_peak() -> None:
    assert factors(11, 0.0, 0.0)[0] == 1.0
    assert factors(11, 0.0, 0.0)[-1] == pytest.approx(0.0)


def test_a_run_of_one_step_has_a_rate() -> None:
    assert factors(1, 0.5, 0.1) == [1.0]
