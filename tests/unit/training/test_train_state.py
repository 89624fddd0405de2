"""Which epoch is best, and when training ends."""

import pytest

from training.learning.train_state import TrainState, after_epoch
from training.recipe import ModelPart, PublishPart, Recipe, StopPart, TrainPart
from training.recipe_parts.data_parts import DataPart


def states(values: list[float], stop: StopPart, epochs: int = 100) -> list[TrainState]:
    recipe = Recipe(
        name="r",
        model=ModelPart(target="unused:Unused"),
        data=DataPart(target="unused:unused"),
        train=TrainPart(epochs=epochs),
        stop=stop,
        publish=PublishPart(model="m"),
    )
    found = [TrainState()]
    for value in values:
        found.append(after_epoch(found[-1], {stop.metric: value}, recipe, steps=5))
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


def test_a_first_value_that_is_not_a_number_does_not_stop_the_run() -> None:
    assert states([float("nan")], StopPart())[0].best_epoch == 1
