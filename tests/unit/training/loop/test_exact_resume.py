"""A run that was cut off and resumed ends with the weights of one that was not, bit for bit."""

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.unit.training.cut_off import cut_off_in_epoch
from tests.unit.training.recipes import DATA, recipe, splits
from training.loop.loop import Trained, train
from training.recipe.recipe import Recipe
from training.run_folder import RunFolder

EPOCHS, CUT = 4, 2
MATRICES = {"target": "tests.unit.training.loop.optimization.test_optimizers:network"}
MODEL = recipe().document()["model"]
OPTIMIZERS = (
    *("sgd", "adam", "rmsprop", "adagrad", "adadelta", "nadam", "radam", "adafactor"),
    *("adamax", "asgd", "rprop"),
)


def trained(runs: Path, chosen: Recipe, resume: bool = False) -> Trained:
    folder = RunFolder(runs, chosen, DATA)
    with folder.locked():
        return train(chosen, splits(), folder, Console(file=io.StringIO()), resume)


def cut_off(runs: Path, chosen: Recipe) -> None:
    """Trains two epochs and loses the third."""
    with cut_off_in_epoch(CUT + 1):
        trained(runs, chosen)


CASES: dict[str, dict[str, Any]] = {
    **{name: {"optim": {name: {}}} for name in OPTIMIZERS},
    "muon": {"optim": {"muon": {}}, "model": MATRICES},
    "lbfgs": {"optim": {"lbfgs": {"max_iter": 3}}, "model": MATRICES},
    "groups": {"optim": {"groups": [{"match": "head.*", "lr_scale": 3}], "layer_decay": 0.5}},
    "accumulate": {"optim": {"accumulate": 3, "clip": {"value": 0.1}}},
    "step": {"schedule": {"step": {"every_epochs": 1}}},
    "exponential": {"schedule": {"exponential": {}}},
    "plateau": {
        "schedule": {"plateau": {"patience": 0, "threshold": 0.9, "factor": 0.5}},
        "stop": {"metric": "val/accuracy"},
    },
    "one_cycle": {"schedule": {"one_cycle": {}}},
    "wsd": {"schedule": {"wsd": {}}},
    "ema": {"train": {"epochs": EPOCHS, "threads": 1, "ema": 0.9}},
    "bf16": {"train": {"epochs": EPOCHS, "threads": 1, "precision": "bf16"}},
    "unfreeze_at": {"model": {**MODEL, "freeze": ["features.*"], "unfreeze_at": {"epoch": 4}}},
    "constant": {"schedule": {"constant": {}}, "loss": {"focal": {"weight": "balanced"}}},
}


@pytest.mark.parametrize("case", CASES)
def test_a_resumed_run_ends_with_the_same_bits(case: str, tmp_path: Path) -> None:
    chosen = recipe(**{"train": {"epochs": EPOCHS, "threads": 1}, **CASES[case]})
    expected = trained(tmp_path / "whole", chosen)
    cut_off(tmp_path / "cut", chosen)
    found = trained(tmp_path / "cut", chosen, resume=True)
    assert found.state == expected.state
    assert found.state.epoch > CUT
    checkpoints = RunFolder(tmp_path / "cut", chosen, DATA).checkpoints
    for path in RunFolder(tmp_path / "whole", chosen, DATA).checkpoints.glob("*.safetensors"):
        assert path.read_bytes() == (checkpoints / path.name).read_bytes(), path.name


def test_what_a_plateau_has_done_is_not_forgotten(tmp_path: Path) -> None:
    found = trained(tmp_path, recipe(train={"epochs": EPOCHS}, **CASES["plateau"]))
    assert found.state.rate_factor < 1
