"""Labels of every task: conversion, and errors that name the row."""

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from tests.unit.training.number_tasks import number_recipe
from training.datasets import load_splits
from training.errors import DataError, TargetError
from training.network.model import build_model, try_model

CE: dict[str, Any] = {"cross_entropy": {}}
HUGE = 1e300


def load(kind: str, loss: dict[str, Any], **args: Any) -> Any:
    chosen = number_recipe(kind, loss)
    document = chosen.document()
    document["data"]["args"] |= args
    return load_splits(type(chosen).model_validate(document))


@pytest.mark.parametrize(
    ("kind", "loss", "shape", "type_"),
    [
        ("numbers", {"mse": {}}, (96,), np.float32),
        ("columns", {"l1": {}}, (96, 2), np.float32),
        ("places", {"huber": {}}, (96, 3, 2), np.float32),
        ("counts", {"poisson": {}}, (96,), np.float32),
        ("multi_label", {"bce": {}}, (96, 2), np.float32),
        ("classes", CE, (96,), np.int64),
    ],
)
def test_what_labels_become(
    kind: str, loss: dict[str, Any], shape: tuple[int, ...], type_: type
) -> None:
    labels = load(kind, loss).train.labels
    assert (labels.shape, labels.dtype) == (shape, type_)
    again = load(kind, loss)
    assert again.sha256() == load(kind, loss).sha256()


@pytest.mark.parametrize(
    ("kind", "loss", "wrong", "words"),
    [
        ("numbers", CE, {}, r"float64 \[96\] \(the first is -?[\d.]+\).*whole numbers.*mse, l1"),
        ("numbers", {"mse": {}}, {"value": "nan"}, "row 7 has nan; leave the row out"),
        ("numbers", {"mse": {}}, {"value": "-inf"}, "row 7 has -inf"),
        ("numbers", {"mse": {}}, {"value": HUGE}, r"row 7 has 1e\+300"),
        ("columns", {"mse": {}}, {"value": "nan"}, "row 7 has nan"),
        ("places", {"mse": {}}, {"value": "nan"}, "labels: none of row 7 counts"),
        ("places", {"mse": {}}, {"value": "inf"}, "row 7 has inf"),
        ("counts", {"poisson": {}}, {"value": -3}, "row 7 has -3; loss poisson wants counts"),
        ("multi_label", {"bce": {}}, {"value": 2}, "row 7 has 2; loss bce wants 0 or 1"),
        ("places", {"bce": {}}, {}, r"float64 \[96, 3, 2\], and loss bce is about 0 and 1"),
        ("numbers", {"mse": {}}, {"value": "nan", "feature": True}, "'features': row 7 holds nan"),
        ("numbers", {"mse": {}}, {"value": "inf", "feature": True}, "'features': row 7 holds inf"),
    ],
)
def test_the_first_wrong_row_is_named(
    kind: str, loss: dict[str, Any], wrong: dict[str, Any], words: str
) -> None:
    with pytest.raises(DataError, match=words) as refused:
        load(kind, loss, **({"split": "validation", "row": 7, **wrong} if wrong else {}))
    assert f"split '{'validation' if wrong else 'train'}'" in str(refused.value)


def test_a_class_that_the_model_has_not_is_named_with_its_row() -> None:
    splits = load("classes", CE, split="test", row=5, value=4)
    chosen = number_recipe("classes", CE)
    with pytest.raises(DataError, match=r"split 'test': .*first that is none is 4, in row 5"):
        try_model(build_model(chosen), splits, chosen)


@pytest.mark.parametrize(
    ("kind", "loss", "widths", "words"),
    [
        ("numbers", {"mse": {}}, [2], r"first output must be \[rows\] or \[rows, 1\]"),
        ("columns", {"mse": {}}, [1], r"must be \[rows, 2\].*loss mse is about regression"),
        ("multi_label", {"bce": {}}, [3], r"must be \[rows, 2\]"),
    ],
)
def test_an_output_of_another_shape_is_refused_before_training(
    kind: str, loss: dict[str, Any], widths: list[int], words: str
) -> None:
    model = {"target": "tests.unit.training.number_tasks:Heads", "args": {"widths": widths}}
    chosen = number_recipe(kind, loss, model={**model, "outputs": ["found"]})
    with pytest.raises(TargetError, match=words):
        try_model(build_model(chosen), load(kind, loss), chosen)


TWO: dict[str, Any] = {"sum": [{"cross_entropy": {}}, {"mse": {}, "labels": "amount"}]}


def test_a_sum_of_losses_takes_several_labels() -> None:
    splits = load("two", TWO)
    assert splits.train.labels.dtype == np.int64
    assert {name: labels.shape for name, labels in splits.train.others.items()} == {
        "amount": (96, 3, 1)
    }


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ({"labels": "amuont"}, r"no labels 'amuont'.*did you mean 'amount'"),
        ({"mse": None, "bce": {}, "labels": "unused"}, "wants 0 or 1"),
        ({"labels": "labels"}, "two losses of the sum need different labels"),
    ],
)
def test_labels_that_a_sum_cannot_have_are_named(part: dict[str, Any], words: str) -> None:
    first, second = TWO["sum"]
    merged = {name: value for name, value in {**second, **part}.items() if value is not None}
    with pytest.raises(DataError, match=words):
        load("two", {"sum": [first, merged]})


def test_an_output_that_a_sum_names_is_there() -> None:
    model = {"target": "tests.unit.training.number_tasks:Heads", "outputs": ["found", "amount"]}
    first, second = TWO["sum"]
    for output in model["outputs"]:
        number_recipe("two", {"sum": [first, {**second, "output": output}]}, model=model)
    missing = {"sum": [first, {**second, "output": "amounts"}]}
    with pytest.raises(ValidationError, match=r"output 'amounts'.*did you mean 'amount'"):
        number_recipe("two", missing, model=model)


@pytest.mark.parametrize(
    ("loss", "stop", "words"),
    [
        ({"mse": {}}, "val/rsme", r"'val/rsme'.*about regression.*did you mean 'val/rmse'"),
        ({"mse": {}}, "val/accuracy", r"about regression.*known: val/loss, val/mae, val/r2"),
        (CE, "val/rmse", "about classes"),
        ({"bce": {}}, "val/macro_f1", r"about multi_label.*did you mean 'val/f1'"),
        ({"sum": [{"mse": {}, "output": "x"}]}, "val/loss", "first term of a sum"),
        ({"mse": {}, "task": "counts"}, "val/loss", "task belong to a target"),
        ({"bce": {"pos_weight": [0]}}, "val/loss", "greater than 0"),
    ],
)
def test_a_recipe_that_contradicts_itself_is_refused(
    loss: dict[str, Any], stop: str, words: str
) -> None:
    with pytest.raises(ValidationError, match=words):
        number_recipe("numbers", loss, stop={"metric": stop})
