"""Weights of a file in place of a training: all of them, unchanged, or an error with both names."""

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from rich.console import Console
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tests.unit.training.recipes import CLASSES, DATA, recipe, splits
from training.distributed.ranks import Ranks
from training.errors import DataError, RecipeError
from training.loop.given_weights import read_given_weights, take_given_weights
from training.loop.loop import Trained
from training.preparation import prepare
from training.process.file_digest import file_sha256
from training.recipe.file import parse_recipe, resolved_yaml
from training.recipe.parts.train_parts import TrainPart
from training.recipe.recipe import Recipe
from training.run_folder import RunFolder
from training.sources.data_files import DataReach

NET = {"target": f"{__name__}:Net"}


class Net(nn.Module):
    """Batch norm and dropout, which behave otherwise in training."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(64, width), nn.BatchNorm1d(width), nn.Dropout(0.5),
            nn.Linear(width, CLASSES),
        )  # fmt: skip

    def forward(self, image: Tensor) -> Tensor:
        logits: Tensor = self.layers(image)
        return logits


class Tied(nn.Module):
    """Two layers that share their weights."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(64, 64), nn.Linear(64, CLASSES)
        self.second = nn.Linear(64, 64)
        self.second.weight = self.first.weight

    def forward(self, image: Tensor) -> Tensor:
        logits: Tensor = self.head(self.second(self.first(image.flatten(1))))
        return logits


def brought(file: Path, **changes: Any) -> Recipe:
    return recipe(**{"model": NET, "weights": str(file), "train": "none", **changes})


def elsewhere() -> Net:
    """A network that was trained by another program: its batch norm has statistics."""
    torch.manual_seed(5)
    network = Net()
    network(torch.rand(50, 1, 8, 8) * 3)
    return network.eval()


def taken(asked: Recipe, folder: Path) -> Trained:
    given = read_given_weights(asked)
    assert given is not None
    run = RunFolder(folder / "runs", asked, DATA)
    with run.locked():
        return take_given_weights(asked, splits(), run, Console(file=io.StringIO()), given)


@pytest.mark.parametrize("suffix", ["pt", "safetensors"])
def test_the_model_is_the_one_that_was_brought(tmp_path: Path, suffix: str) -> None:
    network, path = elsewhere(), tmp_path / f"net.{suffix}"
    (torch.save if suffix == "pt" else save_file)(network.state_dict(), path)
    trained = taken(brought(path), tmp_path)
    own, theirs = trained.model.state_dict(), network.state_dict()
    assert all(torch.equal(own[name], theirs[name]) for name in theirs)  # statistics too
    assert not any(layer.training for layer in trained.model.modules())
    rows = torch.rand(3, 1, 8, 8)
    assert torch.equal(trained.model(rows), network(rows))
    assert all(torch.equal(t, theirs[n]) for n, t in load_file(trained.weights).items())
    assert trained.given is not None
    assert (trained.given.path, trained.given.sha256) == (str(path), file_sha256(path))
    assert trained.state.epoch == 0
    assert trained.loss is not None


def test_the_network_behind_preprocess_takes_its_own_names(tmp_path: Path) -> None:
    network, path = elsewhere(), tmp_path / "net.pt"
    torch.save(network.state_dict(), path)
    asked = brought(path, preprocess=[{"scale": {"factor": 0.5}}])
    rows = torch.rand(3, 1, 8, 8)
    assert torch.equal(taken(asked, tmp_path).model(rows), network(rows * 0.5))


def test_a_file_without_the_counter_of_batch_norms_fits(tmp_path: Path) -> None:
    state, path = elsewhere().state_dict(), tmp_path / "old.pt"
    del state["layers.2.num_batches_tracked"]
    torch.save(state, path)
    assert taken(brought(path), tmp_path).given is not None


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("missing", r"1 missing there: layers\.4\.bias"),
        ("unexpected", r"1 unexpected here: more"),
        ("shape", r"1 skipped for their shape: layers\.4\.bias \(\[2\] there, \[3\] here\)"),
        ("statistics", r"1 missing there: layers\.2\.running_mean"),
    ],
)
def test_weights_of_another_network_are_refused_with_both_names(
    tmp_path: Path, change: str, told: str
) -> None:
    state, path = elsewhere().state_dict(), tmp_path / "net.pt"
    if change == "missing":
        del state["layers.4.bias"]
    elif change == "statistics":
        del state["layers.2.running_mean"]
    else:
        state["more" if change == "unexpected" else "layers.4.bias"] = torch.ones(2)
    torch.save(state, path)
    with pytest.raises(RecipeError, match=told) as error:
        taken(brought(path), tmp_path)
    assert f"{path}: they do not fit model.target {NET['target']}" in str(error.value)
    assert "\n" not in str(error.value)


def test_layers_that_share_weights_need_equal_ones(tmp_path: Path) -> None:
    state, path = Tied().state_dict(), tmp_path / "tied.pt"
    asked = brought(path, model={"target": f"{__name__}:Tied"})
    torch.save({name: t for name, t in state.items() if name != "second.weight"}, path)
    assert taken(asked, tmp_path).given is not None  # as safetensors writes them: once
    torch.save({**state, "second.weight": state["first.weight"] + 1}, path)
    with pytest.raises(RecipeError, match=r"first\.weight shares its values with another layer"):
        taken(asked, tmp_path)


def test_the_short_form_is_stored_as_no_epochs() -> None:
    asked = brought(Path("net.pt"))
    assert asked.train == TrainPart(epochs=0)
    assert parse_recipe(resolved_yaml(asked), "stored") == asked


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"optim": {"adamw": {"lr": 0.5}}}, "train is none, and optim would"),
        ({"schedule": {"step": {"every_epochs": 2}}}, "schedule"),
        ({"stop": {"patience": 2}}, "stop"),
        ({"prune": {"share": 0.5}}, "prune"),
        ({"checkpoint": {"keep": 2}}, "checkpoint"),
        ({"debug": {"anomaly": True}}, "debug"),
        ({"train": {"epochs": 0, "precision": "bf16", "ema": 0.9}}, "train.precision, train.ema"),
        ({"train": {"epochs": 0, "parallel": "ddp", "processes": 2}}, "train.parallel"),
        ({"model": {**NET, "freeze": ["layers.*"]}}, "model.freeze"),
        ({"model": {**NET, "from": "digits@1"}}, "model.from"),
        ({"model": {**NET, "init": {"linear": "orthogonal"}}}, "model.init"),
        ({"data": {"digits": {}, "augment": [{"noise": {"deviation": 1}}]}}, "data.augment"),
        ({"train": {"epochs": 3}}, "train.epochs is 3; add train: none, or drop weights"),
        ({"weights": None}, "the recipe has no weights to publish"),
        ({"weights": "net.onnx"}, "state_dict in a .pt, .pth or .bin file"),
    ],
)
def test_keys_of_training_are_refused(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError) as error:
        brought(Path("net.pt"), **changes)
    assert told in str(error.value)


def test_quantization_aware_training_is_refused() -> None:
    with pytest.raises(ValidationError, match="train is none, and qat would"):
        brought(Path("net.pt"), qat={"epochs": 1})


def test_data_keeps_its_size_of_batches_and_training_its_threads() -> None:
    train = {"epochs": 0, "threads": 1, "deterministic": False}
    brought(Path("net.pt"), data={"digits": {}, "batch_size": 8}, train=train)


def test_only_permitted_files_are_read(tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    torch.save(elsewhere().state_dict(), tmp_path / "net.pt")
    (bundle / "link.pt").symlink_to(tmp_path / "net.pt")
    reach = DataReach(folders=(bundle,))
    for path in (tmp_path / "net.pt", bundle / "link.pt"):
        with pytest.raises(DataError, match=r"^weights: .*outside the folders that this run may"):
            prepare(brought(path, data={"digits": {}}), reach=reach)
    with pytest.raises(DataError, match=r"^weights: .* has .* bytes; 10 are the most"):
        read_given_weights(brought(tmp_path / "net.pt"), DataReach(max_bytes=10))


def test_several_processes_have_nothing_to_share() -> None:
    with pytest.raises(RecipeError, match="train is none, and torchrun started 2 processes"):
        prepare(brought(Path("net.pt"), data={"digits": {}}), ranks=Ranks(0, 2))
