"""Rows with several labels: teacher forcing, places that do not count, and resuming."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from flambeau.protocol.tensors import Array
from tests.unit.training.cut_off import cut_off_in_epoch
from training.datasets import IGNORED_LABEL, Splits, load_splits
from training.errors import DataError, RecipeError, TargetError
from training.loop.evaluation import evaluate
from training.loop.loop import Trained, train
from training.loop.optimization.schedule import teacher_forcing_share
from training.network.model import build_model, try_model
from training.recipe.parts.train_parts import TeacherForcing
from training.recipe.recipe import Recipe
from training.run_folder import RunFolder

PADDED, END = -1, 3


def copies(seed: int, rows: int = 48) -> dict[str, tuple[dict[str, Array], Array]]:
    """One to three one-hot elements, to be copied as symbols, then the end."""

    def split(number: int) -> tuple[dict[str, Array], Array]:
        random = np.random.default_rng((seed, number))
        lengths = random.integers(1, 3, rows, endpoint=True)
        written = random.integers(0, 3, (rows, 3))
        elements = np.eye(3, dtype=np.float32)[written]
        elements *= (np.arange(3) < lengths[:, None])[:, :, None]
        labels = np.full((rows, 4), PADDED)
        for row, length in enumerate(lengths):
            labels[row, : length + 1] = [*written[row, :length], END]
        return {"elements": elements, "lengths": lengths}, labels

    return {name: split(i) for i, name in enumerate(("train", "validation", "test"))}


def copy_recipe(**changes: Any) -> Recipe:
    document: dict[str, Any] = {
        "name": "copies",
        "model": {
            "target": "training.models.seq2seq:Seq2Seq",
            "args": {"features": 3, "symbols": 4, "longest": 4, "hidden": 8},
        },
        "data": {"target": f"{__name__}:copies", "batch_size": 16},
        "loss": {"cross_entropy": {"ignore_index": PADDED}},
        "optim": {"adamw": {"lr": 1e-2}},
        "train": {"epochs": 4, "teacher_forcing": {}},
        "stop": {"metric": "val/exact_match"},
        "publish": {"model": "copies"},
        **changes,
    }
    return Recipe.model_validate(document)


@pytest.fixture(scope="module")
def splits() -> Splits:
    return load_splits(copy_recipe())


def trained(folder: Path, splits: Splits, chosen: Recipe, resume: bool = False) -> Trained:
    found = RunFolder(folder, chosen, "0" * 64)
    with found.locked():
        return train(chosen, splits, found, Console(file=io.StringIO()), resume)


def test_it_learns_to_write_sequences(tmp_path: Path, splits: Splits) -> None:
    chosen = copy_recipe(train={"epochs": 30, "teacher_forcing": {}}, optim={"adamw": {"lr": 3e-2}})
    found = trained(tmp_path, splits, chosen)
    metrics = evaluate(found.model, splits.test, chosen, "test")
    assert metrics["test/exact_match"] > 0.9
    assert metrics["test/exact_match"] <= metrics["test/accuracy"]
    assert found.signature.outputs[0].shape == (-1, 4, 4)


def test_a_run_that_is_cut_off_ends_with_the_same_bits(tmp_path: Path, splits: Splits) -> None:
    chosen = copy_recipe()
    whole = trained(tmp_path / "whole", splits, chosen)
    with cut_off_in_epoch(3):
        trained(tmp_path / "cut", splits, chosen)
    resumed = trained(tmp_path / "cut", splits, chosen, resume=True)
    assert resumed.state == whole.state
    assert resumed.weights.read_bytes() == whole.weights.read_bytes()


def test_what_does_not_count_has_no_loss(splits: Splits) -> None:
    model = build_model(copy_recipe())
    expected = evaluate(model, splits.test, copy_recipe(), "test")
    labels = splits.test.labels
    assert (labels == IGNORED_LABEL).any()
    assert not (labels == PADDED).any()
    with torch.inference_mode():
        logits = model.eval()(*(torch.from_numpy(a) for a in splits.test.inputs.values()))
        counted = torch.from_numpy(labels != IGNORED_LABEL)
        right = torch.from_numpy(labels)[counted]
        loss = torch.nn.functional.cross_entropy(logits[counted], right)
    assert expected["test/loss"] == pytest.approx(loss.item(), rel=1e-5)


def test_the_share_falls_in_a_straight_line() -> None:
    forcing = TeacherForcing(first=0.8, last=0.2)
    found = [teacher_forcing_share(step, 5, forcing) for step in range(5)]
    assert found == pytest.approx([0.8, 0.65, 0.5, 0.35, 0.2])
    assert teacher_forcing_share(0, 1, forcing) == 0.8


def test_a_model_that_cannot_be_told_answers_is_refused_before_training() -> None:
    chosen = copy_recipe(
        model={"target": "training.models.recurrent:RecurrentClassifier", "args": {"features": 3}},
        data={"target": f"{__name__}:single"},
        stop={},
    )
    splits = load_splits(chosen)
    with pytest.raises(TargetError, match="takes elements, lengths; let it take targets and"):
        try_model(build_model(chosen), splits, chosen)


def single(seed: int) -> dict[str, tuple[dict[str, Array], Array]]:
    """The same rows with their first label only."""
    return {name: (inputs, labels[:, 0]) for name, (inputs, labels) in copies(seed).items()}


def test_a_first_output_of_another_shape_is_refused_before_training(splits: Splits) -> None:
    args = {"features": 3, "symbols": 4, "longest": 5, "hidden": 8}
    chosen = copy_recipe(model={"target": "training.models.seq2seq:Seq2Seq", "args": args})
    with pytest.raises(TargetError, match=r"must be \[rows, 4, classes\], for the labels are"):
        try_model(build_model(chosen), splits, chosen)


def test_rows_of_one_label_have_no_exact_match() -> None:
    chosen = copy_recipe(
        model={"target": "training.models.recurrent:RecurrentClassifier", "args": {"features": 3}},
        data={"target": f"{__name__}:single"},
        train={},
    )
    with pytest.raises(RecipeError, match="each row has one label only; use 'val/accuracy'"):
        try_model(build_model(chosen), load_splits(chosen), chosen)


def nothing_counts(seed: int) -> dict[str, tuple[dict[str, Array], Array]]:
    found = copies(seed)
    found["validation"][1][5] = PADDED
    return found


def test_a_row_whose_labels_all_do_not_count_is_named() -> None:
    chosen = copy_recipe(data={"target": f"{__name__}:nothing_counts"})
    with pytest.raises(DataError, match=r"split 'validation': labels: none of row 5 counts"):
        load_splits(chosen)
