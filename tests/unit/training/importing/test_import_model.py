"""A model that is brought, from its file to a draft of a version."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from flambeau.protocol.tensors import Array
from tests.unit.training.importing.foreign_models import write_defaults
from training.errors import TargetError
from training.importing.import_model import Prepared, prepare_model
from training.importing.request import ExampleRows, ImportRequest
from training.importing.sources.onnx_file import read
from training.importing.sources.source_options import SourceOptions


def write_compress(path: Path) -> Path:
    """Writes a model without a batch: it returns the positive numbers of x [4]."""
    nodes = [
        helper.make_node("Greater", ["x", "zero"], ["is_positive"]),
        helper.make_node("Compress", ["x", "is_positive"], ["y"], axis=0),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])],
        [numpy_helper.from_array(np.array(0, np.float32), "zero")],
    )
    opsets = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    return path


def prepared(path: Path, folder: Path, examples: Mapping[str, Array], *artifacts: str) -> Prepared:
    """Returns a version of an ONNX file, ready to be published."""
    options = SourceOptions(examples=examples)
    original = read(path, options, folder / "staging")
    assert original.examples is not None
    request = ImportRequest(
        model="m", store=str(folder / "store"), source="net.onnx", artifacts=artifacts
    )
    (folder / "version").mkdir()
    rows = ExampleRows(inputs=original.examples)
    return prepare_model([original], rows, request, folder / "version", print)


def test_an_output_varies_whose_size_differs_between_the_examples(tmp_path: Path) -> None:
    x = np.array([[1, 2, -1, -1], [3, 4, -1, -1], [1, 2, 3, -1]], np.float32)
    found = prepared(write_compress(tmp_path / "net.onnx"), tmp_path, {"x": x}, "onnx")

    (y,) = found.draft.signature.outputs
    assert (y.shape, y.batch_axis) == ((-1,), None)
    assert [artifact.name for artifact in found.draft.artifacts] == ["onnx"]


def test_optional_inputs_are_kept_by_kinds_that_take_them(tmp_path: Path) -> None:
    examples = {"x": np.ones((4, 3), np.float32), "scale": np.array(3, np.float32)}
    path = write_defaults(tmp_path / "net.onnx")

    found = prepared(path, tmp_path, examples, "onnx", "openvino")

    assert [spec.optional for spec in found.draft.signature.inputs] == [False, True]
    assert [artifact.name for artifact in found.draft.artifacts] == ["onnx"]
    (refused,) = [one.refusal for one in found.report.artifacts if one.name == "openvino"]
    assert "input 'scale' is optional, and OpenVINO needs every input" in str(refused)


def test_optional_inputs_are_also_verified_without_them(tmp_path: Path) -> None:
    examples = {"x": np.ones((4, 3), np.float32), "scale": np.array(3, np.float32)}
    path = write_defaults(tmp_path / "net.onnx", scale=np.inf)
    with pytest.raises(TargetError, match="output 'y' has infinite"):
        prepared(path, tmp_path, examples, "onnx")
