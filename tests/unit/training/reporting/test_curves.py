"""Curves of a run, from diaries that are made up."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.training.number_tasks import number_recipe
from training.recipe.parts.compression import PrunePart
from training.reporting.curves import MAX_POINTS, phase_curves, read_curves
from training.run_folder import RunFolder


def write(path: Path, *lines: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_losses_metrics_rate_and_norm_become_curves(tmp_path: Path) -> None:
    one = {"train/loss": 2.0, "train/learning_rate": 0.1, "train/gradient_norm": 3.0}
    more = {"train/wait_share": 0.2, "gradients/layer.weight": 4.0, "val/loss": 1.5, "val/f1": 0.5}
    path = write(tmp_path / "m", {"epoch": 1, **one, **more}, {"epoch": 2, **one, "val/f1": 0.75})
    found = phase_curves("train", path)
    assert (found.phase, found.epochs) == ("train", 2)
    curves = {curve.metric: curve.points for curve in found.curves}
    assert list(curves) == [*one, "val/loss", "val/f1"]
    assert curves["val/f1"] == ((1, 0.5), (2, 0.75))
    assert curves["val/loss"] == ((1, 1.5),)


def test_a_damaged_diary_costs_its_lines_and_not_the_report(tmp_path: Path) -> None:
    path = write(tmp_path / "m", {"epoch": 1, "val/loss": 1.0}, {"epoch": 2, "val/loss": 2e999})
    path.write_bytes(path.read_bytes() + b'[1]\n{"epoch": "x"}\n\xff\n{"epoch": 3, "val/lo')
    (curve,) = phase_curves("train", path).curves
    assert curve.points == ((1, 1.0),)
    assert phase_curves("train", tmp_path / "missing").curves == ()


@pytest.mark.parametrize("epochs", [MAX_POINTS, MAX_POINTS + 1, 1000])
def test_a_long_run_keeps_its_ends_and_evenly_the_rest(tmp_path: Path, epochs: int) -> None:
    path = write(tmp_path / "m", *({"epoch": n + 1, "val/loss": n} for n in range(epochs)))
    found = phase_curves("train", path)
    (curve,) = found.curves
    numbers = [epoch for epoch, _ in curve.points]
    assert (found.epochs, len(numbers)) == (epochs, MAX_POINTS)
    assert (numbers[0], numbers[-1]) == (1, epochs)
    gaps = {after - before for before, after in itertools.pairwise(numbers)}
    assert max(gaps) - min(gaps) <= 1


def test_every_phase_of_the_recipe_is_read_and_no_other(tmp_path: Path) -> None:
    plain = number_recipe("numbers", {"mse": {}}, track=["jsonl"])
    folder = RunFolder(tmp_path, plain, "0" * 64)
    write(folder.metrics, {"epoch": 1, "val/loss": 1.0})
    write(folder.path / "prune" / "metrics.jsonl", {"epoch": 1, "val/loss": 2.0})
    assert [one.phase for one in read_curves(plain, folder)] == ["train"]
    for part, phases in (
        (PrunePart(amount=0.5), ["train", "prune"]),
        (PrunePart(amount=0.5, at="60%"), ["train"]),  # within the training
    ):
        pruned = plain.model_copy(update={"prune": part})
        assert [one.phase for one in read_curves(pruned, folder)] == phases
    assert read_curves(plain.model_copy(update={"track": ()}), folder) == ()
