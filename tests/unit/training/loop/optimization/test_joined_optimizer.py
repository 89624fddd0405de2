"""Muon and SparseAdam move what they take, AdamW the rest, as torch's own two would."""

import copy
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from rich.console import Console
from torch import Tensor, nn

from tests.unit.training.recipes import CLASSES, DATA, recipe
from training.datasets import Split, Splits
from training.errors import RecipeError, StoppedError
from training.loading.batch import TrainingBatch
from training.loop.loop import train
from training.loop.objective import make_objective
from training.loop.optimization.optimizer_step import Stepper
from training.loop.optimization.optimizers import build_optimizer
from training.run_folder import RunFolder
from training.watcher import NullWatcher

HERE = "tests.unit.training.loop.optimization.test_joined_optimizer"
SYMBOLS = 50
REST: dict[str, Any] = {"lr": 0.01, "weight_decay": 0.1}
CONSTANT = {"constant": {}, "warmup_share": 0}


class Words(nn.Module):
    """An embedding, a norm and a head.

    Args:
        sparse: whether the embedding's gradient is.
    """

    def __init__(self, sparse: bool = True) -> None:
        super().__init__()
        self.embed = nn.Embedding(SYMBOLS, 6, padding_idx=0, sparse=sparse)
        self.norm, self.head = nn.LayerNorm(6), nn.Linear(6, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        """[N, T] to [N, CLASSES]."""
        logits: Tensor = self.head(self.norm(self.embed(tokens).mean(1)))
        return logits


def words(rows: int = 60) -> Splits:
    def split(seed: int) -> Split:
        random = np.random.default_rng(seed)
        tokens = random.integers(1, SYMBOLS, (rows, 4))
        return Split({"tokens": tokens}, tokens[:, 0] % CLASSES)

    return Splits(split(1), split(2), split(3))


def batches() -> list[TrainingBatch]:
    split = words().train
    tokens, labels = torch.from_numpy(split.inputs["tokens"]), torch.from_numpy(split.labels)
    return [
        TrainingBatch(np.arange(i, i + 20), [tokens[i : i + 20]], labels[i : i + 20])
        for i in (0, 20)
    ]


def made(model: nn.Module, chosen: Any) -> Stepper:
    loss = make_objective(chosen, words().train.every_labels(), [CLASSES])
    return Stepper(model, build_optimizer(model, chosen.optim), chosen, loss, epoch_steps=2)


CASES: dict[str, tuple[dict[str, Any], bool, list[str]]] = {
    "sparse_adam": ({"lr": 0.05}, True, ["embed.weight"]),
    "muon": ({"lr": 0.05, "momentum": 0.9}, False, ["embed.weight", "head.weight"]),
}


@pytest.mark.parametrize("name", CASES)
def test_each_part_moves_its_parameters_as_that_of_torch(name: str) -> None:
    settings, sparse, taken = CASES[name]
    optim = {name: settings, "rest": REST, "no_decay": [], "clip": 0.05}
    chosen = recipe(optim=optim, schedule=CONSTANT)
    torch.manual_seed(0)
    ours = Words(sparse)
    theirs = copy.deepcopy(ours)
    parameters = dict(theirs.named_parameters())
    kind = {"sparse_adam": torch.optim.SparseAdam, "muon": torch.optim.Muon}[name]
    mine = kind([parameters.pop(n) for n in taken], **settings)
    rest = torch.optim.AdamW(parameters.values(), **REST)
    moved = made(ours, chosen)
    for step, batch in enumerate(batches()):
        moved.step([batch], step, 1.0)
        theirs.zero_grad()
        nn.functional.cross_entropy(theirs(*batch.inputs), batch.labels).backward()  # type: ignore[no-untyped-call]
        dense = [p.grad.to_dense() for p in theirs.parameters() if p.grad is not None]
        norm = nn.utils.get_total_norm(dense)
        assert norm > 0.05, "else nothing is clipped"
        for parameter in theirs.parameters():
            assert parameter.grad is not None
            parameter.grad = parameter.grad * (0.05 / (norm + 1e-6))
        mine.step()
        rest.step()
    for key, expected in theirs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[key], expected, atol=1e-6, rtol=1e-5)
    assert not torch.equal(ours.norm.weight, torch.ones(6))


def test_elements_of_sparse_gradients_are_clipped_and_windows_add_them_up() -> None:
    optim = {"sparse_adam": {}, "rest": {}, "accumulate": 2}
    model = Words()
    made(model, recipe(optim={**optim, "clip": {"value": 1e-4}})).step(batches(), 0, 0.0)
    gradient = model.embed.weight.grad
    assert gradient is not None and gradient.is_sparse  # noqa: PT018
    assert gradient.to_dense().abs().max().item() == pytest.approx(1e-4)


class Asking(NullWatcher):
    """Has a run end behind its first step."""

    stop_asked = True


@pytest.mark.parametrize("name", CASES)
def test_a_resumed_run_has_the_same_bits(name: str, tmp_path: Path) -> None:
    chosen = recipe(
        optim={name: {}, "rest": REST},
        model={"target": f"{HERE}:Words", "args": {"sparse": CASES[name][1]}},
        train={"epochs": 2, "threads": 1, "ema": 0.5},
        debug={"gradients": ["embed.*"]},
    )

    def run(place: str, resume: bool = False, watcher: NullWatcher | None = None) -> bytes:
        folder = RunFolder(tmp_path / place, chosen, DATA)
        with folder.locked():
            told = Console(file=io.StringIO())
            return train(chosen, words(), folder, told, resume, watcher).weights.read_bytes()

    whole = run("whole")
    with pytest.raises(StoppedError, match="stopped after step 1 of epoch 1"):
        run("cut", watcher=Asking())
    assert run("cut", resume=True) == whole


@pytest.mark.parametrize(
    ("optim", "sparse", "words"),
    [
        ({"sparse_adam": {}}, True, r"takes embeddings with sparse=True only.*norm.weight \[6\]"),
        ({"sparse_adam": {}, "rest": {}}, False, "the model has none that learn"),
        ({"adamw": {}}, True, "adamw takes no sparse gradients, which embed.weight has"),
        ({"muon": {}}, False, r"takes matrices only.*norm.weight \[6\].*give optim.rest"),
    ],
)
def test_what_an_optimizer_does_not_take_is_refused(optim: Any, sparse: bool, words: str) -> None:
    with pytest.raises(RecipeError, match=words):
        build_optimizer(Words(sparse), recipe(optim=optim).optim)


def test_a_weight_that_something_else_reads_too_is_not_sparse() -> None:
    model = Words()
    model.head = nn.Linear(6, SYMBOLS)
    model.head.weight = model.embed.weight
    optimizer = build_optimizer(model, recipe().optim)
    assert sum(len(group["params"]) for group in optimizer.param_groups) == 4


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"optim": {"rest": {}}}, "adamw takes all parameters, so there is no rest"),
        (
            {"optim": {"sparse_adam": {}}, "train": {"parallel": "ddp", "processes": 2}},
            "sparse_adam has sparse gradients",
        ),
        ({"optim": {"sparse_adam": {}}, "train": {"compile": True}}, "needs sparse gradients"),
    ],
)
def test_what_contradicts_it_is_refused(changes: Any, words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        recipe(**changes)


def test_a_later_phase_slows_both_down() -> None:
    slow = recipe(optim={"muon": {"lr": 1.0}, "rest": {"lr": 0.5}}).optim.slower(0.1)
    assert slow.rest is not None
    assert (slow.chosen.lr, slow.rest.lr) == (0.1, 0.05)
