"""Rows as the steps of a sequence: made by the reference, replayed with an artifact's states."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from flambeau.protocol.row_steps import in_steps
from flambeau.protocol.sequence_spec import Sequences
from flambeau.protocol.signature import Signature, TensorSpec
from flambeau.protocol.tensors import Array
from model_store.arrays.golden_replay import replay_everything
from model_store.arrays.sequence_replay import replay_in_steps
from model_store.golden import GoldenRows

ROWS = 6
CONTROLS = ("total", "first", "last", "on")


def signature_of(**sequence: Any) -> Signature:
    def rows(*names: str) -> tuple[TensorSpec, ...]:
        return tuple(TensorSpec(name=name, datatype="FP32", shape=(-1, 1)) for name in names)

    return Signature(
        inputs=rows("x", *CONTROLS),
        outputs=rows("y", "after"),
        max_batch_size=4,
        sequence=Sequences.model_validate({
            "states": {"total": {"output": "after", "initial": 10}},
            "start": "first", "end": {"input": "last", "false": -1, "true": 1}, "ready": "on",
            **sequence,
        }),
    )  # fmt: skip


SIGNATURE = signature_of()


class Sum:
    """The model, off by so much in each step."""

    def __init__(self, drift: float = 0.0) -> None:
        self.drift = drift
        self.batches: list[int] = []

    def __call__(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        self.batches.append(len(inputs["x"]))
        numbers: Any = inputs
        after = numbers["total"] + numbers["x"] + np.float32(self.drift)
        return {"y": after * 2, "after": after}


def given(rows: int = ROWS) -> dict[str, Array]:
    zeros = np.zeros((rows, 1), np.float32)
    return {
        "x": np.ones((rows, 1), np.float32),
        **dict.fromkeys(("total", "first", "last", "on"), zeros),
    }


def golden(signature: Signature = SIGNATURE, rows: int = ROWS) -> GoldenRows:
    assert signature.sequence is not None
    inputs = in_steps(Sum(), given(rows), signature.sequence)
    return GoldenRows(inputs, Sum()(inputs))


def test_rows_become_the_steps_of_one_sequence() -> None:
    found = golden().inputs
    assert found["total"].ravel().tolist() == [10, 11, 12, 13, 14, 15]
    assert found["first"].ravel().tolist() == [1, 0, 0, 0, 0, 0]
    assert found["last"].ravel().tolist() == [-1, -1, -1, -1, -1, 1]
    assert found["on"].ravel().tolist() == [1] * ROWS
    assert given()["total"].ravel().tolist() == [0] * ROWS


def test_rows_of_a_model_that_keeps_its_state_stay_as_they_are() -> None:
    sequence = signature_of(states={}).sequence
    assert sequence is not None
    rows = given()
    assert in_steps(Sum(), rows, sequence) == rows


def test_artifact_gets_its_own_states_back() -> None:
    run = Sum()
    (found,) = replay_in_steps(run, golden(), SIGNATURE)
    assert found.parity.max_abs_difference == 0
    assert run.batches == [1] * ROWS


def test_difference_that_grows_from_step_to_step_is_found() -> None:
    """Each row alone is within a tolerance that the last step is not."""
    drifting = Sum(0.001)
    of_rows = [
        one for one in replay_everything(drifting, golden(), SIGNATURE) if "step" not in one.where
    ]
    assert max(one.parity.max_abs_difference for one in of_rows) == pytest.approx(0.002, rel=0.1)
    (found,) = replay_in_steps(drifting, golden(), SIGNATURE)
    assert found.where == "golden rows step by step"
    assert found.parity.max_abs_difference == pytest.approx(0.012, rel=0.1)
    assert found in replay_everything(drifting, golden(), SIGNATURE)


def test_row_whose_state_is_not_that_before_begins_another_sequence() -> None:
    one, other = golden(rows=3), golden(rows=3)
    total = np.asarray(other.inputs["total"], np.float32) + 50
    moved = {**other.inputs, "total": total}
    joined = {name: np.concatenate([one.inputs[name], moved[name]]) for name in one.inputs}
    both = GoldenRows(joined, Sum()(joined))
    (found,) = replay_in_steps(Sum(0.001), both, SIGNATURE)
    assert found.parity.max_abs_difference == pytest.approx(0.006, rel=0.1)


def test_model_without_states_has_no_steps() -> None:
    plain = SIGNATURE.model_copy(update={"sequence": None})
    assert replay_in_steps(Sum(), golden(), plain) == []
