"""Pruning: pruned weights stay zero, in training and in the files; channels are really removed."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from rich.console import Console
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.utils import prune as torch_prune

from tests.unit.training.cut_off import cut_off_in_epoch
from tests.unit.training.recipes import DATA, recipe, splits
from training.errors import RecipeError
from training.exporters.export import export_one
from training.exporters.exporter import ExportJob
from training.loop.compression.channel_removal import removable, remove_channels, resize_like
from training.loop.compression.pruning import zero_share, zero_smallest, zeros_held
from training.loop.loop import Trained, train
from training.models.mlp import Mlp
from training.models.residual_cnn import ResidualCnn
from training.networks import SmallCnn
from training.recipe.parts.compression import PrunePart
from training.recipe.recipe import Recipe
from training.run_folder import RunFolder
from training.verification.runners import file_runner

EXPORT = [{"kind": "pt2"}]
SHORT: dict[str, Any] = {"train": {"epochs": 1}, "export": EXPORT, "track": []}


def trained(tmp_path: Path, chosen: Recipe, resume: bool = False) -> Trained:
    folder = RunFolder(tmp_path, chosen, DATA)
    with folder.locked():
        return train(chosen, splits(), folder, Console(file=io.StringIO()), resume)


def exported(chosen: Recipe, found: Trained, folder: Path) -> Path:
    (entry,) = chosen.listed_exports()
    inputs = {"image": splits().train.inputs["image"][:2]}
    graph = folder / "model.onnx"
    export_one(ExportJob(chosen, found.weights, found.signature, entry, inputs, folder, graph))
    return folder / entry.file


def pruned(**part: Any) -> Recipe:
    return recipe(**SHORT, prune={"amount": 0.5, "fine_tune_epochs": 2, **part})


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def test_the_smallest_weights_go_as_torch_would_choose_them() -> None:
    model, expected = network(), network()
    zero_smallest(model, PrunePart(amount=0.6, layers=("0",)))
    torch_prune.l1_unstructured(  # type: ignore[no-untyped-call]
        expected[0], "weight", amount=0.6
    )
    torch_prune.remove(expected[0], "weight")  # type: ignore[no-untyped-call]
    for name, weight in expected.state_dict().items():
        assert torch.equal(model.state_dict()[name], weight), name


def test_zeros_are_held_against_gradients_momentum_and_decay() -> None:
    model = network()
    zero_smallest(model, PrunePart(amount=0.5))
    zeros = {n: p == 0 for n, p in model.named_parameters() if p.ndim == 2}
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)

    def step() -> None:
        optimizer.zero_grad()
        loss: Tensor = model(torch.randn(16, 6)).square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    with zeros_held(model):
        for _ in range(3):
            step()
        for name, weight in model.named_parameters():
            if name in zeros:
                assert torch.equal(weight == 0, zeros[name]), name
        assert not torch.equal(model.state_dict()["0.weight"], before["0.weight"])
    step()
    assert zero_share(model) < 0.1


def test_a_pruned_run_has_its_zeros_in_the_checkpoint_and_in_the_file(tmp_path: Path) -> None:
    chosen = pruned(layers=["features.*", "Linear"])
    found = trained(tmp_path, chosen)
    weights = load_file(found.weights)
    assert {name for name in weights if "mask" in name or "orig" in name} == set()
    assert "prune" in found.weights.parts
    kernels = {name: w for name, w in weights.items() if w.ndim >= 2}
    for name, weight in kernels.items():
        assert (weight == 0).float().mean().item() == pytest.approx(0.5, abs=0.02), name
    path = exported(chosen, found, tmp_path)
    state = torch.export.load(path).state_dict
    assert set(state) == set(weights)
    assert all(torch.equal(state[name], kernel) for name, kernel in kernels.items())


@pytest.mark.parametrize("structured", [False, True])
def test_a_resumed_pruning_ends_with_the_same_bits(tmp_path: Path, structured: bool) -> None:
    chosen = pruned(structured=structured)
    whole = trained(tmp_path / "whole", chosen)
    with cut_off_in_epoch(3):
        trained(tmp_path / "killed", chosen)
    resumed = trained(tmp_path / "killed", chosen, resume=True)
    assert resumed.weights.read_bytes() == whole.weights.read_bytes()
    assert resumed.state == whole.state


def test_a_run_that_starts_anew_forgets_its_later_phases(tmp_path: Path) -> None:
    chosen = pruned()
    weights = trained(tmp_path, chosen).weights
    left = weights.parents[1] / "left"
    left.write_bytes(b"of a run before")
    trained(tmp_path, chosen)
    assert weights.exists()
    assert not left.exists()


def test_channels_leave_the_layers_and_the_exported_file(tmp_path: Path) -> None:
    chosen = pruned(structured=True)
    found = trained(tmp_path, chosen)
    model = found.model
    assert isinstance(model, SmallCnn)
    shapes = [tuple(p.shape) for p in model.parameters() if p.ndim >= 2]
    assert shapes == [(2, 1, 3, 3), (2, 2, 3, 3), (4, 2, 3, 3), (3, 16)]  # of 4, 4, 8 channels
    path = exported(chosen, found, tmp_path)
    run = file_runner("pt2", "fp32", path, found.signature)
    image = splits().test.inputs["image"][:16]
    right = model(torch.from_numpy(image)).detach().numpy()
    assert np.abs(np.subtract(run({"image": image})["logits"], right)).max() < 1e-5


@pytest.mark.parametrize(
    ("model", "shape", "writers"),
    [
        (SmallCnn(width=4), (1, 8, 8), ["features.0", "features.3", "features.7"]),
        (Mlp(features=6), (6,), ["layers.0", "layers.3"]),
        # Channels that are added to others, grouped, or read by two layers stay.
        (ResidualCnn(width=8), (1, 16, 16), []),
    ],
)
def test_only_channels_that_one_layer_reads_can_leave(
    model: nn.Module, shape: tuple[int, ...], writers: list[str]
) -> None:
    assert [link.writer for link in removable(model.eval())] == writers
    if writers:
        before = sum(p.numel() for p in model.parameters())
        sizes = remove_channels(
            model, PrunePart(amount=0.5, structured=True), (torch.randn(4, *shape),)
        )
        assert list(sizes) == writers
        assert sum(p.numel() for p in model.parameters()) < 0.6 * before


def test_a_network_is_given_the_sizes_of_its_weights() -> None:
    model, other = network(), network()
    remove_channels(model.eval(), PrunePart(amount=0.5, structured=True), (torch.randn(2, 6),))
    resize_like(other, model.state_dict())
    other.load_state_dict(model.state_dict())
    x = torch.randn(5, 6)
    assert torch.equal(other.eval()(x), model(x))
    assert "out_features=4" in repr(other)
    assert "BatchNorm1d(4," in repr(other)
    assert "in_features=4" in repr(other)


class Tied(nn.Module):
    """Two layers that share their weights, and one whose weights are read directly."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.third, self.last = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        found = self.third(self.second(torch.relu(self.first(x))))
        logits: Tensor = self.last(found * self.third.weight.sum())
        return logits


def test_weights_that_are_read_twice_are_left_whole() -> None:
    assert removable(Tied()) == []


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ({"layers": ["fetures.*"]}, r"fits 'fetures.\*'; these can: features.0 \(Conv2d\)"),
        ({"layers": ["BatchNorm2d"]}, r"no layer that can be pruned fits 'BatchNorm2d'"),
        (
            {"layers": ["head.2"], "structured": True},
            r"can lose whole channels fits 'head.2'; these can: features.0 \(Conv2d\)",
        ),
    ],
)
def test_a_pattern_that_fits_nothing_is_refused_before_training(
    tmp_path: Path, part: dict[str, Any], words: str
) -> None:
    with pytest.raises(RecipeError, match=words):
        trained(tmp_path, pruned(**part))
    assert not RunFolder(tmp_path, pruned(**part), DATA).checkpoints.exists()


def test_a_network_that_cannot_be_followed_is_refused(tmp_path: Path) -> None:
    model = {"target": "tests.unit.training.small_networks:DependsOnData"}
    chosen = recipe(**SHORT, model=model, prune={"amount": 0.5, "structured": True})
    with pytest.raises(RecipeError, match=r"torch.fx can follow.*take structured: false"):
        trained(tmp_path, chosen)


@pytest.mark.parametrize("amount", [0, 1.0, -0.5])
def test_an_amount_that_takes_nothing_or_everything_is_refused(amount: float) -> None:
    with pytest.raises(ValidationError, match="amount"):
        recipe(prune={"amount": amount})


def test_what_changes_the_weights_changes_the_digest() -> None:
    plain, half = recipe(), recipe(prune={"amount": 0.5})
    digests = {
        plain.training_digest(),
        half.training_digest(),
        recipe(prune={"amount": 0.5, "structured": True}).training_digest(),
        recipe(qat={"epochs": 1}).training_digest(),
        recipe(qat={"epochs": 2}).training_digest(),
    }
    assert len(digests) == 5
    other = half.model_copy(update={"export": recipe(export=EXPORT).export})
    assert other.training_digest() == half.training_digest()
