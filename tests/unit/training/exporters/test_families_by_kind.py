"""Every family of networks in the kinds that no recipe asks for: parity at any size and length.

The kinds of the recipes are proven in `tests/e2e/test_model_families.py`, on trained networks, with
their metric; all others, with theirs, by `make artifacts-table`.
"""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flambeau.protocol.tensors import Array
from tests.unit.training.recipes import export_here, untrained
from tests.unit.training.small_families import FAMILIES
from training.errors import ExportError
from training.exporters.openvino_ir import check_narrows
from training.loop.loop import Trained
from training.network.model import run_model
from training.programs.calibration import calibration_batches
from training.verification.runners import file_runner

LONG = {"cnn", "lstm", "transformer", "seq2seq", "swish"}
MADE = {
    "mlp": ("pt2", "openvino"),
    "cnn": ("pt2", "openvino"),
    "lstm": ("pt2", "aoti", "openvino", "openvino-int8"),
    "transformer": ("pt2", "openvino"),
    "seq2seq": ("torchscript", "pt2", "openvino"),
    "swish": ("pt2", "openvino"),
    "early exit": ("pt2", "openvino"),
}
ATOL = {"fp32": 1e-5, "int8": 0.02}


def entry(name: str) -> dict[str, Any]:
    kind, _, precision = name.partition("-")
    return {"kind": kind, "precision": precision or "fp32"} | (
        {"method": "weights"} if precision else {}
    )


def assert_parity(
    run: Callable[[Mapping[str, Array]], dict[str, Array]],
    trained: Trained,
    family: str,
    atol: float,
) -> None:
    """At several batch sizes, whose rows are as long as the seed makes them."""
    for rows in (1, 2, 7, 32):
        inputs = FAMILIES[family].rows(rows, rows)
        if family == "cnn":
            inputs = {"image": inputs["image"].repeat(2, axis=3)[:, :, : 6 + rows % 3]}
        right: Any
        (right,) = run_model(trained.model, list(inputs.values())).values()
        found: Any = run(inputs)["logits"]
        np.testing.assert_allclose(found, right, atol=atol, err_msg=f"{rows} rows")


@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=pytest.mark.long if name in LONG else []) for name in MADE]
)
def test_a_family_answers_as_its_checkpoint_in_kinds_that_no_recipe_asks_for(
    family: str, tmp_path: Path
) -> None:
    names = [name for name in MADE[family] if name != "aoti" or shutil.which("g++")]
    chosen = FAMILIES[family].recipe(*(entry(name) for name in names))
    data = FAMILIES[family].splits()
    trained = untrained(chosen, data, tmp_path / "trained")
    for made in export_here(chosen, trained, data, tmp_path):
        kind, precision = made.entry.kind, made.entry.precision
        run = file_runner(kind, precision, made.path, trained.signature)
        assert_parity(run, trained, family, ATOL[precision])


@pytest.mark.parametrize(
    ("operator", "weights_only", "message"),
    [
        ("LSTMSequence", False, r"8 bits wide; use method: weights, or \{kind: onnx, precision"),
        ("Loop", True, r"NNCF does not quantize a graph with a loop; use \{kind: onnx, precision"),
    ],
)
def test_what_openvino_cannot_narrow_is_refused_with_what_can(
    operator: str, weights_only: bool, message: str
) -> None:
    check_narrows({"MatMul"}, weights_only)
    with pytest.raises(ExportError, match=message):
        check_narrows({"MatMul", operator}, weights_only)


def test_calibration_rows_come_in_batches_that_the_model_takes() -> None:
    rows = {"x": np.arange(70)}
    assert [len(batch["x"]) for batch in calibration_batches(rows)] == [64, 6]
    found = list(calibration_batches(rows, largest=32))
    assert np.concatenate([batch["x"] for batch in found]).tolist() == list(range(70))
    assert [len(batch["x"]) for batch in found] == [32, 32, 6]
