"""Rows put apart by shares: nothing lost, every class everywhere, the seed alone decides."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flambeau.protocol.tensors import Array
from tests.unit.training.named_data import recipe, splits
from training.datasets import load_splits, with_class_names
from training.errors import DataError
from training.recipe.parts.data_parts import Shares
from training.sources.rows import Rows
from training.sources.shares import put_apart


def rows(labels: Array) -> Rows:
    """Rows whose input is their number."""
    return Rows({"x": np.arange(len(labels))}, labels, lambda row: f"row {row}")


def apart(labels: Array, classes: bool = True, seed: int = 0, **shares: Any) -> dict[str, Rows]:
    return put_apart({"train": rows(labels)}, Shares(**shares), seed, (), classes)


@settings(max_examples=30, deadline=None)
@given(
    counts=st.lists(st.integers(8, 30), min_size=1, max_size=4),
    share=st.floats(0.2, 0.5),
    seed=st.integers(0, 2**32 - 1),
)
def test_every_row_is_in_one_split_and_every_class_in_all(
    counts: list[int], share: float, seed: int
) -> None:
    labels = np.repeat(np.arange(len(counts)), counts)
    found = apart(labels, seed=seed, test_share=share, validation_share=share)
    seen = np.concatenate([part.inputs["x"] for part in found.values()])
    assert sorted(seen.tolist()) == list(range(len(labels)))
    for part in found.values():
        assert set(part.labels.tolist()) == set(range(len(counts)))
        assert part.labels.tolist() == labels[part.inputs["x"]].tolist()
        assert part.place(0) == f"row {part.inputs['x'][0]}"
    again = apart(labels, seed=seed, test_share=share, validation_share=share)
    assert all(np.array_equal(found[s].labels, again[s].labels) for s in found)


def test_numbers_and_rows_of_several_labels_are_split_without_regard_to_them() -> None:
    numbers = np.linspace(0, 1, 20).astype(np.float32)
    assert len(apart(numbers, classes=False)["test"].labels) == 4
    assert len(apart(np.zeros((20, 3), np.int64))["test"].labels) == 4


@pytest.mark.parametrize(
    ("labels", "shares", "words"),
    [
        ([0, 1] * 5 + [-3], {}, r"row 10 has the class -3; classes begin at 0"),
        ([0, 2] * 5, {}, r"class 1 has no row to learn from, and classes go to 2"),
        ([1, 2] * 5, {}, r"class 0 has no row to learn from"),
        ([0] * 8 + [1, 1], {}, r"class 1 has 2 rows \(the first is row 8\), and 3 splits need one"),
        ([0] * 90 + [1] * 3, {}, r"class 1 has no row in 'validation', which has 12; raise valid"),
        ([0, 1] * 5, {"test_share": 0.01}, r"10 rows cannot be split with test_share 0.01"),
    ],
)
def test_what_cannot_be_put_apart_is_told(
    labels: list[int], shares: dict[str, Any], words: str
) -> None:
    with pytest.raises(DataError, match=words):
        apart(np.array(labels), **shares)


def test_a_class_that_no_training_row_has_is_told_with_its_row() -> None:
    given = {"train": rows(np.array([0, 1] * 9)), "test": rows(np.array([1, 0, 2]))}
    with pytest.raises(DataError, match="row 2 has class 2, which no training row has"):
        put_apart(given, Shares(), 0, (), True)
    with pytest.raises(DataError, match="class 'owl' has no row to learn from"):
        put_apart(given, Shares(), 0, ("cat", "dog", "owl"), True)


def test_digits_by_name_are_those_of_the_function_bit_for_bit() -> None:
    by_function = load_splits(recipe({"target": "training.datasets:digits"}, seed=5))
    by_name = splits({"digits": {}}, seed=5)
    assert by_name.sha256() == by_function.sha256()
    assert splits({"digits": {"seed": 6}}, seed=5).sha256() != by_name.sha256()
    assert splits({"digits": {"seed": 5}}, seed=7).sha256() == by_name.sha256()


@pytest.mark.parametrize(
    ("name", "shape", "names"),
    [
        ("iris", (150, 4), ("setosa", "versicolor", "virginica")),
        ("wine", (178, 13), ("class_0", "class_1", "class_2")),
        ("breast_cancer", (569, 30), ("malignant", "benign")),
    ],
)
def test_the_sets_of_scikit_learn_have_names_of_classes(
    name: str, shape: tuple[int, int], names: tuple[str, ...]
) -> None:
    found = splits({name: {}})
    parts = (found.train, found.validation, found.test)
    assert sum(part.rows for part in parts) == shape[0]
    assert all(part.inputs["features"].shape[1:] == shape[1:] for part in parts)
    assert found.class_names == names
    filled = with_class_names(recipe({name: {}}), found)
    assert filled.labels == {"logits": names}
    own = recipe({name: {}}, labels={"logits": [f"my {n}" for n in names]})
    assert with_class_names(own, found) is own
    shares = [[(part.labels == label).mean() for label in range(len(names))] for part in parts]
    np.testing.assert_allclose(shares, [shares[0]] * 3, atol=0.05)


def test_patients_are_measured_in_units_that_callers_have() -> None:
    found = splits({"diabetes": {}}, loss={"mse": {}}, stop={"metric": "val/rmse"})
    assert found.train.labels.dtype == np.float32
    assert found.class_names == ()
    age = found.train.inputs["features"][:, 0]
    assert 18 < age.min() < age.max() < 90
