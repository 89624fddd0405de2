"""Data sets that are read row by row: the rows read, padding of lengths, and refusals."""

import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.unit.training import row_sets
from tests.unit.training.padded_texts import text_recipe, text_splits
from tests.unit.training.row_sets import Places, lazy_document
from training.datasets import IGNORED_LABEL, Splits, load_splits
from training.errors import DataError
from training.loading.lazy_rows import (
    SAMPLE_ROWS,
    RowsByPlace,
    RowStream,
    lazy_rows,
    own_randomness,
)
from training.loading.loader import Loader
from training.recipe.recipe import Recipe

TEXTS = [({"tokens": np.arange(1, length + 1)}, length % 3) for length in (3, 1, 4, 2, 9)]


class Told(list[Any]):
    """Rows, and what a data set may tell of all of them."""

    def __init__(self, rows: list[Any], **told: Any) -> None:
        super().__init__(rows)
        vars(self).update(told)


def lazy_recipe(**changes: Any) -> Recipe:
    return Recipe.model_validate(lazy_document(**changes))


def test_training_rows_are_read_when_they_are_needed_and_the_others_at_once() -> None:
    splits = load_splits(lazy_recipe())
    assert splits.lazy_train is not None
    assert splits.lazy_train.rows == row_sets.ROWS
    assert splits.train.rows == row_sets.ROWS < SAMPLE_ROWS
    assert (splits.validation.rows, splits.test.rows) == (12, 12)
    many = Places(0, 5 * SAMPLE_ROWS)
    inputs, labels = RowsByPlace(many, "d", lazy_recipe()).read(SAMPLE_ROWS)
    assert len(inputs["x"]) == len(labels) == SAMPLE_ROWS
    assert many.read[1:] == list(range(0, 5 * SAMPLE_ROWS, 5))  # behind the first row's own


def test_the_digest_sees_what_a_data_set_says_of_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def digest(**told: Any) -> str:
        rows = Told([row_sets.row(number) for number in range(9)], **told)
        found = {**row_sets.places(0), "train": rows}
        monkeypatch.setattr(row_sets, "told", lambda seed: found, raising=False)
        return load_splits(lazy_recipe(data="told")).sha256()

    assert digest() == digest()
    assert len({digest(), digest(sha256="a"), digest(sha256="b")}) == 3


def test_the_lengths_that_a_data_set_tells_decide_which_rows_share_a_batch() -> None:
    lengths = [1 + place % 4 for place in range(16)]
    rows = Told([({"tokens": np.ones(length)}, 0) for length in lengths], lengths=lengths)
    chosen = text_recipe(
        data={"target": "u:u", "sampler": {"bucketed": {"window": 9}}, "batch_size": 4},
        padding={"inputs": {"tokens": 1}, "buckets": [12]},
    )
    few = text_splits()
    lazy = RowsByPlace(rows, "d", chosen)
    loader = Loader(Splits(few.train, few.validation, few.test, lazy), chosen)
    found = [batch.inputs[0].shape for window in loader.windows(0) for batch in window]
    assert sorted(found) == [(4, length) for length in (1, 2, 3, 4)]


@pytest.mark.parametrize("static", [False, True])
def test_rows_of_several_lengths_are_padded_on_the_right(static: bool) -> None:
    padding = {"inputs": {"tokens": 1}, "buckets": [5, 12], "mask": "mask", "lengths": "length"}
    values = {"values": {"tokens": 7}, "static": static}
    rows = RowsByPlace(TEXTS, "d", text_recipe(padding={**padding, **values}))
    inputs, labels = rows.take(np.array([1, 2]), 0, 0)
    assert list(inputs) == ["tokens", "mask", "length"]
    rest = [7] if static else []
    assert inputs["tokens"].tolist() == [[1, 7, 7, 7, *rest], [1, 2, 3, 4, *rest]]
    assert inputs["mask"].sum(axis=1).tolist() == inputs["length"].tolist() == [1, 4]
    assert labels.tolist() == [1, 1]
    whole, _ = rows.read(None)
    assert whole["tokens"].shape == whole["mask"].shape == (5, 12)
    nothing, no_labels = rows.take(np.empty(0, np.int64), 0, 0)
    assert len(nothing["tokens"]) == len(no_labels) == 0


def test_labels_of_each_place_are_padded_with_what_does_not_count() -> None:
    padding = {"inputs": {"tokens": 1}, "outputs": {"logits": 1}, "buckets": [12]}
    texts = [(inputs, np.ones(len(inputs["tokens"]), int)) for inputs, _ in TEXTS]
    rows = RowsByPlace(texts, "d", text_recipe(padding=padding))
    _, labels = rows.take(np.array([1, 0]), 0, 0)
    assert labels.tolist() == [[1, IGNORED_LABEL, IGNORED_LABEL], [1, 1, 1]]


def test_labels_are_what_the_loss_is_about() -> None:
    rows = RowsByPlace([({"x": 1.0}, 0), ({"x": 2.0}, 1.5)], "d", lazy_recipe(loss={"mse": {}}))
    labels = rows.take(np.array([0, 1]), 0, 0)[1]
    assert labels.dtype == np.float32
    assert labels.tolist() == [0, 1.5]
    with pytest.raises(DataError, match=r"row 0: its label is float64.*about whole numbers"):
        RowsByPlace([({"x": 1.0}, 0.5)], "d", lazy_recipe())


def test_a_row_has_one_label() -> None:
    terms = [{"mse": {}}, {"mse": {}, "labels": "age"}]
    with pytest.raises(DataError, match=r"loss.sum names \['age'\] too; give arrays"):
        lazy_rows(TEXTS, "d", lazy_recipe(loss={"sum": terms}))


def test_random_numbers_of_a_row_are_seeded_and_those_of_the_run_stay() -> None:
    rows = RowsByPlace(Places(0, 9), "d", lazy_recipe())
    before = random.getstate(), torch.get_rng_state()
    first = rows.take(np.array([3, 4]), 1, 0)[0]["x"]
    assert random.getstate() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])
    random.random()
    assert (rows.take(np.array([3, 4]), 1, 0)[0]["x"] == first).all()
    assert (rows.take(np.array([3, 4]), 2, 0)[0]["x"] != first).all()
    with own_randomness(1):
        drawn = random.random(), np.random.random(), torch.rand(1)
    with own_randomness(1):
        assert (random.random(), np.random.random(), torch.rand(1)) == drawn


def test_a_stream_is_walked_once_and_only_wanted_rows_are_made() -> None:
    made = []

    def row(number: int) -> Any:
        made.append(number)
        return row_sets.row(number)

    class Walked:
        walks = 0

        def __iter__(self) -> Iterator[Any]:
            self.walks += 1
            return (partial(row, number) for number in range(10))

    data = Walked()
    stream = RowStream(data, "d", lazy_recipe())
    assert stream.rows == 10
    walks = data.walks
    made.clear()
    for rows in ([1, 3], [5], [8, 9]):
        assert stream.take(np.array(rows), 0, 0)[1].tolist() == [number % 3 for number in rows]
    assert made == [1, 3, 5, 8, 9]
    assert data.walks == walks + 1
    with pytest.raises(DataError, match=r"d ended before row 10, .* lower train.steps_per_epoch"):
        stream.take(np.array([10]), 0, 0)


def gives(*rows: Any) -> list[Any]:
    return [row_sets.row(0), *rows]


class Broken(Places):
    def __getitem__(self, place: int) -> Any:
        if place == 3:
            raise OSError("no such image")
        return super().__getitem__(place)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ([], "d has no rows"),
        (Broken(0, 9), r"d: row 3 cannot be read: OSError: no such image"),
        (gives(7), "d: row 1 is not a pair"),
        (gives(({"x": np.zeros(3, np.float32)}, 1)), r"d: row 1 has .*float32 \[3\].*first row"),
        (gives(({"y": np.zeros(4, np.float32)}, 1)), "d: row 1 has .*'y'"),
        (gives(({"x": np.zeros(4)}, 1)), "d: row 1 has .*float64"),
        (gives(({"x": "text"}, 1)), "d: row 1: input 'x' holds text"),
        (gives(({"x": np.zeros(4, np.float32)}, "cat")), "d: row 1: its label is"),
        (gives(({"x": np.zeros(4, np.float32)}, -100)), "d: row 1: none of its labels counts"),
        (gives(({}, 1)), "d: row 1 has no inputs"),
        (Told(gives(), labels=[1, 2]), "d has 1 rows and 2 labels"),
    ],
)
def test_a_row_that_does_not_fit_is_named(data: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        RowsByPlace(data, "d", lazy_recipe()).read(None)


@pytest.mark.parametrize(
    ("loss", "label", "words"),
    [
        ({"bce": {}}, [0, 2], "d: row 1: its label has 2; loss bce wants 0 or 1"),
        ({"poisson": {}}, -3, "d: row 1: its label has -3; loss poisson wants counts, from 0"),
        ({"mse": {}}, np.nan, "d: row 1: its label has nan; leave the row out"),
        ({"mse": {}}, 1e300, r"d: row 1: its label has 1e\+300; leave the row out"),
        ({"mse": {}}, [[0.5, np.nan], [np.inf, 1.0]], "d: row 1: its label has inf"),
        ({"mse": {}}, [[np.nan], [np.nan]], "d: row 1: none of its labels counts"),
    ],
)
def test_a_label_that_the_loss_cannot_take_is_named(
    loss: dict[str, Any], label: Any, words: str
) -> None:
    first = np.zeros(np.shape(label))
    rows = RowsByPlace([({"x": 1.0}, first), ({"x": 1.0}, label)], "d", lazy_recipe(loss=loss))
    with pytest.raises(DataError, match=words):
        rows.take(np.array([0, 1]), 0, 0)


class OneWrong(Places):
    """Rows of which one has a label that is no class."""

    def __init__(self, wrong: int, rows: int, label: int) -> None:
        super().__init__(0, rows)
        self.wrong, self.label = wrong, label

    def __getitem__(self, place: int) -> Any:
        inputs, label = super().__getitem__(place)
        return inputs, self.label if place == self.wrong else label

    def __iter__(self) -> Iterator[Any]:
        return (self[place] for place in range(self.rows))


MANY = 2 * SAMPLE_ROWS


def wrong_class(
    monkeypatch: pytest.MonkeyPatch,
    runs: Path,
    train: Any,
    words: str,
    loading: Any = None,
    **changes: Any,
) -> None:
    found = {**row_sets.places(0), "train": train}
    monkeypatch.setattr(row_sets, "told", lambda seed: found, raising=False)
    document = lazy_document("told", **changes)
    document["data"] |= loading or {}
    with pytest.raises(DataError, match=words):
        row_sets.run(runs, Recipe.model_validate(document))


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("label", [3, -1])
@pytest.mark.parametrize("streamed", [False, True])
def test_a_class_that_the_model_has_not_is_named_when_its_row_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int, label: int, streamed: bool
) -> None:
    rows = OneWrong(MANY - 3, MANY, label)  # no row that is read beforehand
    words = f"split 'train': row {MANY - 3} has the label {label}, and the model has 3 classes"
    loading = {"workers": workers, "batch_size": 64}
    train = iter_only(rows) if streamed else rows
    wrong_class(monkeypatch, tmp_path, train, words, loading)


def iter_only(rows: OneWrong) -> Any:
    class Walked:
        def __iter__(self) -> Iterator[Any]:
            return iter(rows)

    return Walked()


def test_a_class_in_a_row_that_is_read_beforehand_is_named_by_its_own_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = r"split 'train': .*the first that is none is 3, in row 1000;"
    wrong_class(monkeypatch, tmp_path, OneWrong(1000, MANY, 3), words)


def test_a_class_in_labels_that_are_told_is_named_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = OneWrong(1001, MANY, -2)
    vars(rows)["labels"] = [rows[place][1] for place in range(MANY)]
    words = r"split 'train': .*the first that is none is -2, in row 1001;"
    loss = {"cross_entropy": {"weight": "balanced"}}
    wrong_class(monkeypatch, tmp_path, rows, words, loss=loss)


def test_told_labels_that_do_not_count_are_no_classes() -> None:
    loss = {"cross_entropy": {"ignore_index": -1, "weight": "balanced"}}
    told = Told([row_sets.row(0)] * 3, labels=[0, -1, 2])
    labels = RowsByPlace(told, "d", lazy_recipe(loss=loss)).labels
    assert labels is not None
    assert labels.tolist() == [0, IGNORED_LABEL, 2]


def test_a_row_that_is_too_long_is_named() -> None:
    padding = {"inputs": {"tokens": 1}, "buckets": [4, 8], "lengths": "length"}
    rows = RowsByPlace(TEXTS, "d", text_recipe(padding=padding))
    with pytest.raises(DataError, match=r"d: row 4: the inputs have length 9; at most 8 fit"):
        rows.take(np.array([0, 4]), 0, 0)


def test_a_python_step_takes_arrays_only() -> None:
    chosen = lazy_recipe(preprocess=[{"python": {"target": "x.py:Y"}}])
    with pytest.raises(DataError, match="'train' is read row by row, and preprocess has a python"):
        load_splits(chosen)
