"""Splits: disjoint, repeatable, and refused in words when they contradict each other."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from training import datasets
from training.datasets import load_splits
from training.errors import DataError, RecipeError
from training.recipe import ModelPart, PublishPart, Recipe
from training.recipe_parts.data_parts import DataPart


def recipe(recipe_seed: int = 7, target: str = "training.datasets:digits", **args: Any) -> Recipe:
    return Recipe(
        name="r",
        seed=recipe_seed,
        model=ModelPart(target="unused:Unused"),
        data=DataPart(target=target, args=args),
        publish=PublishPart(model="m"),
    )


def test_digits_are_split_without_overlap_and_nothing_is_lost() -> None:
    splits = load_splits(recipe())
    parts = (splits.train, splits.validation, splits.test)
    assert [part.rows for part in parts] == [1221, 216, 360]
    images = np.concatenate([part.inputs["image"] for part in parts])
    assert images.shape == (1797, 1, 8, 8)
    assert images.dtype == np.float32
    assert (images.min(), images.max()) == (0.0, 1.0)
    assert len({image.tobytes() for image in images}) == 1797
    for part in parts:
        assert np.bincount(part.labels).min() >= 0.09 * part.rows


def test_the_seed_alone_decides_the_splits() -> None:
    first = load_splits(recipe(7)).sha256()
    assert load_splits(recipe(7)).sha256() == first
    assert load_splits(recipe(8)).sha256() != first
    held_out = [load_splits(recipe(seed)).test.labels.tolist() for seed in (7, 8)]
    assert held_out[0] != held_out[1]
    assert load_splits(recipe(8, seed=7)).sha256() == first


def test_every_split_has_its_inputs_in_the_order_of_the_training_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    a, b = np.zeros((2, 1), np.float32), np.ones((2, 1), np.float32)
    found = {name: ({"a": a, "b": b}, np.array([0, 1])) for name in ("train", "validation")}
    found["test"] = ({"b": b, "a": a}, np.array([0, 1]))
    monkeypatch.setattr(datasets, "mine", lambda seed: found, raising=False)
    splits = load_splits(recipe(target="training.datasets:mine"))
    assert list(splits.train.inputs) == list(splits.test.inputs) == ["a", "b"]


def test_the_digest_sees_every_byte() -> None:
    splits = load_splits(recipe())
    before = splits.sha256()
    splits.test.inputs["image"][-1, 0, 7, 7] += 1
    assert splits.sha256() != before


def test_shares_and_arguments_that_make_no_sense_are_named() -> None:
    with pytest.raises(DataError, match=r"test_share 1.5"):
        load_splits(recipe(test_share=1.5))
    with pytest.raises(RecipeError, match=r"unknown key 'tset_share'.*did you mean 'test_share'"):
        load_splits(recipe(tset_share=0.1))


GOOD = ({"x": np.zeros((3, 2), np.float32)}, np.array([0, 1, 1]))


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (7, "returned int; return a mapping"),
        ({"train": GOOD, "test": GOOD}, r"\['test', 'train'\]"),
        ({"train": GOOD, "validation": GOOD, "test": 7}, "split 'test' is not a pair"),
        (
            {"train": GOOD, "validation": GOOD, "test": (GOOD[0], np.zeros(3))},
            "labels are float64",
        ),
        (
            {"train": GOOD, "validation": GOOD, "test": (GOOD[0], np.array([0]))},
            "there are 1 labels",
        ),
        ({"train": GOOD, "validation": GOOD, "test": ({}, GOOD[1])}, "has no inputs"),
        (
            {"train": GOOD, "validation": GOOD, "test": ({"x": np.array(["a"] * 3)}, GOOD[1])},
            "text or objects",
        ),
        (
            {"train": GOOD, "validation": ({"y": GOOD[0]["x"]}, GOOD[1]), "test": GOOD},
            "names, types and row shapes must agree",
        ),
    ],
)
def test_what_is_no_data_set_is_refused(
    found: object, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets, "mine", lambda seed: found, raising=False)
    with pytest.raises(DataError, match=words):
        load_splits(recipe(target="training.datasets:mine"))


def test_reading_data_does_not_import_torch() -> None:
    code = "import sys, training.datasets, training.recipe_file; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
