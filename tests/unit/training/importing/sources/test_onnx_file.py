"""ONNX: one self-contained file comes out, and hostile ones are refused by name."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from flambeau.protocol.signature import SignatureError
from model_store.errors import UnsafeOnnxError
from tests.unit.training.importing.foreign_models import (
    WEIGHT,
    point_outside,
    write_classifier,
    write_defaults,
    write_lookup,
    write_onnx,
    write_pooling,
    write_stateful,
    write_steps,
    write_text_model,
)
from training.errors import SourceError, TargetError
from training.importing.original import Original
from training.importing.recording import record_outputs
from training.importing.sources.onnx_file import read
from training.importing.sources.source_options import SourceOptions
from training.recipe.recipe import ExportLimits


def read_here(path: Path, tmp_path: Path, **options: object) -> Original:
    return read(path, SourceOptions(**options), tmp_path / "staging")  # type: ignore[arg-type]


def test_names_datatypes_and_shapes_come_from_the_file(tmp_path: Path) -> None:
    original = read_here(write_onnx(tmp_path / "net.onnx"), tmp_path)
    (x,), (y,) = original.signature.inputs, original.signature.outputs
    assert (x.name, x.datatype, x.shape) == ("x", "FP32", (-1, 4))
    assert (y.name, y.datatype, y.shape) == ("y", "FP32", (-1, 3))
    assert original.file.read_bytes() == (tmp_path / "net.onnx").read_bytes()
    assert original.examples is not None
    assert original.examples["x"].shape == (8, 4)
    assert original.made_up
    assert "made up" in original.notes[-1]


def test_external_data_is_folded_in(tmp_path: Path) -> None:
    write_onnx(tmp_path / "net.onnx", external=True)
    original = read_here(tmp_path / "net.onnx", tmp_path)
    (tmp_path / "w.data").unlink()
    session = onnxruntime.InferenceSession(original.file.read_bytes())
    x = np.ones((2, 4), np.float32)
    np.testing.assert_allclose(session.run(None, {"x": x})[0], x @ WEIGHT, rtol=1e-6)
    assert original.notes[0].startswith("1 tensors were folded in")


@pytest.mark.parametrize("location", ["/etc/passwd", "../w.data", "a/../../w.data", ""])
def test_external_data_outside_the_folder_is_refused(tmp_path: Path, location: str) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "w.data").write_bytes(WEIGHT.tobytes())
    path = point_outside(tmp_path / "in" / "net.onnx", location)
    with pytest.raises(SourceError, match="asks for the file"):
        read_here(path, tmp_path)
    assert not list((tmp_path / "staging").iterdir())


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "secret").write_bytes(WEIGHT.tobytes())
    (tmp_path / "in" / "w.data").symlink_to(tmp_path / "secret")
    path = point_outside(tmp_path / "in" / "net.onnx", "w.data")
    with pytest.raises(SourceError, match="a link out of"):
        read_here(path, tmp_path)


def test_a_tensor_of_100_gigabytes_is_refused_before_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "w.data").write_bytes(b"x")
    path = point_outside(tmp_path / "net.onnx", "w.data", dims=[160_000, 160_000])
    with pytest.raises(SourceError, match="needs 102,400,000,000 bytes"):
        read_here(path, tmp_path)


def test_a_file_beyond_protobufs_limit_is_refused_in_words(tmp_path: Path) -> None:
    with (tmp_path / "net.onnx").open("wb") as file:
        file.truncate(2**31)
    with pytest.raises(SourceError, match="2,147,483,647 bytes, a limit of protobuf"):
        read_here(tmp_path / "net.onnx", tmp_path)


def test_external_data_beyond_protobufs_limit_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "w.data").open("wb") as file:
        file.truncate(4 * 25_000 * 25_000)
    path = point_outside(tmp_path / "net.onnx", "w.data", dims=[25_000, 25_000])
    with pytest.raises(SourceError, match="a limit of protobuf"):
        read_here(path, tmp_path)


def test_custom_operators_are_named(tmp_path: Path) -> None:
    with pytest.raises(UnsafeOnnxError, match=r"my\.domain\.MatMul"):
        read_here(write_onnx(tmp_path / "net.onnx", domain="my.domain"), tmp_path)


def test_an_unknown_opset_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="uses opset 999 of ONNX"):
        read_here(write_onnx(tmp_path / "net.onnx", opset=999), tmp_path)


@pytest.mark.parametrize("data", [b"\x89PNG" * 100, b"\0" * 64, b"#!/bin/sh\n"])
def test_other_files_are_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "net.onnx").write_bytes(data)
    with pytest.raises((SourceError, UnsafeOnnxError), match=r"net\.onnx"):
        read_here(tmp_path / "net.onnx", tmp_path)


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    path = write_onnx(tmp_path / "net.onnx")
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(SourceError, match="broken"):
        read_here(path, tmp_path)


def test_integers_fit_a_small_embedding_and_lengths_vary(tmp_path: Path) -> None:
    original = read_here(write_lookup(tmp_path / "net.onnx", rows=2), tmp_path)
    assert original.signature.outputs[0].shape == (-1, -1, 2)
    assert original.examples is not None
    assert original.examples["ids"].max() == 1


def test_ranges_of_dimensions_are_the_users(tmp_path: Path) -> None:
    path = write_lookup(tmp_path / "net.onnx", rows=20)
    original = read_here(path, tmp_path, dynamic={"ids": {1: (1, 64)}})
    assert original.signature.dynamic == {"ids": {1: (1, 64)}}
    with pytest.raises(SourceError, match="dynamic says axis 2 of input 'ids' varies"):
        read_here(path, tmp_path, dynamic={"ids": {2: (1, 64)}})
    with pytest.raises(SourceError, match="dynamic names input 'idz'"):
        read_here(path, tmp_path, dynamic={"idz": {1: (1, 64)}})


def test_sizes_of_outputs_are_measured_at_the_ends_of_ranges(tmp_path: Path) -> None:
    path = write_pooling(tmp_path / "net.onnx", stride=32)
    original = read_here(path, tmp_path, dynamic={"x": {1: (4, 64)}})
    assert original.signature.outputs[0].shape == (-1, -1)  # 1 for the sizes up to 32
    assert read_here(path, tmp_path, dynamic={"x": {1: (4, 32)}}).signature.outputs[0].shape == (
        -1,
        1,
    )
    assert read_here(path, tmp_path).signature.outputs[0].shape == (-1, -1)


def test_inputs_with_a_default_are_left_out_and_that_is_told(tmp_path: Path) -> None:
    original = read_here(write_defaults(tmp_path / "net.onnx"), tmp_path)
    assert [spec.name for spec in original.signature.inputs] == ["x"]
    (note,) = [note for note in original.notes if note.startswith("left out")]
    assert "input 'scale', 'bias', which the file gives a default" in note
    assert "name it in --examples" in note


def test_inputs_with_a_default_that_examples_name_are_optional(tmp_path: Path) -> None:
    examples = {"x": np.ones((4, 3), np.float32), "scale": np.float32(3)}
    original = read_here(write_defaults(tmp_path / "net.onnx"), tmp_path, examples=examples)
    x, scale = original.signature.inputs
    assert (x.name, x.optional) == ("x", False)
    assert (scale.name, scale.shape, scale.batch_axis, scale.optional) == ("scale", (), None, True)
    assert original.signature.outputs[0].shape == (-1, 3)
    assert any("input 'bias', which" in note for note in original.notes)


def test_texts_are_asked_for(tmp_path: Path) -> None:
    path = write_text_model(tmp_path / "net.onnx")
    with pytest.raises(SourceError, match=r"--examples x\.npz with text: text \[rows\]"):
        read_here(path, tmp_path)


def test_outputs_that_are_no_tensors_are_left_out_and_told(tmp_path: Path) -> None:
    original = read_here(write_classifier(tmp_path / "net.onnx"), tmp_path)
    assert [spec.name for spec in original.signature.outputs] == ["label"]
    assert original.notes[0].startswith(
        "left out: output 'probabilities' is a sequence of maps, seq(map(int64,tensor(float)));"
    )
    with pytest.raises(SourceError, match=r"no output that is a tensor: .*'zipmap': False"):
        read_here(write_classifier(tmp_path / "net.onnx", label=False), tmp_path)


def test_a_graph_without_inputs_is_refused(tmp_path: Path) -> None:
    model = onnx.load(write_onnx(tmp_path / "net.onnx"))
    del model.graph.input[:]
    model.graph.node[0].input[0] = "w"
    model.graph.initializer[0].CopyFrom(
        onnx.numpy_helper.from_array(np.ones((3, 3), np.float32), "w")
    )
    onnx.save(model, tmp_path / "net.onnx")
    with pytest.raises(SourceError, match="takes no inputs; export it with at least one"):
        read_here(tmp_path / "net.onnx", tmp_path)


def test_examples_are_used_as_they_are(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)
    original = read_here(write_onnx(tmp_path / "net.onnx"), tmp_path, examples={"x": rows})
    assert original.examples is not None
    np.testing.assert_array_equal(original.examples["x"], rows)
    assert not original.made_up


@pytest.mark.parametrize(
    ("examples", "message"),
    [
        ({"y": np.ones((2, 4), np.float32)}, "did you mean|known: x"),
        ({"x": np.ones((2, 5), np.float32)}, r"float32 \[2, 5\]"),
        ({"x": np.ones((2, 4), np.int64)}, "int64"),
        ({"x": np.ones((0, 4), np.float32)}, "number of rows"),
    ],
)
def test_examples_that_do_not_fit_are_named(
    tmp_path: Path, examples: dict[str, object], message: str
) -> None:
    with pytest.raises(SourceError, match=message):
        read_here(write_onnx(tmp_path / "net.onnx"), tmp_path, examples=examples)


def test_a_graph_that_lies_about_its_output_is_measured(tmp_path: Path) -> None:
    model = onnx.load(write_onnx(tmp_path / "net.onnx"))
    (shape,) = (model.graph.output[0].type.tensor_type.shape,)
    for size in (1, 3):
        shape.dim.add().dim_value = size
    onnx.save(model, tmp_path / "net.onnx")
    original = read_here(tmp_path / "net.onnx", tmp_path)
    assert original.signature.outputs[0].shape == (-1, 3)


def test_a_batch_at_another_axis_and_a_scalar(tmp_path: Path) -> None:
    original = read_here(write_stateful(tmp_path / "net.onnx"), tmp_path)
    axes = {s.name: s.batch_axis for s in (*original.signature.inputs, *original.signature.outputs)}
    assert axes == {"x": 0, "state": 1, "rate": None, "y": 0, "new": 1}
    assert original.examples is not None
    shapes = {name: array.shape for name, array in original.examples.items()}
    assert shapes == {"x": (8, 4), "state": (8, 2, 3), "rate": (8,)}
    assert len(set(original.examples["rate"].tolist())) == 1


@pytest.mark.parametrize("form", ["own", "rows"])
def test_examples_are_rows_or_in_the_models_form(tmp_path: Path, form: str) -> None:
    state = np.arange(30, dtype=np.float32).reshape(5, 2, 3)
    given = {
        "x": np.ones((5, 4), np.float32),
        "state": state.swapaxes(0, 1) if form == "own" else state,
        "rate": np.float32(2) if form == "own" else np.full(5, 2, np.float32),
    }
    original = read_here(write_stateful(tmp_path / "net.onnx"), tmp_path, examples=given)
    assert original.examples is not None
    np.testing.assert_array_equal(original.examples["state"], state)
    np.testing.assert_array_equal(original.examples["rate"], np.full(5, 2, np.float32))


@pytest.mark.parametrize(("axis", "rows"), [(1, 32), (None, 1)])
def test_the_batch_axis_is_the_users(tmp_path: Path, axis: int | None, rows: int) -> None:
    original = read_here(write_steps(tmp_path / "net.onnx"), tmp_path, batch_axes={"x": axis})
    (x,), (y,) = original.signature.inputs, original.signature.outputs
    assert (x.shape, x.batch_axis) == ((-1, -1, 3), axis)
    assert (y.shape, y.batch_axis) == ((-1, 3), None if axis is None else 0)
    assert original.signature.max_batch_size == rows


def test_other_inputs_have_the_batch_where_they_name_it(tmp_path: Path) -> None:
    path = write_stateful(tmp_path / "net.onnx")
    original = read_here(path, tmp_path, batch_axes={"state": 1, "rate": None})
    assert [spec.batch_axis for spec in original.signature.inputs] == [0, 1, None]


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ({"y": 0}, r"--batch-axis names input 'y' \(known: x\)"),
        ({"x": 3}, "says x=3, .* it has no such dimension"),
        ({"x": 2}, r"'x' FP32 \[steps, rows, 3\]: its size is always 3; name a dimension"),
    ],
)
def test_batch_axes_that_do_not_fit_are_named(
    tmp_path: Path, axes: dict[str, int], message: str
) -> None:
    with pytest.raises(SourceError, match=message):
        read_here(write_steps(tmp_path / "net.onnx"), tmp_path, batch_axes=axes)


def test_a_fixed_batch_runs_one_request_at_a_time(tmp_path: Path) -> None:
    original = read_here(write_onnx(tmp_path / "net.onnx", dims=(1, 4)), tmp_path)
    (x,), (y,) = original.signature.inputs, original.signature.outputs
    assert (x.shape, x.batch_axis) == ((1, 4), None)
    assert (y.shape, y.batch_axis) == ((1, 3), None)
    assert original.signature.max_batch_size == 1
    assert original.notes[0].endswith("runs one request at a time")


def test_a_size_without_limits_is_tried_at_half_of_the_examples(tmp_path: Path) -> None:
    helper, value = onnx.helper, onnx.helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Pad", ["x", "pads"], ["y"], mode="reflect")],  # takes more than 50
        "pad",
        [value("x", onnx.TensorProto.FLOAT, ["batch", "length"])],
        [value("y", onnx.TensorProto.FLOAT, ["batch", "longer"])],
        [onnx.numpy_helper.from_array(np.array([0, 50, 0, 0]), "pads")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.save(model, tmp_path / "net.onnx")

    found = read_here(
        tmp_path / "net.onnx", tmp_path, examples={"x": np.ones((4, 200), np.float32)}
    )

    assert [spec.shape for spec in found.signature.outputs] == [(-1, -1)]


def write_one_length(path: Path) -> Path:
    """Writes `y = x summed + constant` whose length is 16 in the graph, and varies in its input."""
    helper, value = onnx.helper, onnx.helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "weights"], ["y"], name="/Add")],
        "one",
        [value("x", onnx.TensorProto.FLOAT, ["time", "batch", 4])],
        [value("y", onnx.TensorProto.FLOAT, ["time", "batch", 4])],
        [onnx.numpy_helper.from_array(np.ones((16, 1, 4), np.float32), "weights")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.save(model, path)
    return path


def test_a_model_of_one_length_says_the_size_that_was_tried_and_takes_the_right_one(
    tmp_path: Path,
) -> None:
    path, axes = write_one_length(tmp_path / "net.onnx"), {"x": 1}
    with pytest.raises(SourceError) as refused:
        read_here(path, tmp_path, batch_axes=axes)
    assert "Fail: Add node '/Add': Attempting to broadcast" in str(refused.value)
    assert "the size tried along dimension 0 of 'x' is 8" in str(refused.value)
    assert "--dynamic '{x: {0: [16, 16]}}'" in str(refused.value)
    rows = {"x": np.ones((16, 3, 4), np.float32)}
    with pytest.raises(SourceError, match="the size tried along dimension 0 of 'x' is 8: if"):
        read_here(path, tmp_path, batch_axes=axes, examples=rows)

    found = read_here(path, tmp_path, batch_axes=axes, dynamic={"x": {0: (16, 16)}})

    assert found.signature.limits == {"x": {0: (16, 16)}}
    with pytest.raises(SignatureError, match=r"size 8 along axis 0; give 16$"):
        found.signature.check_inputs({"x": ("FP32", [8, 1, 4])})


def test_a_batch_at_the_wrong_dimension_is_named(tmp_path: Path) -> None:
    helper, value = onnx.helper, onnx.helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("CumSum", ["x", "axis"], ["y"])],  # row 0 is right alone
        "sum",
        [value("x", onnx.TensorProto.FLOAT, ["time", "batch"])],
        [value("y", onnx.TensorProto.FLOAT, ["time", "batch"])],
        [onnx.numpy_helper.from_array(np.array(0), "axis")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.save(model, tmp_path / "net.onnx")
    found = read_here(tmp_path / "net.onnx", tmp_path)
    assert found.examples is not None

    with pytest.raises(TargetError) as refused:
        record_outputs(found, found.examples, ExportLimits())

    assert "row 7 depends on the other rows of its batch, which is dimension 0 of 'x'" in str(
        refused.value
    )
    assert "--batch-axis INPUT=AXIS" in str(refused.value)
