"""Exports: the content of the files, and errors for models that cannot be exported."""

import io
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import numpy_helper
from rich.console import Console

from flambeau.protocol.tensors import Array
from tests.fixtures.signatures import one_to_one
from tests.unit.training.recipes import export_here, recipe, splits, untrained
from tests.unit.training.small_networks import Perceptron
from training.datasets import Split, Splits
from training.exporters.export import Exported, export_all
from training.exporters.onnx_graph import export_onnx
from training.exporters.onnx_int8 import export_onnx_dynamic_int8, export_onnx_static_int8
from training.loop.loop import Trained
from training.verification.runners import file_runner

ALL = [{"kind": "onnx", "precision": "int8"}, {"kind": "torchscript"}, {"kind": "onnx"}]


NETWORKS = "tests.unit.training.small_networks"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return untrained(recipe(), splits(), tmp_path_factory.mktemp("trained"))


@pytest.fixture(scope="module")
def exported(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Exported]:
    """All kinds; the quantized one is first, so it must create its own source graph."""
    folder, screen = tmp_path_factory.mktemp("version"), io.StringIO()
    found = export_all(recipe(export=ALL), trained, splits(), folder, Console(file=screen))
    assert screen.getvalue().count("TorchScript") == 1
    assert len(screen.getvalue().splitlines()) == 1
    return {artifact.entry.name: artifact for artifact in found}


def operators(path: Path) -> list[str]:
    return [node.op_type for node in onnx.load(path).graph.node]


@pytest.mark.parametrize("name", ["torchscript", "onnx", "onnx-int8"])
def test_every_kind_takes_batches_of_any_size(
    name: str, exported: dict[str, Exported], trained: Trained
) -> None:
    assert exported[name].failure is None
    run = file_runner(
        exported[name].entry.kind,
        exported[name].entry.precision,
        exported[name].path,
        trained.signature,
    )
    for rows in (1, 2, 7, 64):
        assert run({"image": np.zeros((rows, 1, 8, 8), np.float32)})["logits"].shape == (rows, 3)


def test_an_onnx_file_has_the_names_of_the_signature_and_all_its_weights(
    exported: dict[str, Exported],
) -> None:
    path = exported["onnx"].path
    graph = onnx.load(path).graph
    assert [value.name for value in graph.input] == ["image"]
    assert [value.name for value in graph.output] == ["logits"]
    assert "BatchNormalization" not in operators(path)  # folded into the convolutions
    assert [p.name for p in path.parent.iterdir() if "data" in p.name] == []


def test_an_onnx_file_says_nothing_about_this_machine(exported: dict[str, Exported]) -> None:
    for name in ("onnx", "onnx-int8"):
        data = exported[name].path.read_bytes()
        assert b"training/networks.py" not in data
        assert str(Path.cwd()).encode() not in data


def test_quantized_convolutions_have_a_scale_for_every_channel(
    exported: dict[str, Exported],
) -> None:
    graph = onnx.load(exported["onnx-int8"].path).graph
    weights = {init.name: numpy_helper.to_array(init) for init in graph.initializer}
    scales = {
        node.input[0]: weights[node.input[1]]
        for node in graph.node
        if node.op_type == "DequantizeLinear" and node.input[0] in weights
    }
    quantized = {n: a for n, a in weights.items() if n in scales and a.dtype == np.int8}
    convolutions = {n: a for n, a in quantized.items() if a.ndim == 4}
    assert len(convolutions) == 3
    for name, array in convolutions.items():
        assert scales[name].shape == (len(array),)


def test_only_the_named_operators_are_quantized(
    exported: dict[str, Exported], tmp_path: Path
) -> None:
    images = {"image": splits().train.inputs["image"]}
    source = exported["onnx"].path
    counts = {}
    for op_types in (("Gemm",), ("Conv",), ("Conv", "Gemm", "MatMul")):
        path = tmp_path / f"{'-'.join(op_types)}.onnx"
        export_onnx_static_int8(source, images, op_types, path)
        counts[op_types] = operators(path).count("QuantizeLinear")
    # The input of each product, and what comes out of each convolution: its Relu is a part of it.
    assert counts == {("Gemm",): 1, ("Conv",): 3 + 2, ("Conv", "Gemm", "MatMul"): 3 + 2 + 1}


def test_a_relu_behind_a_convolution_becomes_a_part_of_it(exported: dict[str, Exported]) -> None:
    """ONNX Runtime runs convolutions, including the last one, in 8 bits only in this form."""
    assert operators(exported["onnx"].path).count("Relu") == 3
    assert operators(exported["onnx-int8"].path).count("Relu") == 0


def test_no_weight_is_so_large_that_two_products_overflow_16_bits(
    exported: dict[str, Exported], perceptron: Path, tmp_path: Path
) -> None:
    export_onnx_dynamic_int8(perceptron, ("Gemm", "MatMul"), tmp_path / "dynamic.onnx")
    for path in (exported["onnx-int8"].path, tmp_path / "dynamic.onnx"):
        weights = [numpy_helper.to_array(init) for init in onnx.load(path).graph.initializer]
        largest = [np.abs(a.astype(int)).max() for a in weights if a.dtype == np.int8 and a.any()]
        assert largest
        assert all(60 <= found <= 64 for found in largest)  # 2 * 64 * 255 < 2 ** 15


@pytest.fixture(scope="module")
def perceptron(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("perceptron") / "model.onnx"
    signature = one_to_one((4, 6), (3,), names=("x", "logits"))
    export_onnx(Perceptron().eval(), (torch.zeros(2, 4, 6),), signature, path)
    return path


def test_dynamic_quantization_measures_every_batch_anew(perceptron: Path, tmp_path: Path) -> None:
    path = tmp_path / "dynamic.onnx"
    export_onnx_dynamic_int8(perceptron, ("Conv", "Gemm", "MatMul"), path)
    assert operators(path).count("DynamicQuantizeLinear") == 2
    assert operators(path).count("MatMulInteger") == 2
    sessions = [onnxruntime.InferenceSession(str(file)) for file in (perceptron, path)]
    for scale in (1, 1000):  # no range of a calibration could fit both
        x = scale * np.random.default_rng(0).normal(size=(5, 4, 6)).astype(np.float32)
        right, found = (session.run(None, {"x": x})[0] for session in sessions)
        assert 0 < np.abs(found - right).max() < 0.02 * np.abs(right).max()


def test_dynamic_quantization_of_convolutions_is_refused_with_what_it_costs(
    trained: Trained, tmp_path: Path
) -> None:
    entry = {"kind": "onnx", "precision": "int8", "method": "dynamic"}
    console = Console(file=io.StringIO())
    (found,) = export_all(recipe(export=[entry]), trained, splits(), tmp_path, console)
    assert found.failure is not None
    assert found.failure.startswith("export failed: ExportError: the graph has convolutions")
    assert "4 times slower" in found.failure
    assert "use method: static" in found.failure
    assert not found.path.exists()


def test_the_method_of_the_recipe_is_the_one_that_is_used(tmp_path: Path) -> None:
    values: Array = np.random.default_rng(0).normal(size=(80, 4, 6)).astype(np.float32)
    split = Split({"x": values}, np.zeros(80, np.int64))
    data = Splits(split, split, split)
    counts = {}
    for method in ("static", "dynamic"):
        entry = {"kind": "onnx", "precision": "int8", "method": method}
        wanted = recipe(export=[entry], model={"target": f"{NETWORKS}:Perceptron"})
        folder = tmp_path / method
        made = untrained(wanted, data, folder)
        (found,) = export_here(wanted, made, data, folder)
        counts[method] = operators(found.path).count("DynamicQuantizeLinear")
    assert counts == {"static": 0, "dynamic": 2}


def test_calibration_decides_the_ranges(exported: dict[str, Exported], tmp_path: Path) -> None:
    source = exported["onnx"].path
    images = splits().train.inputs["image"]
    found = []
    for scale in (1, 1, 100):
        path = tmp_path / "quantized.onnx"
        rows = {"image": (images * scale).astype(np.float32)}
        export_onnx_static_int8(source, rows, ("Conv",), path)
        found.append(path.read_bytes())
    assert found[0] == found[1] != found[2]


def test_a_model_that_cannot_be_exported_is_refused_with_the_reason(tmp_path: Path) -> None:
    wanted = recipe(export=ALL, model={"target": f"{NETWORKS}:DependsOnData"})
    broken, folder = untrained(wanted, splits(), tmp_path / "trained"), tmp_path / "version"
    folder.mkdir()
    found = export_all(wanted, broken, splits(), folder, Console(file=io.StringIO()))
    reasons = {artifact.entry.name: artifact.failure or "" for artifact in found}
    assert "TracerWarning: Converting a tensor to a Python boolean" in reasons["torchscript"]
    assert "data-dependent" in reasons["onnx"]
    assert "\x1b" not in "".join(reasons.values())
    assert list(folder.iterdir()) == []


def test_control_flow_is_kept_by_script(tmp_path: Path) -> None:
    entry = {"kind": "torchscript", "method": "script"}
    wanted = recipe(export=[entry], model={"target": f"{NETWORKS}:DependsOnData"})
    made = untrained(wanted, splits(), tmp_path)
    (found,) = export_here(wanted, made, splits(), tmp_path)
    run = file_runner("torchscript", "fp32", found.path, made.signature)
    dark, bright = np.full((2, 1, 8, 8), 1, np.float32), np.full((2, 1, 8, 8), 1e8, np.float32)
    for image in (dark, bright):
        right = made.model(torch.from_numpy(image)).detach().numpy()
        gap = np.abs(np.subtract(run({"image": image})["logits"], right)).max()
        assert gap <= 1e-5 * np.abs(right).max()


@pytest.mark.parametrize(
    ("how", "limits", "reason"),
    [
        ("die", {}, "its process was ended by SIGKILL: last words"),
        ("hang", {"time_s": 2.0}, "it took longer than 2 s"),
        ("grow", {"memory_gib": 2.0}, "it needed more than 2.0 GiB of memory"),
    ],
)
def test_a_model_that_harms_its_exporter_harms_nobody_else(
    how: str, limits: dict[str, float], reason: str, tmp_path: Path
) -> None:
    target = {"target": f"{NETWORKS}:Misbehaving", "args": {"how": how, "home": os.getpid()}}
    wanted = recipe(export=[{"kind": "onnx"}], model=target, export_limits=limits)
    made, folder = untrained(wanted, splits(), tmp_path / "trained"), tmp_path / "version"
    folder.mkdir()
    (found,) = export_all(wanted, made, splits(), folder, Console(file=io.StringIO()))
    assert found.failure is not None
    assert found.failure.startswith(f"export failed: {reason}")
    assert list(folder.iterdir()) == []


def test_where_a_length_cannot_vary_what_can_is_named(tmp_path: Path) -> None:
    values: Array = np.random.default_rng(0).normal(size=(8, 4, 6)).astype(np.float32)
    split = Split({"x": values}, np.zeros(8, np.int64))
    data = Splits(split, split, split)
    model = {"target": f"{NETWORKS}:Recurrent"}
    padding = {"inputs": {"x": 1}, "buckets": [4, 8]}
    wanted = recipe(export=[{"kind": "pt2"}], model=model, padding=padding)
    made = untrained(recipe(model=model), data, tmp_path / "trained")
    signature = made.signature.model_copy(update={"padding": wanted.padding})
    made = replace(made, signature=signature)
    (found,) = export_all(wanted, made, data, tmp_path, Console(file=io.StringIO()))
    assert found.failure is not None
    assert found.failure.startswith("export failed: ExportError: torch.export fixes the size")
    assert "use nn.LSTM or nn.GRU, which it keeps whole, or {kind: torchscript" in found.failure
