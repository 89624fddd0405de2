"""The best epoch, and the end of training."""

import math
from typing import Any

import pytest

from training.errors import DivergedError
from training.loop.train_state import TrainState, after_epoch
from training.recipe.parts.data_parts import DataPart
from training.recipe.parts.loss_parts import LossPart, Mse
from training.recipe.parts.model_parts import ModelPart
from training.recipe.parts.train_parts import StopPart, TrainPart
from training.recipe.recipe import PublishPart, Recipe


def recipe_of(stop: StopPart, epochs: int) -> Recipe:
    numbers = LossPart(mse=Mse()) if stop.metric in ("val/r2", "val/rmse") else LossPart()
    return Recipe(
        name="r",
        model=ModelPart(target="unused:Unused"),
        data=DataPart(target="unused:unused"),
        train=TrainPart(epochs=epochs),
        stop=stop,
        loss=numbers,
        publish=PublishPart(model="m"),
    )


def states(values: list[float], stop: StopPart, epochs: int = 100) -> list[TrainState]:
    recipe = recipe_of(stop, epochs)
    found = [TrainState()]
    for value in values:
        metrics = {"val/loss": 0.5, stop.metric: value}
        found.append(after_epoch(found[-1], metrics, recipe, steps=5))
    return found[1:]


@pytest.mark.parametrize(
    ("stop", "values"),
    [
        (StopPart(metric="val/loss"), [0.5, 0.3, 0.3, 0.4]),
        (StopPart(metric="val/accuracy"), [0.5, 0.7, 0.7, 0.6]),
    ],
)
def test_the_best_epoch_is_the_first_with_the_best_value(
    stop: StopPart, values: list[float]
) -> None:
    found = states(values, stop)
    assert [state.best_epoch for state in found] == [1, 2, 2, 2]
    assert found[-1].best_value == values[1]
    assert (found[-1].epoch, found[-1].step) == (4, 20)


def test_patience_counts_epochs_without_a_better_value() -> None:
    found = states([0.5, 0.4, 0.4, 0.41], StopPart(patience=2))
    assert [state.finished for state in found] == [False, False, False, True]


def test_without_patience_only_the_epochs_end_a_run() -> None:
    found = states([0.5] * 9, StopPart(), epochs=9)
    assert [state.finished for state in found] == [False] * 8 + [True]


@pytest.mark.parametrize(
    ("metric", "endless"), [("val/loss", math.inf), ("val/r2", -math.inf), ("val/rmse", math.inf)]
)
def test_what_has_no_end_is_never_best_and_any_number_beats_it(metric: Any, endless: float) -> None:
    found = states([endless, 7.0, endless], StopPart(metric=metric))
    assert [state.best_epoch for state in found] == [0, 2, 2]
    assert found[-1].best_value == 7.0


def test_a_run_without_any_number_has_no_best_epoch_and_says_so() -> None:
    words = "split 'validation': val/loss was infinite in every epoch, of which there were 3"
    with pytest.raises(DivergedError, match=words):
        states([math.inf] * 3, StopPart(), epochs=3)
    with pytest.raises(DivergedError, match="of which there were 2"):
        states([math.inf] * 3, StopPart(patience=2))


def test_a_judged_value_that_is_not_a_number_ends_the_run() -> None:
    stop = StopPart(metric="val/rmse")
    words = (
        "split 'validation': val/rmse is nan after epoch 2 .step 10.; .* last checkpoint is kept"
    )
    with pytest.raises(DivergedError, match=words):
        states([0.5, math.nan], stop)


def test_a_loss_that_is_not_a_number_ends_the_run_whatever_is_judged() -> None:
    """The largest of logits that are no numbers is some class, so accuracy stays a number."""
    recipe = recipe_of(StopPart(metric="val/accuracy"), 9)
    with pytest.raises(DivergedError, match="val/loss is nan after epoch 1"):
        after_epoch(TrainState(), {"val/loss": math.nan, "val/accuracy": 0.1}, recipe, steps=5)
