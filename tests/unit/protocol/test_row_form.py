"""Tensors of any batch axis as rows, and back."""

from collections.abc import Mapping

import numpy as np
import pytest

from flambeau.protocol.row_form import batch_of, from_rows, in_rows, to_rows, value_bytes
from flambeau.protocol.tensors import Array
from tests.fixtures.shaped_models import MODELS, STATEFUL, WHOLE, golden_of
from tests.fixtures.signatures import one_to_one


class Watched:
    """Runs `stateful` in NumPy, and remembers the shapes it was given."""

    def __init__(self) -> None:
        self.shapes: list[dict[str, tuple[int, ...]]] = []

    def __call__(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        self.shapes.append({name: array.shape for name, array in inputs.items()})
        level = inputs["sound"].sum(1, keepdims=True) * inputs["rate"]
        return {"level": level, "next": inputs["state"] + level}


def rows(rates: list[int]) -> dict[str, Array]:
    count = len(rates)
    return {
        "sound": np.arange(count * 2, dtype=np.float32).reshape(count, 2),
        "state": np.arange(count * 6, dtype=np.float32).reshape(count, 2, 3),
        "rate": np.array(rates),
    }


def test_rows_with_one_value_of_a_shared_input_run_together() -> None:
    watched, inputs = Watched(), rows([1, 1, 2, 1])
    found = in_rows(watched, STATEFUL)(inputs)
    assert [one["state"] for one in watched.shapes] == [(2, 2, 3), (2, 1, 3), (2, 1, 3)]
    assert {one["rate"] for one in watched.shapes} == {()}
    level = inputs["sound"].sum(1, keepdims=True) * inputs["rate"][:, None]
    assert found["level"].tolist() == level.tolist()
    assert found["next"].tolist() == (inputs["state"] + level[:, None]).tolist()


def test_a_model_without_a_batch_runs_row_by_row() -> None:
    seen = []

    def run(inputs: Mapping[str, Array]) -> dict[str, Array]:
        seen.append({name: array.shape for name, array in inputs.items()})
        return {"scaled": inputs["matrix"], "total": inputs["matrix"].sum()}

    inputs: dict[str, Array] = {
        "matrix": np.ones((2, 5, 3), np.float32), "scale": np.ones(2, np.float32),
    }  # fmt: skip
    found = in_rows(run, WHOLE)(inputs)
    assert seen == [{"matrix": (5, 3), "scale": ()}] * 2
    assert found["total"].tolist() == [15, 15]
    assert found["scaled"].shape == (2, 5, 3)


def test_a_usual_model_is_called_itself() -> None:
    def run(inputs: Mapping[str, Array]) -> dict[str, Array]:
        return dict(inputs)

    assert in_rows(run, one_to_one((3,))) is run


def test_both_forms_hold_the_same() -> None:
    inputs = rows([7, 7, 7])
    batch = from_rows(inputs, STATEFUL.inputs)
    assert {name: array.shape for name, array in batch.items()} == {
        "sound": (3, 2), "state": (2, 3, 3), "rate": (),
    }  # fmt: skip
    back = to_rows(batch, STATEFUL.inputs, 3)
    assert all(np.array_equal(back[name], array) for name, array in inputs.items())


def test_a_batch_is_filled_with_rows_that_can_run_together() -> None:
    batch = batch_of(rows([4, 4, 5]), STATEFUL, 5)
    assert batch["rate"] == 4
    assert batch["sound"].tolist() == [[0, 1], [2, 3], [0, 1], [2, 3], [0, 1]]
    assert batch["state"].shape == (2, 5, 3)


@pytest.mark.parametrize("name", MODELS)
def test_golden_rows_of_every_model_are_rows(name: str) -> None:
    signature, make = MODELS[name]
    golden = golden_of(make(), signature)
    tensors = {**golden.inputs, **golden.outputs}
    assert {len(array) for array in tensors.values()} == {golden.rows}


def test_values_of_texts_are_compared_and_not_where_they_lie() -> None:
    one, same = (np.array([b"ab", part], object) for part in (b"c", b"c"))
    assert value_bytes(one) == value_bytes(same)
    assert value_bytes(one) != value_bytes(np.array([b"a", b"bc"], object))
