"""The Python step of a recipe: the data goes through it, and what is wrong with it is named."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from tests.fixtures.word_counter import WORDS, forecasts
from tests.unit.training.recipes import recipe
from training.datasets import Splits, load_splits
from training.errors import DataError, TargetError, TrainingError
from training.network.python_step import open_recipe_step
from training.recipe.recipe import Recipe

COUNTER = "tests/fixtures/word_counter.py:WordCounter"


def text_recipe(target: str = COUNTER, **changes: Any) -> Recipe:
    step = {"python": {"target": target, "args": {"words": list(WORDS)}}}
    data = {"target": "tests.fixtures.word_counter:forecasts"}
    return recipe(**{"preprocess": [step], "data": data, **changes})


def prepared(chosen: Recipe) -> Splits:
    step = open_recipe_step(chosen)
    assert step is not None
    return step.prepared(load_splits(chosen))


def test_the_data_goes_through_the_step() -> None:
    raw = load_splits(text_recipe())
    assert raw.train.inputs["text"].dtype == object
    assert raw.sha256() == load_splits(text_recipe()).sha256()
    assert raw.sha256() != load_splits(text_recipe(seed=1)).sha256()
    splits = prepared(text_recipe())
    counts: Any = splits.test.inputs["counts"]
    assert (counts.dtype, counts.shape) == (np.float32, (96, 6))
    np.testing.assert_array_equal(counts.argmax(axis=1) // 2, forecasts(0)["test"][1])
    by_module = text_recipe("tests.fixtures.word_counter:WordCounter")
    np.testing.assert_array_equal(prepared(by_module).test.inputs["counts"], counts)


def test_text_needs_a_step() -> None:
    with pytest.raises(DataError, match=r"holds text or objects.*a step `python` in preprocess"):
        load_splits(text_recipe(preprocess=[]))
    assert open_recipe_step(text_recipe(preprocess=[])) is None


WRONG = {
    "raises": "raise KeyError('wrong')",
    "batch": "return {'x': np.full((len(rows), 2), float(len(rows)))}",
}


@pytest.mark.parametrize(
    ("body", "error", "message"),
    [
        ("raises", TargetError, "preprocess.0.python: Step fails on the data: KeyError: 'wrong'"),
        ("batch", DataError, "gives row 0 of the test split another 'x' alone than among others"),
    ],
)
def test_a_step_that_does_not_fit_is_named(
    body: str, error: type[TrainingError], message: str, tmp_path: Path
) -> None:
    lines = ["import numpy as np", "class Step:", "    def __init__(self, words): pass"]
    lines += ["    def __call__(self, inputs):", "        rows = inputs['text']"]
    (tmp_path / "step.py").write_text("\n".join([*lines, f"        {WRONG[body]}"]))
    with pytest.raises(error, match=re.escape(message)):
        prepared(text_recipe(f"{tmp_path}/step.py:Step"))


def departing_step(folder: Path, datatype: str, share: float) -> Recipe:
    """A step whose results depart by a share of the largest, in batches alone."""
    lines = ["import numpy as np", "class Step:", "    def __init__(self, words): pass"]
    lines += ["    def __call__(self, inputs):", "        rows = len(inputs['text'])"]
    lines += [f"        x = np.full((rows, 2), [100.0, 0.0]) + (rows > 1) * {share} * 100"]
    (folder / "step.py").write_text(
        "\n".join([*lines, f"        return {{'x': x.astype('{datatype}')}}"])
    )
    return text_recipe(f"{folder}/step.py:Step")


@pytest.mark.parametrize(
    ("datatype", "share"), [("float32", 2e-6), ("float64", 2e-6), ("float16", 1e-3), ("int64", 0)]
)
def test_a_step_may_round_otherwise_among_other_rows(
    datatype: str, share: float, tmp_path: Path
) -> None:
    assert prepared(departing_step(tmp_path, datatype, share)).test.inputs["x"].dtype == datatype


@pytest.mark.parametrize(
    ("datatype", "share"),
    [("float32", 1e-4), ("float64", 1e-4), ("float16", 1e-2), ("int64", 0.01)],
)
def test_a_step_whose_rows_depend_on_each_other_is_refused_with_the_difference(
    datatype: str, share: float, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=r"another 'x' alone than among others, by .* than round"):
        prepared(departing_step(tmp_path, datatype, share))


def test_a_product_of_matrices_is_no_mistake(tmp_path: Path) -> None:
    lines = ["import numpy as np", "class Step:", "    def __init__(self, words):"]
    lines += ["        self.w = np.random.default_rng(0).random((999, 64), np.float32)"]
    lines += [
        "    def __call__(self, inputs):",
        "        n = np.array([len(t) for t in inputs['text']])",
    ]
    lines += ["        x = np.sin(n[:, None] * np.arange(999)).astype('float32')"]
    (tmp_path / "step.py").write_text("\n".join([*lines, "        return {'x': x @ self.w}"]))
    assert prepared(text_recipe(f"{tmp_path}/step.py:Step")).test.inputs["x"].shape[1] == 64


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("word_counter.py", "write path/file.py:Name or package.module:Name"),
        ("nowhere.py:Step", "cannot read nowhere.py: No such file"),
        ("no_such_package.module:Step", "cannot import 'no_such_package.module'"),
        ("sys:Step", "'sys' is not a module with a Python file"),
        ("tests/fixtures/word_counter.py:WordCount", "did you mean 'WordCounter'?"),
    ],
)
def test_a_target_that_is_none_is_named(target: str, message: str) -> None:
    with pytest.raises(TargetError, match=re.escape(message)):
        open_recipe_step(text_recipe(target))


@pytest.mark.parametrize(
    "changes",
    [
        {"dynamic": {"text": {1: [2, 4]}}},
        {"padding": {"inputs": {"text": 1}, "buckets": [4]}},
    ],
)
def test_a_python_step_gives_one_shape(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="padding and dynamic do not go with a python step"):
        text_recipe(**changes)
