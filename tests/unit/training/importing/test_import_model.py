"""A model that is brought, from its file to a draft of a version."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from training.importing.import_model import prepare_model
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


def test_an_output_varies_whose_size_differs_between_the_examples(tmp_path: Path) -> None:
    x = np.array([[1, 2, -1, -1], [3, 4, -1, -1], [1, 2, 3, -1]], np.float32)
    options = SourceOptions(examples={"x": x})
    original = read(write_compress(tmp_path / "net.onnx"), options, tmp_path / "staging")
    request = ImportRequest(
        model="m", store=str(tmp_path / "store"), source="net.onnx", artifacts=("onnx",)
    )
    (tmp_path / "version").mkdir()

    found = prepare_model(
        [original], ExampleRows(inputs={"x": x}), request, tmp_path / "version", print
    )

    (y,) = found.draft.signature.outputs
    assert (y.shape, y.batch_axis) == ((-1,), None)
    assert [artifact.name for artifact in found.draft.artifacts] == ["onnx"]
