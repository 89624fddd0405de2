"""The learning rate: up in a straight line, and down as torch's own schedules go down."""

import itertools
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from tests.unit.training.recipes import recipe
from training.loop.optimization.schedule import learning_rate_factor
from training.loop.train_state import TrainState, after_epoch
from training.recipe.parts.schedule_parts import Cosine, SchedulePart


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


TOTAL, EPOCH = 40, 4


def of_torch(scheduler: torch.optim.lr_scheduler.LRScheduler, epoch_steps: int) -> list[float]:
    """Returns torch's rates for a peak of 1, at every step."""
    found = []
    for step in range(TOTAL):
        found.append(scheduler.optimizer.param_groups[0]["lr"])
        scheduler.optimizer.step()
        if (step + 1) % epoch_steps == 0 and step + 1 < TOTAL:
            scheduler.step()
    return found


def optimizer(rate: float = 1.0) -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=rate)


def ours(**part: Any) -> list[float]:
    schedule = SchedulePart.model_validate(part)
    return [learning_rate_factor(step, TOTAL, schedule, EPOCH) for step in range(TOTAL)]


def test_schedules_are_those_of_torch() -> None:
    rates = torch.optim.lr_scheduler
    assert ours(step={"every_epochs": 3, "gamma": 0.5}, warmup_share=0) == pytest.approx(
        of_torch(rates.StepLR(optimizer(), 3, 0.5), EPOCH)
    )
    assert ours(exponential={"gamma": 0.9}, warmup_share=0) == pytest.approx(
        of_torch(rates.ExponentialLR(optimizer(), 0.9), EPOCH)
    )
    one_cycle = rates.OneCycleLR(
        optimizer(), max_lr=1.0, total_steps=TOTAL, cycle_momentum=False, pct_start=0.3
    )
    assert ours(one_cycle={}) == pytest.approx(of_torch(one_cycle, 1))
    cosine = rates.CosineAnnealingLR(optimizer(), TOTAL - 1, eta_min=0.01)
    assert ours(warmup_share=0) == pytest.approx(of_torch(cosine, 1))


def test_one_cycle_that_peaks_at_its_first_step_only_falls() -> None:
    schedule = SchedulePart.model_validate(
        {"one_cycle": {"climb_share": 0.25, "first_lr_share": 0.5, "final_lr_share": 0}}
    )
    found = [learning_rate_factor(step, 4, schedule) for step in range(4)]
    assert found == pytest.approx([1, 0.75, 0.25, 0])


def test_wsd_is_constant_between_its_warm_up_and_its_decay() -> None:
    found = ours(wsd={"decay_share": 0.25, "final_lr_share": 0.1}, warmup_share=0.1)
    assert found[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert found[4:30] == [1.0] * 26
    assert found[30:] == pytest.approx([1 - 0.09 * (step + 1) for step in range(10)])
    faster = ours(wsd={"decay_share": 0.25, "shape": "sqrt"}, warmup_share=0.1)
    assert faster[32] == pytest.approx(1 - 0.3**0.5)
    assert faster[-1] == 0


def test_every_schedule_takes_a_warm_up_but_one_cycle() -> None:
    for name in SchedulePart.choices:
        if name == "one_cycle":
            continue
        found = ours(**{name: {}, "warmup_share": 0.1})
        assert found[:4] == [0.25, 0.5, 0.75, 1.0], name
    assert SchedulePart.model_validate({"one_cycle": {}}).warmup_share == 0
    with pytest.raises(ValidationError, match="one_cycle has its own warm-up"):
        SchedulePart.model_validate({"one_cycle": {}, "warmup_share": 0.1})
    with pytest.raises(ValidationError, match="cosine and wsd exclude each other"):
        SchedulePart.model_validate({"cosine": {}, "wsd": {}})


@pytest.mark.parametrize("metric", ["val/loss", "val/accuracy"])
def test_a_plateau_is_that_of_torch(metric: str) -> None:
    values = [0.5, 0.4, 0.4, 0.45, 0.39996, 0.3, 0.31, 0.5, 0.6, 0.2, 0.7, 0.7, 0.7, 0.7, 0.7]
    part = {"factor": 0.5, "patience": 1, "threshold": 1e-3, "min_lr_share": 0.2}
    chosen = recipe(
        train={"epochs": 100},
        schedule={"plateau": part},
        stop={"metric": metric, "patience": None},
    )
    theirs = optimizer()
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(
        theirs,
        mode="min" if metric == "val/loss" else "max",
        factor=0.5,
        patience=1,
        threshold=1e-3,
        min_lr=0.2,
    )
    state, factors = TrainState(), []
    for value in values:
        state = after_epoch(state, {"val/loss": 0.0, metric: value}, chosen, steps=1)
        scheduler.step(value)
        factors.append(state.rate_factor)
        assert state.rate_factor == pytest.approx(theirs.param_groups[0]["lr"])
    assert len(set(factors)) > 2
