"""Splits: disjoint, repeatable, and refused in words when they contradict each other."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from training import datasets
from training.datasets import load_splits
from training.errors import DataError, RecipeError
from training.recipe.parts.data_parts import DataPart
from training.recipe.parts.model_parts import ModelPart
from training.recipe.recipe import PublishPart, Recipe


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


def test_a_function_without_a_seed_is_called_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = ({"x": np.zeros((2, 1), np.float32)}, np.array([0, 1]))
    told: list[int] = []

    def mine(side: int = 1) -> dict[str, Any]:
        told.append(side)
        return dict.fromkeys(("train", "validation", "test"), rows)

    monkeypatch.setattr(datasets, "mine", mine, raising=False)
    load_splits(recipe(target="training.datasets:mine"))
    load_splits(recipe(target="training.datasets:mine", side=2))
    assert told == [1, 2]
    with pytest.raises(RecipeError, match=r"unknown key 'seed' in 'data\.args'"):
        load_splits(recipe(target="training.datasets:mine", seed=3))


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
    refused(found, words, monkeypatch)


def objects(*rows: Any) -> Any:
    found = np.empty(len(rows), object)
    found[:] = rows
    return found


PAIR, TRIPLE = np.zeros(2, np.float32), np.zeros(3, np.float32)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([[1, 2], [3.0, 4], [5, 6, 7]], r"row 2 is int64 \[3\], and row 0 is int64 \[2\]; give"),
        ([PAIR, PAIR, TRIPLE], r"row 2 is float32 \[3\], and row 0 is float32 \[2\]; give all"),
        ([PAIR, [[1], [2, 3]], PAIR], r"row 1 is of several shapes itself, and row 0 is float32"),
        (objects(PAIR, TRIPLE, PAIR), r"objects \(row 1 is float32 \[3\], and row 0 is float32"),
        ([1.0, None, 2.0], r"objects \(row 1 is NoneType \[\], and row 0 is float64 \[\]\)"),
        (objects(PAIR, PAIR, "cat"), r"objects \(row 2 is str \[\], and row 0 is float32 \[2\]"),
    ],
)
def test_the_first_row_of_another_shape_or_type_is_named(
    rows: Any, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = r"split 'validation': input 'x'[ :].*"
    found = {"train": GOOD, "validation": ({"x": rows}, GOOD[1]), "test": GOOD}
    refused(found, where + words, monkeypatch)


def test_labels_of_mixed_shapes_or_types_are_named_too(monkeypatch: pytest.MonkeyPatch) -> None:
    for labels, words in (
        ([0, [1, 1], 1], r"row 1 is int64 \[2\], and row 0 is int64 \[\]; give all rows one shape"),
        (
            [0, 1, None],
            r"object \[3\] \(row 2 is NoneType \[\], and row 0 is int64 \[\]\), and loss",
        ),
    ):
        found = {"train": GOOD, "validation": (GOOD[0], labels), "test": GOOD}
        refused(found, f"split 'validation': labels[ :].*{words}", monkeypatch)


def test_a_row_that_is_no_text_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    text = {"x": objects("a", "b", 3.0)}
    found = {"train": GOOD, "validation": GOOD, "test": (text, GOOD[1])}
    step = {"python": {"target": "x.py:Y"}}
    chosen = Recipe.model_validate({**recipe().document(), "preprocess": [step]})
    words = "split 'test': input 'x': row 2: a BYTES element is a float"
    refused(found, words, monkeypatch, chosen)


def refused(
    found: object, words: str, monkeypatch: pytest.MonkeyPatch, like: Recipe | None = None
) -> None:
    monkeypatch.setattr(datasets, "mine", lambda seed: found, raising=False)
    chosen = (like or recipe()).model_copy(
        update={"data": DataPart(target="training.datasets:mine")}
    )
    with pytest.raises(DataError, match=words):
        load_splits(chosen)


def test_reading_data_does_not_import_torch() -> None:
    code = "import sys, training.datasets, training.recipe.file; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
