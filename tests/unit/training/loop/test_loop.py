"""The loop: learns, remembers, resumes, and says what is wrong with a model before it starts."""

import io
import itertools
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file, load_model
from torch import nn
from torch.utils import deterministic as torch_deterministic

from tests.unit.training.recipes import DATA, recipe, splits
from training import networks
from training.datasets import Split
from training.errors import DataError, DivergedError, RunBusyError, StoppedError, TargetError
from training.loop.checkpoint import CheckpointFolder
from training.loop.evaluation import evaluate
from training.loop.loop import Trained, train
from training.loop.optimization.optimizers import build_optimizer
from training.network.model import build_model
from training.recipe.recipe import Recipe
from training.run_folder import RunFolder


def trained(tmp_path: Path, chosen: Recipe, resume: bool = False) -> Trained:
    folder = RunFolder(tmp_path, chosen, DATA)
    with folder.locked():
        return train(chosen, splits(), folder, Console(file=io.StringIO()), resume)


def test_it_learns_and_keeps_the_weights_of_the_best_epoch(tmp_path: Path) -> None:
    chosen = recipe(train={"epochs": 12}, optim={"adamw": {"lr": 1e-2}})
    found = trained(tmp_path, chosen)
    assert evaluate(found.model, splits().test, chosen, "test")["test/accuracy"] > 0.9
    metrics = evaluate(found.model, splits().validation, chosen, "val")
    assert metrics["val/loss"] == found.state.best_value
    assert found.signature.inputs[0].shape == (-1, 1, 8, 8)
    assert found.signature.outputs[0].shape == (-1, 3)


def test_the_same_recipe_gives_the_same_bits_and_another_seed_does_not(tmp_path: Path) -> None:
    chosen = recipe(train={"epochs": 2})
    first = trained(tmp_path / "a", chosen).weights.read_bytes()
    assert trained(tmp_path / "b", chosen).weights.read_bytes() == first
    other = recipe(train={"epochs": 2}, seed=1)
    assert trained(tmp_path / "c", other).weights.read_bytes() != first
    assert not torch.are_deterministic_algorithms_enabled()


def test_the_share_of_waiting_for_rows_is_that_of_each_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count()
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(clock)))
    chosen = recipe(train={"epochs": 3}, track=["jsonl"])
    trained(tmp_path, chosen)
    lines = RunFolder(tmp_path, chosen, DATA).metrics.read_text().splitlines()
    shares = [json.loads(line)["train/wait_share"] for line in lines]
    looks = 80 // 16 + 1  # the last finds no more rows
    assert shares == pytest.approx([looks / (2 * looks + 1)] * 3)


def test_a_finished_run_is_not_trained_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = recipe(train={"epochs": 2})
    first = trained(tmp_path, chosen)
    monkeypatch.setattr("training.loop.loop.evaluate", None)
    assert trained(tmp_path, chosen, resume=True).state == first.state


def test_early_stopping_ends_the_run(tmp_path: Path) -> None:
    chosen = recipe(
        train={"epochs": 50},
        optim={"adamw": {"lr": 1e-12}},
        stop={"metric": "val/accuracy", "patience": 2},
    )
    assert trained(tmp_path, chosen).state.epoch < 50


LEARNS = {"optim": {"adamw": {"lr": 1e-2}}, "stop": {"metric": "val/loss"}}
STILL = {"optim": {"adamw": {"lr": 1e-12}}, "stop": {"metric": "val/accuracy"}}
"""Only the means of norms move, so that the first epoch is the best."""


@pytest.mark.parametrize(
    ("changes", "best", "reads"),
    [
        (LEARNS, 3, 0),
        (LEARNS | {"train": {"epochs": 3, "ema": 0.5}}, 3, 1),
        (STILL, 1, 1),
    ],
    ids=["last is best", "average", "first is best"],
)
def test_the_best_weights_are_read_again_only_where_the_model_has_others(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any],
    best: int,
    reads: int,
) -> None:
    read: list[str] = []

    def load(model: nn.Module, weights: str) -> None:
        read.append(weights)
        load_model(model, weights)

    monkeypatch.setattr("training.loop.loop.load_model", load)
    found = trained(tmp_path, recipe(**{"train": {"epochs": 3}, **changes}))
    assert (found.state.best_epoch, len(read)) == (best, reads)
    expected = load_file(found.weights)
    for name, tensor in found.model.state_dict().items():
        assert torch.equal(tensor, expected[name]), name


def test_the_end_of_a_run_is_saved_however_rare_checkpoints_are(tmp_path: Path) -> None:
    chosen = recipe(train={"epochs": 3}, checkpoint={"every_epochs": 2})
    first = trained(tmp_path, chosen)
    assert trained(tmp_path, chosen, resume=True).state == first.state
    assert CheckpointFolder(RunFolder(tmp_path, chosen, DATA).checkpoints).exists
    state = torch.load(RunFolder(tmp_path, chosen, DATA).checkpoints / "state.pt")["state"]
    assert (state["epoch"], state["finished"]) == (3, True)


def moved(tmp_path: Path, **optim: Any) -> float:
    """Returns the distance by which one epoch moves the weights of the last layer."""
    torch.manual_seed(0)
    before = build_model(recipe()).state_dict()["head.2.weight"]
    found = trained(tmp_path, recipe(train={"epochs": 1}, optim=optim))
    return float((found.model.state_dict()["head.2.weight"] - before).abs().max())


def test_gradients_are_clipped(tmp_path: Path) -> None:
    assert moved(tmp_path, clip=None) > 1e-3
    assert moved(tmp_path, clip=1e-30) < 1e-4  # far below the epsilon of AdamW


def test_the_schedule_sets_the_learning_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "training.loop.optimization.optimizer_step.learning_rate_factor", lambda *_: 0.0
    )
    assert moved(tmp_path) == 0


def test_the_training_loss_weighs_a_short_last_batch_by_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    linear = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    monkeypatch.setattr(networks, "linear", lambda: linear, raising=False)
    few = splits(rows=17)
    monkeypatch.setattr("tests.unit.training.loop.test_loop.splits", lambda: few)
    chosen = recipe(
        model={"target": "training.networks:linear"},
        train={"epochs": 1},
        optim={"adamw": {"lr": 1e-12}},
    )
    trained(tmp_path, chosen)
    logged = json.loads(RunFolder(tmp_path, chosen, DATA).metrics.read_text())
    expected = evaluate(linear, few.train, chosen, "train")["train/loss"]
    assert logged["train/loss"] == pytest.approx(expected)


def test_a_loss_that_is_no_number_stops_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = splits()
    broken.train.inputs["image"][:] = np.nan
    monkeypatch.setattr("tests.unit.training.loop.test_loop.splits", lambda: broken)
    with pytest.raises(DivergedError, match=r"the loss is nan at step 0 ") as caught:
        trained(tmp_path, recipe())
    assert "no step was taken yet, so the learning rate is not the cause" in str(caught.value)
    assert "lower optim" not in str(caught.value)
    assert "first weights that are not finite" not in str(caught.value)


def is_filled() -> bool:
    return bool(torch_deterministic.fill_uninitialized_memory)  # type: ignore[attr-defined]


class SeesUnwritten(nn.Linear):
    """Takes down whether new memory is filled with NaN, in training and beside it."""

    seen: ClassVar[list[tuple[bool, bool]]] = []

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        filled = torch.are_deterministic_algorithms_enabled() and is_filled()
        self.seen.append((self.training, filled))
        return super().forward(image.flatten(1))


def test_memory_that_nothing_has_written_shows_in_the_first_step_of_each_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(networks, "SeesUnwritten", SeesUnwritten, raising=False)
    monkeypatch.setattr(SeesUnwritten, "seen", [])
    args = {"in_features": 64, "out_features": 3}
    model = {"target": "training.networks:SeesUnwritten", "args": args}
    trained(tmp_path, recipe(model=model, train={"epochs": 2}))
    in_training = [filled for training, filled in SeesUnwritten.seen if training]
    assert in_training == [True, False, False, False, False] * 2
    assert all(filled for training, filled in SeesUnwritten.seen if not training)
    assert is_filled()


class ReadsUnwritten(nn.Linear):
    """Adds what happens to lie in memory."""

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        found = super().forward(image.flatten(1))
        return found + torch.empty_like(found) if self.training else found


def test_a_model_that_reads_what_nothing_has_written_stops_in_its_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(networks, "ReadsUnwritten", ReadsUnwritten, raising=False)
    args = {"in_features": 64, "out_features": 3}
    model = {"target": "training.networks:ReadsUnwritten", "args": args}
    with pytest.raises(DivergedError, match="the loss is nan at step 0"):
        trained(tmp_path, recipe(model=model))


class LosesItself(nn.Module):
    """Its statistics are lost in the second epoch of five steps, and only evaluation uses them."""

    steps: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, 3)
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.steps += 1
        lost = not self.training and self.steps.item() > 5
        found: torch.Tensor = self.head(image.flatten(1))
        return found * float("nan") if lost else found


def test_a_validation_that_is_no_number_stops_the_run_and_the_last_checkpoint_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(networks, "LosesItself", LosesItself, raising=False)
    chosen = recipe(
        model={"target": "training.networks:LosesItself"}, stop={"metric": "val/accuracy"}
    )
    with pytest.raises(DivergedError, match=r"val/loss is nan after epoch 2 \(step 10\)"):
        trained(tmp_path, chosen)
    kept = RunFolder(tmp_path, chosen, DATA).checkpoints
    assert [path.name for path in kept.glob("*.safetensors")] == ["epoch-000001.safetensors"]


def test_a_run_folder_belongs_to_one_process(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, recipe(), DATA)
    with folder.locked(), pytest.raises(RunBusyError, match="another process"), folder.locked():
        pass
    with folder.locked():
        assert folder.path.is_dir()


def test_the_run_folder_is_found_by_recipe_and_data(tmp_path: Path) -> None:
    path = RunFolder(tmp_path, recipe(), DATA).path
    assert RunFolder(tmp_path, recipe(export=[{"kind": "onnx"}]), DATA).path == path
    assert RunFolder(tmp_path, recipe(seed=1), DATA).path != path
    assert RunFolder(tmp_path, recipe(), "1" * 64).path != path


def test_biases_and_norms_are_spared_from_weight_decay() -> None:
    model = networks.SmallCnn(width=4)
    decayed, spared = build_optimizer(model, recipe().optim).param_groups
    assert decayed["weight_decay"] > 0
    assert spared["weight_decay"] == 0
    assert all(p.ndim >= 2 for p in decayed["params"])
    assert len(decayed["params"]) + len(spared["params"]) == len(list(model.parameters()))


class TwoOutputs(nn.Module):
    """Logits and features, from images of any size."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, 3)

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        features = image.flatten(1)
        return self.head(features), features


class Fails(nn.Module):
    """A model with a mistake in it."""

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return image @ torch.zeros(3, 3)


def test_several_outputs_are_named_by_the_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(networks, "TwoOutputs", TwoOutputs, raising=False)
    model = {"target": "training.networks:TwoOutputs", "outputs": ["logits", "features"]}
    found = trained(tmp_path, recipe(model=model, train={"epochs": 1}))
    assert [(s.name, s.shape) for s in found.signature.outputs] == [
        ("logits", (-1, 3)),
        ("features", (-1, 64)),
    ]


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ({"target": "training.networks:SmalCnn"}, "did you mean 'SmallCnn'"),
        ({"target": "no_such_package:Net"}, "cannot import 'no_such_package'"),
        ({"target": "no/such/file.py:Net"}, "there is no file"),
        ({"target": "SmallCnn"}, "write path/file.py:Name or package.module:Name"),
        ({"target": "training.networks:__doc__"}, "is a str; name a class or function"),
        (
            {"target": "training.loop.optimization.schedule:math.pi"},
            "write path/file.py:Name or package",
        ),
        ({"target": "builtins:dict"}, "made a dict; name a torch.nn.Module"),
        (
            {"target": "training.networks:SmallCnn", "args": {"witdh": 4}},
            r"unknown key 'witdh' in 'model.args'.*did you mean 'width'",
        ),
        ({"target": "torch.nn:Linear"}, "missing a required argument: 'in_features'"),
        ({"target": "training.networks:Fails"}, r"fails on inputs 'image' \[2, 1, 8, 8\]"),
        ({"target": "training.networks:TwoOutputs"}, "returns 2 outputs and model.outputs names"),
        ({"target": "torch.nn:Identity"}, r"first output must be \[rows, classes\]"),
    ],
)
def test_a_model_that_does_not_fit_is_refused_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: dict[str, Any], words: str
) -> None:
    monkeypatch.setattr(networks, "TwoOutputs", TwoOutputs, raising=False)
    monkeypatch.setattr(networks, "Fails", Fails, raising=False)
    with pytest.raises(TargetError, match=words):
        trained(tmp_path, recipe(model=model))


def test_labels_beyond_the_classes_are_refused(tmp_path: Path) -> None:
    model = {"target": "training.networks:SmallCnn", "args": {"classes": 2}}
    with pytest.raises(DataError, match="labels go from 0 to 2, and the model has 2 classes"):
        trained(tmp_path, recipe(model=model))


def test_evaluation_weighs_a_short_last_batch_by_its_rows() -> None:
    class Constant(nn.Module):
        def forward(self, image: torch.Tensor) -> torch.Tensor:
            return torch.tensor([[1.0, 0.0, 0.0]]).expand(len(image), 3)

    labels = np.array([0] * 16 + [1])
    split = Split({"image": np.zeros((17, 1, 8, 8), np.float32)}, labels)
    metrics = evaluate(Constant(), split, recipe(), "val")
    assert metrics["val/accuracy"] == 16 / 17
    right, wrong = -np.log(np.e / (np.e + 2)), -np.log(1 / (np.e + 2))
    assert metrics["val/loss"] == pytest.approx((16 * right + wrong) / 17)
    smooth = recipe(loss={"cross_entropy": {"label_smoothing": 0.3}})
    metrics = evaluate(Constant(), split, smooth, "val")
    right, wrong = 0.8 * right + 0.2 * wrong, 0.1 * right + 0.9 * wrong
    assert metrics["val/loss"] == pytest.approx((16 * right + wrong) / 17)


class Stopping:
    """Asks the run to end behind its first epoch, when no checkpoint would be due."""

    stop_asked = False

    def __init__(self) -> None:
        self.told: list[int] = []
        self.starts = 0

    def begin(self, folder: Path) -> None:
        raise AssertionError("the pipeline tells that")

    def started(self) -> None:
        self.starts += 1

    def end_epoch(self, epoch: int, metrics: Mapping[str, float]) -> None:
        assert "val/loss" in metrics
        self.told.append(epoch)
        self.stop_asked = epoch == 1

    def promoted(self, text: str) -> None:
        raise AssertionError("the pipeline tells that")


def test_a_run_that_is_asked_to_stop_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    chosen = recipe(train={"epochs": 4}, checkpoint={"every_epochs": 4})
    undisturbed = trained(tmp_path / "a", chosen).weights.read_bytes()
    folder, watcher = RunFolder(tmp_path / "b", chosen, DATA), Stopping()
    silent = Console(file=io.StringIO())
    with folder.locked(), pytest.raises(StoppedError, match="stopped after step 1 of epoch 2"):
        train(chosen, splits(), folder, silent, watcher=watcher)
    watcher.stop_asked = False
    with folder.locked():
        again = train(chosen, splits(), folder, silent, resume=True, watcher=watcher)
    assert watcher.told == [1, 2, 3, 4]
    assert again.weights.read_bytes() == undisturbed


def test_a_later_phase_counts_its_epochs_on_and_stops_too(tmp_path: Path) -> None:
    chosen = recipe(train={"epochs": 1}, prune={"amount": 0.5, "fine_tune_epochs": 2})
    undisturbed = trained(tmp_path / "a", chosen).weights.read_bytes()
    folder, watcher = RunFolder(tmp_path / "b", chosen, DATA), Stopping()
    silent = Console(file=io.StringIO())
    with folder.locked(), pytest.raises(StoppedError, match="stopped after step 1 of epoch 1"):
        train(chosen, splits(), folder, silent, watcher=watcher)
    assert watcher.told == [1]
    watcher.stop_asked = False
    with folder.locked():
        again = train(chosen, splits(), folder, silent, resume=True, watcher=watcher)
    assert watcher.told == [1, 2, 3]
    assert watcher.starts == 2, "once a start, not once a phase"
    assert again.weights.read_bytes() == undisturbed
