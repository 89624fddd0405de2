"""Models as other tools write them, for tests of the readers."""

import functools
import io
import os
import pickle
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

WEIGHT = np.arange(12, dtype=np.float32).reshape(4, 3) / 10


class TwoInputs(nn.Module):
    """Takes an image and a mask, and returns outputs by name."""

    def __init__(self, width: int = 3) -> None:
        super().__init__()
        self.layer = nn.Linear(4, width)

    def forward(self, image: Tensor, mask: Tensor) -> dict[str, Tensor]:
        """Maps [rows, 4] and [rows, 3] to logits [rows, 3] and their sum [rows]."""
        logits = self.layer(image) * mask
        return {"logits": logits, "total": logits.sum(1)}


class RunsCode:
    """An object whose pickle creates a folder when it is loaded."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        """Returns the call that unpickling makes."""
        return (os.mkdir, (str(self.marker),))


def write_onnx(
    path: Path,
    *,
    dims: Sequence[int | str | None] = ("batch", 4),
    domain: str = "",
    opset: int = 18,
    external: bool = False,
) -> Path:
    """Writes `y = x @ WEIGHT`; returns the path."""
    node = helper.make_node("MatMul", ["x", "w"], ["y"], domain=domain)
    graph = helper.make_graph(
        [node],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, list(dims))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(WEIGHT, "w")],
    )
    opsets = [helper.make_opsetid("", opset)]
    if domain:
        opsets.append(helper.make_opsetid(domain, 1))
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    if external:
        onnx.save(model, path, save_as_external_data=True, location="w.data", size_threshold=0)
    else:
        onnx.save(model, path)
    return path


def write_pooling(path: Path, stride: int) -> Path:
    """Writes `y = x[:, ::stride]`, [batch, n] to [batch, ceil(n / stride)]; returns the path."""
    node = helper.make_node("Slice", ["x", "start", "end", "axis", "step"], ["y"])
    values = {"start": 0, "end": 2**31, "axis": 1, "step": stride}
    graph = helper.make_graph(
        [node],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "n"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.array([value]), name) for name, value in values.items()],
    )
    opsets = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    return path


def write_defaults(path: Path, scale: float = 2) -> Path:
    """Writes `y = x * scale + bias`, with defaults: scale [] as given, and bias [3] of ones."""
    nodes = [
        helper.make_node("Mul", ["x", "scale"], ["scaled"]),
        helper.make_node("Add", ["scaled", "bias"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3]),
            helper.make_tensor_value_info("scale", TensorProto.FLOAT, []),
            helper.make_tensor_value_info("bias", TensorProto.FLOAT, [3]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 3])],
        [
            numpy_helper.from_array(np.array(scale, np.float32), "scale"),
            numpy_helper.from_array(np.ones(3, np.float32), "bias"),
        ],
    )
    opsets = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


def point_outside(path: Path, location: str, *, dims: Sequence[int] = (4, 3), **more: str) -> Path:
    """Writes an ONNX file whose weight lies in the file of the given name."""
    model = onnx.load(write_onnx(path))
    (weight,) = model.graph.initializer
    weight.ClearField("raw_data")
    weight.dims[:] = dims
    weight.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **more}.items():
        entry = weight.external_data.add()
        entry.key, entry.value = key, value
    path.write_bytes(model.SerializeToString())
    return path


def write_lookup(path: Path, rows: int) -> Path:
    """Writes an ONNX embedding of so many rows, which takes INT64 `ids` [batch, length]."""
    table = numpy_helper.from_array(np.ones((rows, 2), np.float32), "table")
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "ids"], ["y"])],
        "lookup",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", "length"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", "length", 2])],
        [table],
    )
    opsets = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    return path


def write_stateful(path: Path) -> Path:
    """Writes `y = x * rate`, `new = state + 1`: a batch at axis 1, and a scalar."""
    graph = helper.make_graph(
        [
            helper.make_node("Mul", ["x", "rate"], ["y"]),
            helper.make_node("Add", ["state", "one"], ["new"]),
        ],
        "stateful",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4]),
            helper.make_tensor_value_info("state", TensorProto.FLOAT, [2, "batch", 3]),
            helper.make_tensor_value_info("rate", TensorProto.FLOAT, []),
        ],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, None),
            helper.make_tensor_value_info("new", TensorProto.FLOAT, None),
        ],
        [numpy_helper.from_array(np.array(1, np.float32), "one")],
    )
    opsets = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    return path


def write_steps(path: Path) -> Path:
    """Writes `y = sum over steps of x`, with the batch of x [steps, rows, 3] at axis 1."""
    graph = helper.make_graph(
        [helper.make_node("ReduceSum", ["x", "axes"], ["y"], keepdims=0)],
        "steps",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["steps", "rows", 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.array([0]), "axes")],
    )
    opsets = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    return path


def write_classifier(path: Path, *, label: bool = True) -> Path:
    """Writes what skl2onnx makes of a classifier: labels, and probabilities as maps by ZipMap."""
    maps = helper.make_sequence_type_proto(
        helper.make_map_type_proto(
            TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, [])
        )
    )
    names = ["label"] if label else []
    graph = helper.make_graph(
        [
            helper.make_node("ArgMax", ["x"], ["label"], axis=1, keepdims=0),
            helper.make_node(
                "ZipMap",
                ["x"],
                ["probabilities"],
                domain="ai.onnx.ml",
                classlabels_int64s=[0, 1, 2],
            ),
        ],
        "classifier",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 3])],
        [
            *(helper.make_tensor_value_info(name, TensorProto.INT64, None) for name in names),
            helper.make_value_info("probabilities", maps),
        ],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    return path


class Steps(nn.Module):
    """Sums over steps: the batch of x is at axis 1, and the rate has none."""

    def forward(self, x: Tensor, rate: Tensor) -> Tensor:
        """Maps [steps, rows, 3] and [] to [rows, 3]."""
        return (x * rate).sum(0)


def write_text_model(path: Path) -> Path:
    """Writes an ONNX model of BYTES `text` [batch]."""
    graph = helper.make_graph(
        [helper.make_node("Identity", ["text"], ["same"])],
        "text",
        [helper.make_tensor_value_info("text", TensorProto.STRING, ["batch"])],
        [helper.make_tensor_value_info("same", TensorProto.STRING, ["batch"])],
    )
    opsets = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    return path


def write_script(path: Path, network: nn.Module | None = None) -> Path:
    """Writes a traced linear layer from 4 to 3, or the given scripted module."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        scripted = torch.jit.script(network if network is not None else nn.Linear(4, 3).eval())
        torch.jit.save(scripted, str(path))
    return path


def write_program(path: Path, network: nn.Module, inputs: tuple[Tensor, ...]) -> Path:
    """Writes an exported program with a batch of 1 to 16 rows."""
    batch = torch.export.Dim("batch", min=1, max=16)
    shapes = tuple({0: batch} for _ in inputs)
    torch.export.save(torch.export.export(network.eval(), inputs, dynamic_shapes=shapes), path)
    return path


def rewrite(path: Path, changes: Mapping[str, bytes]) -> Path:
    """Replaces or adds members of a torch archive, by name below its only folder."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    top = next(iter(members)).partition("/")[0]
    members |= {f"{top}/{name}": data for name, data in changes.items()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def member(path: Path, name: str) -> bytes:
    """Returns a member of a torch archive, by name below its only folder."""
    with zipfile.ZipFile(path) as archive:
        return archive.read(f"{archive.namelist()[0].partition('/')[0]}/{name}")


def evil_torch_file(path: Path, marker: Path) -> bytes:
    """Returns a file of `torch.save` that creates the marker when it is unpickled."""
    torch.save({"w": torch.ones(2), "x": RunsCode(marker)}, path)
    return path.read_bytes()


def evil_pickle(marker: Path) -> bytes:
    """Returns a pickle that creates the marker when it is loaded."""
    return pickle.dumps(RunsCode(marker))


@functools.cache
def _bomb(name: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"m/{name}", b"x")
        archive.writestr("m/data.pkl", b"\0" * 300_000_000)
    return file.getvalue()


def zip_bomb(path: Path, name: str) -> Path:
    """Writes an archive of a few kilobytes that inflates to 300 MB."""
    path.write_bytes(_bomb(name))  # which takes two seconds
    return path
