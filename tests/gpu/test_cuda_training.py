"""Weights trained on a GPU end in the host's memory, and a resumed run has the same bits."""

import io
from pathlib import Path

import pytest
import torch
from rich.console import Console

from tests.unit.training.recipes import DATA, recipe, splits
from training.loop.evaluation import evaluate
from training.loop.loop import Trained, train
from training.recipe.recipe import Recipe
from training.run_folder import RunFolder
from training.watcher import NullWatcher


class Stopping(NullWatcher):
    """Has a run end behind its first step."""

    stop_asked = True


def trained(runs: Path, chosen: Recipe, resume: bool = False) -> Trained:
    folder = RunFolder(runs, chosen, DATA)
    with folder.locked():
        return train(chosen, splits(), folder, Console(file=io.StringIO()), resume)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_it_learns_there_and_resumes_with_the_same_bits(precision: str, tmp_path: Path) -> None:
    chosen = recipe(
        train={"epochs": 8, "device": "cuda", "precision": precision, "ema": 0.5},
        optim={"adamw": {"lr": 1e-2}},
        loss={"cross_entropy": {"weight": "balanced"}},
    )
    found = trained(tmp_path / "whole", chosen)
    assert next(found.model.parameters()).device.type == "cpu"
    assert evaluate(found.model, splits().test, chosen, "test")["test/accuracy"] > 0.8
    folder = RunFolder(tmp_path / "cut", chosen, DATA)
    with folder.locked(), pytest.raises(Exception, match="stopped after step 1 of epoch 1"):
        train(chosen, splits(), folder, Console(file=io.StringIO()), watcher=Stopping())
    again = trained(tmp_path / "cut", chosen, resume=True)
    assert again.weights.read_bytes() == found.weights.read_bytes()
    assert not torch.are_deterministic_algorithms_enabled()
