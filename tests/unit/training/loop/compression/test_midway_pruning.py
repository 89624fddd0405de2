"""`prune.at`: weights go within the training, stay away, and a resumed run does not differ."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from rich.console import Console
from safetensors.torch import load_file

from tests.unit.training.loop.test_exact_resume import cut_off, trained
from tests.unit.training.recipes import DATA, recipe, splits
from training.errors import RecipeError, StoppedError
from training.loop.compression.later_phases import fine_tuning
from training.loop.loop import train
from training.loop.train_state import TrainState, after_epoch
from training.recipe.recipe import Recipe
from training.run_folder import RunFolder
from training.watcher import LaterPhase, NullWatcher

MODEL = recipe().document()["model"]
TRAIN = {"epochs": 4, "threads": 1}
"""Each epoch has 5 steps."""


def pruned(at: str, amount: float = 0.5, **changes: Any) -> Recipe:
    return recipe(**{"train": TRAIN, "prune": {"amount": amount, "at": at}, **changes})


def zeros(weights: Path, name: str = "features.3.weight") -> float:
    return float((load_file(weights)[name] == 0).float().mean())


@pytest.mark.parametrize(
    ("at", "step"), [("60%", 12), ("2 epochs", 10), ("1 epoch", 5), ("7 steps", 7), ("2.6%", 1)]
)
def test_a_moment_is_a_share_epochs_or_steps(at: str, step: int) -> None:
    part = pruned(at).prune
    assert part is not None
    assert part.first_step(epochs=4, epoch_steps=5) == step


CASES: dict[str, dict[str, Any]] = {
    "adamw": {},
    "momentum": {"optim": {"sgd": {"lr": 0.1, "momentum": 0.9}}},
    "rmsprop": {"optim": {"rmsprop": {"momentum": 0.9, "centered": True}}},
    "lbfgs": {
        "optim": {"lbfgs": {"max_iter": 3}},
        "model": {"target": "tests.unit.training.loop.optimization.test_optimizers:network"},
    },
    "ema": {"train": {**TRAIN, "ema": 0.9}},
    "unfreeze": {"model": {**MODEL, "freeze": ["features.*"], "unfreeze_at": {"epoch": 4}}},
    "accumulate": {"optim": {"accumulate": 2}, "train": {**TRAIN, "precision": "bf16"}},
}


class Asking(LaterPhase):
    """Has a run end behind a step."""

    def __init__(self, step: int) -> None:
        super().__init__(NullWatcher(), 0)
        self._left = step

    @property
    def stop_asked(self) -> bool:
        """Counts the steps that ask, and no epochs: there are none before."""
        self._left -= 1
        return self._left == 0


@pytest.mark.parametrize("case", CASES)
def test_zeros_stay_and_a_resumed_run_has_the_same_bits(case: str, tmp_path: Path) -> None:
    """It is cut off right before the pruning, and in the middle of the epoch behind it."""
    chosen = pruned("1 step", **CASES[case])
    name = "1.weight" if case == "lbfgs" else "features.3.weight"
    whole = trained(tmp_path / "whole", chosen)
    last = whole.weights.with_name("epoch-000004.safetensors")
    assert zeros(last, name) == pytest.approx(0.5, abs=0.02)
    console = Console(file=io.StringIO())
    folder = RunFolder(tmp_path / "cut", chosen, DATA)
    with folder.locked():
        for step in (1, 2):
            with pytest.raises(StoppedError, match=f"stopped after step {[1, 3][step - 1]} of"):
                train(chosen, splits(), folder, console, step > 1, Asking(step))
        found = train(chosen, splits(), folder, console, True)
    assert console.file.getvalue().count("% of the weights") == 1  # type: ignore[attr-defined]
    assert found.weights.read_bytes() == whole.weights.read_bytes()
    assert found.state == whole.state


def test_what_is_best_is_an_epoch_with_fewer_weights(tmp_path: Path) -> None:
    chosen = pruned("3 epochs", amount=0.95, optim={"adamw": {"lr": 0.02}})
    found = trained(tmp_path, chosen)
    lines = RunFolder(tmp_path, chosen, DATA).metrics.read_text().splitlines()
    losses = [json.loads(line)["val/loss"] for line in lines]
    assert min(losses[:3]) < losses[3], "else this shows nothing"
    assert (found.state.best_epoch, found.state.best_value) == (4, losses[3])
    assert zeros(found.weights) == pytest.approx(0.95, abs=0.02)


def test_patience_and_plateaus_begin_with_the_pruning() -> None:
    chosen = pruned(
        "15 steps",
        stop={"patience": 1},
        schedule={"plateau": {"patience": 1}},
        train={"epochs": 9},
    )
    state, seen = TrainState(), []
    for loss in (1.0, 1.1, 1.2, 2.0, 1.9, 1.95):
        state = after_epoch(state, {"val/loss": loss}, chosen, steps=5)
        seen.append((state.best_epoch, state.finished, state.rate_factor < 1))
    # Three epochs before it; the fourth is the first one without the weights.
    assert seen == [
        *[(1, False, False)] * 2,
        (1, False, True),
        (4, False, True),
        (5, False, True),
        (5, True, True),
    ]


def test_rounding_behind_it_keeps_the_zeros_and_does_not_prune_again() -> None:
    chosen = pruned("50%", qat={"epochs": 1})
    part = fine_tuning(chosen, "qat", epochs=1, lr_share=0.1).prune
    assert part is not None
    assert part.first_step(epochs=1, epoch_steps=5) is None


@pytest.mark.parametrize("at", ["20 steps", "4 epochs", "2%"])
def test_a_moment_outside_of_the_training_is_refused(at: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=rf"prune.at is {at}, and the training has 20 steps, 5"):
        trained(tmp_path, pruned(at))


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ({"at": "60% ", "amount": 0.5}, "prune.at"),
        ({"at": "100%", "amount": 0.5}, "more than 0% and less than 100%"),
        ({"at": "60%", "amount": 0.5, "structured": True}, "takes single weights"),
        ({"at": "60%", "amount": 0.5, "fine_tune_epochs": 3}, "drop fine_tune_epochs"),
        ({"at": "60%", "amount": 0.5, "lr_share": 0.5}, "drop fine_tune_epochs"),
    ],
)
def test_what_contradicts_it_is_refused(part: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        recipe(prune=part)


def test_without_shares_of_weights() -> None:
    with pytest.raises(ValidationError, match=r"prune.at compares whole weights"):
        pruned("60%", train={**TRAIN, "parallel": "fsdp", "processes": 2})


def test_the_stored_recipe_says_what_happens() -> None:
    for part, expected in (({}, (5, 0.1)), ({"at": "60%"}, (None, None))):
        stored = recipe(prune={"amount": 0.5, **part}).document()
        assert (stored["prune"]["fine_tune_epochs"], stored["prune"]["lr_share"]) == expected
        assert Recipe.model_validate(stored).document() == stored


def test_a_cut_between_epochs_changes_nothing_either(tmp_path: Path) -> None:
    chosen = pruned("30%")
    whole = trained(tmp_path / "whole", chosen)
    cut_off(tmp_path / "cut", chosen)
    found = trained(tmp_path / "cut", chosen, resume=True)
    assert found.weights.read_bytes() == whole.weights.read_bytes()
    assert torch.equal(found.model.get_parameter("head.2.weight") == 0, _zeros_of(whole.weights))


def _zeros_of(weights: Path) -> torch.Tensor:
    return load_file(weights)["head.2.weight"] == 0
