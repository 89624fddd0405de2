"""The location of a refused artifact's error: the damaged layer is the one that is named."""

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_model
from torch import nn

from flambeau.protocol.tensors import Array
from model_store.manifest import MadeWith
from model_store.tolerance import Tolerance
from tests.unit.training.recipes import recipe, splits
from training.errors import IsolationError
from training.exporters.export import Exported
from training.exporters.onnx_graph import export_onnx
from training.exporters.onnx_int8 import export_onnx_static_int8
from training.loop.loop import Trained
from training.loop.train_state import TrainState
from training.network.model import build_model, try_model
from training.programs.exported_program import exported_program
from training.recipe.kinds.export_kinds import Export
from training.recipe.kinds.onnx_kind import OnnxExport, OnnxInt8Export
from training.recipe.kinds.pt2_kind import Pt2Export
from training.reporting.report import ArtifactReport
from training.verification import departure
from training.verification.departure import (
    Departed,
    departs_at,
    find_departure,
    first_departure,
    with_departure,
)
from training.verification.verify import reference

TOLERANCE = Tolerance(max_abs_difference=1e-4, min_agreement=0.9)
EXAMPLE = (torch.rand(2, 1, 8, 8),)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    torch.manual_seed(0)
    model = build_model(recipe()).eval()
    weights = tmp_path_factory.mktemp("trained") / "weights.safetensors"
    save_model(model, str(weights))
    signature = try_model(model, splits(), recipe())
    return Trained(model=model, weights=weights, signature=signature, state=TrainState())


def case(trained: Trained, entry: Export, path: Path) -> Departed:
    return Departed(
        recipe=recipe(),
        weights=trained.weights,
        entry=entry,
        path=path,
        signature=trained.signature,
        tolerance=Tolerance(max_abs_difference=0.1, min_agreement=0.9),
        rows=[splits().test.inputs],
    )


def spoilt(trained: Trained, layer: str) -> nn.Module:
    """The model with other weights in one layer."""
    model = copy.deepcopy(trained.model)
    with torch.no_grad():
        bias = model.get_submodule(layer).bias
        assert isinstance(bias, torch.Tensor)
        bias.add_(2)
    return model


def test_the_layer_of_a_graph_is_named(trained: Trained, tmp_path: Path) -> None:
    source, int8 = tmp_path / "model.onnx", tmp_path / "model.int8.onnx"
    export_onnx(spoilt(trained, "features.4"), EXAMPLE, trained.signature, source)
    found = find_departure(case(trained, OnnxExport(), source))
    assert found is not None
    assert found.startswith("layer 'features.4' (largest difference 2, ")
    assert found.endswith("at 'features.2' before it)")
    entry = OnnxInt8Export()
    export_onnx_static_int8(source, splits().train.inputs, entry.op_types, int8)
    found = find_departure(case(trained, entry, int8))
    assert found is not None  # in 8 bits, norm and Relu are one with their convolution
    assert found.startswith("layer 'features.5' (largest difference ")
    assert found.endswith("at 'features.2' before it)")


@pytest.mark.parametrize("layer", ["features.1", "head.2"])
def test_the_layer_of_a_program_is_named(trained: Trained, layer: str, tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    torch.export.save(exported_program(spoilt(trained, layer), EXAMPLE, trained.signature), path)
    found = find_departure(case(trained, Pt2Export(), path))
    assert found is not None
    assert found.startswith(f"layer '{layer}' (largest difference 2, 0 at ")


def test_an_artifact_that_agrees_departs_nowhere(trained: Trained, tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    torch.export.save(exported_program(trained.model, EXAMPLE, trained.signature), path)
    assert find_departure(case(trained, Pt2Export(), path)) is None


def test_what_goes_wrong_while_looking_says_nothing(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object, **__: object) -> str:
        raise IsolationError("its process was ended by SIGSEGV")

    monkeypatch.setattr(departure, "run_limited", die)
    assert departs_at(case(trained, OnnxExport(), tmp_path / "model")) is None


def test_the_refusal_says_it_too(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, _ = reference(trained, splits().test)
    one = Exported(OnnxExport(), tmp_path / "model.onnx", None)
    report = ArtifactReport(
        name="onnx",
        kind="onnx",
        precision="fp32",
        file="model.onnx",
        made_with=MadeWith(),
        tolerance=TOLERANCE,
        refusal="largest difference 2 is above 0.0001",
        size_bytes=1,
    )
    looked: list[Departed] = []

    def look(what: Departed, *limits: float) -> str:
        looked.append(what)
        return "layer 'head'"

    monkeypatch.setattr(departure, "departs_at", look)
    found = with_departure(report, one, expected, recipe(), trained.weights)
    assert found.departs_at == "layer 'head'"
    assert found.refusal == "largest difference 2 is above 0.0001; it departs at layer 'head'"
    assert looked[0].path == one.path
    for other in ({"refusal": None}, {"size_bytes": None}):
        untouched = report.model_copy(update=other)
        assert with_departure(untouched, one, expected, recipe(), trained.weights) is untouched
    assert len(looked) == 1, "only what ran and was refused is looked into"


def values(**differences: float) -> tuple[dict[str, Array], dict[str, Array]]:
    """Returns layers' outputs, each with this error at its largest value, 10."""
    right: dict[str, Array] = {name: np.full((2, 3), 10, np.float32) for name in differences}
    found: dict[str, Array] = {
        name: np.full((2, 3), 10 + off, np.float32) for name, off in differences.items()
    }
    return right, found


@pytest.mark.parametrize(
    ("differences", "text"),
    [
        ({"a": 0, "b": 1, "c": 2}, "layer 'b' (largest difference 1, 0 at 'a' before it)"),
        ({"a": 1, "b": 0, "c": 2}, "layer 'c' (largest difference 2, 0 at 'b' before it)"),
        (
            {"a": 1, "b": 2},
            "layer 'a' (largest difference 1, the first layer that can be compared)",
        ),
        ({"a": 0, "b": 0.001}, "what follows the last layer that agrees, 'b'"),
        ({"a": 0, "b": float("nan")}, "layer 'b' (largest difference inf, 0 at 'a' before it)"),
    ],
)
def test_it_is_the_layer_behind_the_last_that_agrees(
    differences: dict[str, float], text: str
) -> None:
    assert first_departure(*values(**differences), share=1e-3) == text


def test_layers_of_other_names_or_shapes_are_left_out() -> None:
    right, found = values(a=1)
    assert first_departure(right, {}, 1e-3) is None
    assert first_departure(right, {"a": found["a"][:1]}, 1e-3) is None
