"""A model with state is published with its steps as golden rows, or refused by name."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flambeau.protocol.sequence_spec import Sequences
from flambeau.protocol.tensors import Array
from model_store.golden import parse_golden
from tests.fixtures.stateful_models import SEQUENCE, running_sum
from training.errors import RecipeError
from training.importing.import_model import Prepared, prepare_model
from training.importing.request import ExampleRows, ImportRequest
from training.importing.sources.onnx_file import read
from training.importing.sources.source_options import SourceOptions


def prepared(folder: Path, sequence: Mapping[str, Any]) -> Prepared:
    """Returns a version of the running sum, ready to be published."""
    file = folder / "net.onnx"
    file.write_bytes(running_sum())
    options = SourceOptions(examples=examples(6))
    original = read(file, options, folder / "staging")
    assert original.examples is not None
    request = ImportRequest(
        model="m",
        store=str(folder / "store"),
        source="net.onnx",
        artifacts=("onnx",),
        sequence=Sequences.model_validate(sequence),
    )
    (folder / "version").mkdir()
    rows = ExampleRows(inputs=original.examples)
    return prepare_model([original], rows, request, folder / "version", print)


def examples(rows: int) -> dict[str, Array]:
    return {
        "x": np.arange(1, rows + 1, dtype=np.float32).reshape(-1, 1),
        "total": np.zeros((rows, 1), np.float32),
        "first": np.zeros((rows, 1), np.bool_),
        "last": np.zeros((rows, 1), np.int32),
        "who": np.ones((rows, 1), np.uint64),
    }


def test_golden_rows_are_the_steps_of_a_sequence(tmp_path: Path) -> None:
    found = prepared(tmp_path, SEQUENCE)
    golden = parse_golden((tmp_path / "version/golden.safetensors").read_bytes(), found.draft)
    assert golden.inputs["total"].ravel().tolist() == [100, 101, 103, 106, 110, 115]
    assert golden.outputs["sum"].ravel().tolist() == [101, 103, 106, 110, 115, 121]
    assert golden.inputs["first"].ravel().tolist() == [True, *[False] * 5]
    assert found.draft.signature.sequence is not None
    text = (tmp_path / "version/config.pbtxt").read_text()
    assert "sequence_batching {" in text
    (artifact,) = found.report.artifacts
    assert artifact.refusal is None


def test_declaration_that_does_not_fit_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"sequence: .*'totl', which the model does not have"):
        prepared(tmp_path, {"states": {"totl": "after"}})
