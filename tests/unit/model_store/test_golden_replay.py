"""Golden rows in every form of a request: errors that only one form reveals."""

from collections.abc import Mapping

import numpy as np
import pytest

from flambeau.protocol.row_form import Run
from flambeau.protocol.signature import Padding, Signature, TensorSpec
from flambeau.protocol.tensors import Array
from model_store.arrays.golden_replay import gives_the_same_twice, replay_everything
from model_store.arrays.parity import first_failure
from model_store.golden import GoldenRows
from model_store.tolerance import Tolerance

EXACT = Tolerance(max_abs_difference=1e-6, min_agreement=1.0)
TOKENS = np.array([[1, 2, 3, 0], [4, 5, 0, 0], [6, 0, 0, 0], [7, 8, 9, 1]], np.float32)
MASK = (TOKENS > 0).astype(np.float32)


def masked(inputs: Mapping[str, Array]) -> dict[str, Array]:
    tokens, mask = (np.asarray(inputs[name], np.float32) for name in ("tokens", "mask"))
    return {"total": (tokens * mask).sum(axis=1), "each": tokens * mask * 2}


def signature(padding: Padding | None = None, **more: object) -> Signature:
    names = ("tokens", "mask")
    return Signature(
        inputs=tuple(TensorSpec(name=n, datatype="FP32", shape=(-1, -1)) for n in names),
        outputs=(
            TensorSpec(name="total", datatype="FP32", shape=(-1,)),
            TensorSpec(name="each", datatype="FP32", shape=(-1, -1)),
        ),
        max_batch_size=3,
        padding=padding,
        **more,  # type: ignore[arg-type]
    )


PADDED = signature(
    Padding(inputs={"tokens": 1}, outputs={"each": 1}, buckets=(2, 4, 8), mask="mask")
)


def golden() -> GoldenRows:
    inputs = {"tokens": TOKENS, "mask": MASK}
    return GoldenRows(inputs, masked(inputs))


def failure(run: Run, of: Signature) -> str:
    return first_failure(replay_everything(run, golden(), of), EXACT) or ""


def test_a_model_that_masks_passes_every_form() -> None:
    found = replay_everything(masked, golden(), PADDED)
    assert [one.where for one in found] == [
        *(f"golden rows in batches of {size}" for size in (1, 2, 3)),
        "golden rows alone at their own length",
        "golden rows padded in a batch",
    ]
    assert first_failure(found, EXACT) is None


def test_one_that_is_wrong_in_full_batches_only() -> None:
    def run(inputs: Mapping[str, Array]) -> dict[str, Array]:
        found = masked(inputs)
        return {
            **found,
            "total": np.add(found["total"], len(inputs["mask"]) == 2, dtype=np.float32),
        }

    assert failure(run, signature()).startswith("golden rows in batches of 2: largest difference 1")


def test_one_that_is_wrong_at_shorter_lengths_only() -> None:
    def run(inputs: Mapping[str, Array]) -> dict[str, Array]:
        found = masked(inputs)
        return {
            **found,
            "total": np.add(found["total"], inputs["mask"].shape[1] < 4, dtype=np.float32),
        }

    assert failure(run, signature()) == ""
    assert failure(run, PADDED).startswith("golden rows alone at their own length: ")


def test_one_whose_rows_disturb_each_other_at_other_sizes() -> None:
    sized = signature(dynamic={"tokens": {1: (2, 9)}, "mask": {1: (2, 9)}})

    def at_own_size(inputs: Mapping[str, Array]) -> dict[str, Array]:
        width = min(array.shape[1] for array in inputs.values())
        return masked({name: array[:, :width] for name, array in inputs.items()})

    def run(inputs: Mapping[str, Array]) -> dict[str, Array]:
        found = at_own_size(inputs)
        wrong = np.float32(len(inputs["mask"]) > 1 and inputs["tokens"].shape[1] == 9)
        return {**found, "total": np.add(found["total"], wrong, dtype=np.float32)}

    assert failure(at_own_size, sized) == ""
    assert failure(run, sized).startswith("golden rows at another size, [3, 9], [3, 9], beside")


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_one_that_gives_no_numbers(bad: float) -> None:
    def run(inputs: Mapping[str, Array]) -> dict[str, Array]:
        return {**masked(inputs), "each": np.full_like(inputs["tokens"], bad)}

    assert "largest difference inf" in failure(run, signature())


def test_one_that_changes_from_run_to_run() -> None:
    runs = iter(range(10))

    def run(inputs: Mapping[str, Array]) -> dict[str, Array]:
        return {
            **masked(inputs),
            "total": np.multiply(next(runs), inputs["mask"][:, 0], dtype=np.float32),
        }

    assert gives_the_same_twice(masked, golden(), 2)
    assert not gives_the_same_twice(run, golden(), 2)
