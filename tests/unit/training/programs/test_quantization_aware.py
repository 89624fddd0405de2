"""Training for 8 bits: only rounding differs, a run resumes exactly, and what is made passes."""

import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from rich.console import Console
from safetensors.torch import load_file, load_model, save_model
from torch import Tensor, nn

from flambeau.protocol.tensors import Array
from tests.fixtures.signatures import one_to_one
from tests.unit.training.cut_off import cut_off_in_epoch
from tests.unit.training.recipes import DATA, recipe, splits
from training.errors import ExportError, RecipeError
from training.exporters.export import Exported, export_one
from training.exporters.exporter import ExportJob
from training.loop.loop import Trained, train
from training.networks import SmallCnn
from training.programs.exported_program import exported_program, weights_program
from training.programs.quantization_aware import QuantizationAware
from training.recipe.recipe import Recipe
from training.run_folder import RunFolder
from training.verification.verify import reference, verify

QAT = {"kind": "pt2", "precision": "int8", "method": "qat"}
SIGNATURE = one_to_one((64,), (3,), names=("x", "logits"), rows=16)
EXAMPLE = (torch.zeros(2, 64),)


def perceptron() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 3)
    return nn.Sequential(*layers).eval()


def images(rows: int = 16) -> Tensor:
    return torch.rand(rows, 64, generator=torch.Generator().manual_seed(1))


def trained(tmp_path: Path, chosen: Recipe, resume: bool = False) -> Trained:
    folder = RunFolder(tmp_path, chosen, DATA)
    with folder.locked():
        return train(chosen, splits(), folder, Console(file=io.StringIO()), resume)


@pytest.fixture(scope="module")
def chosen() -> Recipe:
    return recipe(
        train={"epochs": 4},
        optim={"adamw": {"lr": 1e-2}},
        prune={"amount": 0.3, "fine_tune_epochs": 1},
        qat={"epochs": 2, "lr_share": 0.05},
        export=[QAT],
        track=[],
    )


@pytest.fixture(scope="module")
def whole(chosen: Recipe, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return trained(tmp_path_factory.mktemp("whole"), chosen)


def test_the_artifact_is_held_to_the_checkpoint_and_passes(
    chosen: Recipe, whole: Trained, tmp_path: Path
) -> None:
    inputs = {"image": splits().train.inputs["image"][:2]}
    (entry,) = chosen.listed_exports()
    assert (entry.name, entry.file) == ("pt2-int8-qat", "model.int8-qat.pt2")
    export_one(
        ExportJob(
            chosen,
            whole.weights,
            whole.signature,
            entry,
            inputs,
            tmp_path,
            tmp_path / "model.onnx",
            whole.qat_weights,
        )
    )
    expected, _ = reference(whole, splits().test)
    report = verify(Exported(entry, tmp_path / entry.file, None), expected)
    assert report.refusal is None
    assert report.max_abs_difference is not None
    assert report.max_abs_difference > 1e-3  # it is not the checkpoint
    state = torch.export.load(tmp_path / entry.file).state_dict
    assert [name for name, t in state.items() if t.ndim > 1 and t.dtype != torch.int8] == []


def test_the_checkpoint_stays_what_it_was(chosen: Recipe, whole: Trained, tmp_path: Path) -> None:
    plain = trained(tmp_path, chosen.model_copy(update={"qat": None, "export": ()}))
    assert plain.qat_weights is None
    assert plain.weights.read_bytes() == whole.weights.read_bytes()
    for name, tensor in plain.model.state_dict().items():
        assert torch.equal(tensor, whole.model.state_dict()[name]), name


def test_zeros_of_pruning_are_zeros_after_it(whole: Trained, tmp_path: Path) -> None:
    assert whole.qat_weights is not None
    before, after = load_file(whole.weights), load_file(whole.qat_weights)
    kernels = [name for name, tensor in before.items() if tensor.ndim >= 2]
    for name in kernels:
        assert torch.equal(before[name] == 0, after[f"graph.{name}"] == 0), name
        assert not torch.equal(before[name], after[f"graph.{name}"]), name


def test_a_resumed_phase_ends_with_the_same_bits(
    chosen: Recipe, whole: Trained, tmp_path: Path
) -> None:
    with cut_off_in_epoch(4 + 1 + 2):  # the second epoch with rounding
        trained(tmp_path, chosen)
    resumed = trained(tmp_path, chosen, resume=True)
    assert resumed.qat_weights is not None
    assert whole.qat_weights is not None
    found, expected = load_file(resumed.qat_weights), load_file(whole.qat_weights)
    assert set(found) == set(expected)
    for name, tensor in found.items():
        assert torch.equal(tensor, expected[name]), name


@pytest.mark.parametrize(
    "changes",
    [
        {"debug": {"backward": ["features.*"]}},
        {"train": {"epochs": 1, "parallel": "ddp", "sync_batch_norm": True}},
    ],
    ids=["debug.backward", "train.sync_batch_norm"],
)
def test_settings_by_layer_end_where_the_network_is_rewritten(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    """Preparation renames the layers and folds the batch norms."""
    whole = recipe(**{"train": {"epochs": 1}, "qat": {"epochs": 1}, "track": [], **changes})
    assert trained(tmp_path, whole).qat_weights is not None


def test_only_training_moves_the_ranges_and_nothing_is_dropped_out(tmp_path: Path) -> None:
    model, x = perceptron(), images()
    module = QuantizationAware(model, EXAMPLE, SIGNATURE)
    module.train()
    seen = module(x)
    assert torch.equal(module(x), seen)  # no dropout, and the same rows do not move the ranges
    assert 0 < (seen - model(x)).abs().max() < 0.05  # the first rows set them, not the example
    module.eval()
    state = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    module(100 * x)
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, state[name]), name


def test_what_was_saved_is_what_is_loaded_and_converted(tmp_path: Path) -> None:
    model, x = perceptron(), images()
    module = QuantizationAware(model, EXAMPLE, SIGNATURE).train()
    module(x)
    save_model(module, str(tmp_path / "w.safetensors"))
    other = QuantizationAware(perceptron(), EXAMPLE, SIGNATURE)
    load_model(other, str(tmp_path / "w.safetensors"))
    for name, tensor in other.state_dict().items():
        assert torch.equal(tensor, module.state_dict()[name]), name
    program = other.converted(EXAMPLE, SIGNATURE)
    # The largest weight of a channel lies between two steps: either may be its own.
    assert (program.module()(x) - module.eval()(x)).abs().max() < 0.01


def test_a_model_that_torch_cannot_export_is_refused_before_training(tmp_path: Path) -> None:
    model = {"target": "tests.unit.training.small_networks:DependsOnData"}
    broken = recipe(model=model, qat={"epochs": 1}, export=[QAT])
    with pytest.raises(RecipeError, match=r"qat needs a model that torch\.export takes"):
        trained(tmp_path, broken)
    assert not RunFolder(tmp_path, broken, DATA).checkpoints.exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"export": [QAT]}, r"add qat: \{epochs: 3\}"),
        ({"qat": {"epochs": 1}, "train": {"teacher_forcing": {}}}, "takes no targets"),
        ({"qat": {"epochs": 0}}, "greater than or equal to 1"),
        ({"export": [{**QAT, "kind": "onnx"}], "qat": {}}, "method: qat is for kind pt2 or aoti"),
    ],
)
def test_a_recipe_that_cannot_work_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        recipe(**changes)


def saved_bytes(program: torch.export.ExportedProgram, path: Path) -> int:
    torch.export.save(program, path)
    return os.path.getsize(path)


def test_8_bits_take_a_quarter_of_the_file(tmp_path: Path) -> None:
    """pt2e keeps FP32 weights beside the 8-bit ones; the file must have only the latter."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 3)).eval()
    x: Array = images(64).numpy()
    right = model(torch.from_numpy(x)).detach()
    whole = saved_bytes(exported_program(model, EXAMPLE, SIGNATURE), tmp_path / "fp32.pt2")
    static = exported_program(model, EXAMPLE, SIGNATURE, "int8", {"x": x})
    weights = weights_program(model, EXAMPLE, SIGNATURE)
    for name, program in (("static", static), ("weights", weights)):
        path = tmp_path / f"{name}.pt2"
        assert saved_bytes(program, path) < 0.5 * whole, name
        found = torch.export.load(path).module()(torch.from_numpy(x[:16]))
        assert 0 < np.abs((found - right[:16]).detach().numpy()).max() < 0.05


def test_weights_alone_need_linear_layers() -> None:
    bare = nn.Sequential(nn.Conv2d(1, 3, 8), nn.Flatten())
    with pytest.raises(ExportError, match="the model has none; use method: static"):
        weights_program(bare, (torch.zeros(2, 1, 8, 8),), SIGNATURE)
    assert any(isinstance(layer, nn.Linear) for layer in SmallCnn().modules())
