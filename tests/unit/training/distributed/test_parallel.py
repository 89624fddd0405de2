"""Weights, shared values and refusals of several processes, without the processes themselves."""

from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import nn

from tests.unit.training.recipes import recipe, splits
from training.datasets import IGNORED_LABEL
from training.distributed.ranks import ALONE, Ranks
from training.distributed.replica import Replica, blocks, whole_tensors
from training.loading.batch import TrainingBatch
from training.loop.objective import make_objective
from training.loop.optimization.optimizer_step import Stepper
from training.loop.optimization.optimizers import build_optimizer
from training.loop.optimization.weight_average import WeightAverage
from training.network.model import build_model
from training.recipe.recipe import Recipe

TOGETHER = {"parallel": "ddp", "processes": 2}


class Told(Ranks):
    """One of several ranks; the sum over all of them is given in advance."""

    def __init__(self, rank: int, world: int, total: float) -> None:
        super().__init__(rank, world)
        self._total = total

    def sums(self, *values: float) -> list[float]:
        """See `Ranks.sums`."""
        return [self._total]


def gradient(
    chosen: Recipe, window: list[TrainingBatch], ranks: Ranks
) -> tuple[list[torch.Tensor], float]:
    """Returns the gradient of a window, and the weight of its rows."""
    torch.manual_seed(0)
    model = build_model(chosen).eval()  # its dropout would differ
    loss = make_objective(chosen, splits().train.every_labels(), [3])
    replica = Replica(model, chosen.train, ranks)
    stepper = Stepper(
        model, build_optimizer(model, chosen.optim), chosen, loss, 1, WeightAverage(model, None),
        replica,
    )  # fmt: skip
    found = stepper.step(window, 0, 0.0)
    return [p.grad for p in model.parameters() if p.grad is not None], found.weight


def batch(rows: Any, ranks: Ranks) -> TrainingBatch:
    mine, counts = ranks.share(np.asarray(rows))
    train = splits().train
    labels = torch.from_numpy(train.labels[mine])
    labels[mine % 5 == 0] = IGNORED_LABEL
    return TrainingBatch(
        mine, [torch.from_numpy(train.inputs["image"][mine])], labels, counts=counts
    )


@pytest.mark.parametrize("world", [2, 3, 4])
def test_the_average_of_all_ranks_is_the_gradient_of_one(world: int) -> None:
    """Short batches, windows, class weights, ignored labels, and ranks without a row."""
    chosen = recipe(
        optim={"clip": None},
        loss={"cross_entropy": {"weight": [0.1, 1.0, 5.0]}},
        train={"parallel": "ddp", "processes": world},
    )
    parts = [range(16), range(20, 29), [31, 30], [36]]
    expected, total = gradient(chosen, [batch(rows, ALONE) for rows in parts], ALONE)
    summed = [torch.zeros_like(part) for part in expected]
    weights = 0.0
    for rank in range(world):
        ranks = Told(rank, world, total)
        found, weight = gradient(chosen, [batch(rows, ranks) for rows in parts], ranks)
        weights += weight
        for whole, part in zip(summed, found, strict=True):
            whole += part / world  # as torch averages them
    assert weights == pytest.approx(total)
    for one, other in zip(expected, summed, strict=True):
        torch.testing.assert_close(other, one, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("rows", [1, 2, 7, 8])
def test_every_row_has_one_rank(rows: int) -> None:
    found = [Ranks(rank, 3).share(np.arange(rows)) for rank in range(3)]
    counted = np.concatenate([mine for mine, counts in found if counts])
    assert sorted(counted) == list(range(rows))
    assert all(len(mine) for mine, _ in found)


def test_ranks_draw_random_numbers_of_their_own() -> None:
    drawn = []
    for rank, epoch in ((0, 0), (1, 0), (2, 0), (1, 3), (1, 0)):
        torch.manual_seed(5)
        Ranks(rank, 3).seed(5, epoch)
        drawn.append(float(torch.rand(())))
    torch.manual_seed(5)
    assert drawn[0] == float(torch.rand(())), "the first goes on as one process would"
    assert len(set(drawn)) == 4
    assert drawn[1] == drawn[4]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"train": {"processes": 2}}, "train.processes is 2 and train.parallel none"),
        ({"train": {"parallel": "ddp", "processes": 17}}, "17 processes share each batch"),
        ({"optim": {"lbfgs": {}}, "train": TOGETHER}, "optim.lbfgs searches along lines"),
        ({"train": {"parallel": "fsdp", "ema": 0.9}}, "train.ema follows whole weights"),
        ({"train": {"parallel": "fsdp", "precision": "fp16"}}, "fp16 scales whole gradients"),
        ({"train": {"parallel": "fsdp"}, "optim": {"muon": {}}}, "optim.muon moves whole"),
        ({"train": {"parallel": "fsdp"}, "optim": {"adafactor": {}}}, "optim.adafactor moves"),
        ({"train": {"parallel": "fsdp"}, "debug": {"gradients": ["*"]}}, "debug.gradients looks"),
    ],
)
def test_what_processes_cannot_do_together_is_refused(changes: Any, words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        recipe(**changes)


def test_processes_are_no_part_of_what_decides_the_weights() -> None:
    one = recipe(train={"epochs": 3})
    assert recipe(train={"epochs": 3, **TOGETHER}).training_digest() == one.training_digest()
    assert recipe(train={"epochs": 4}).training_digest() != one.training_digest()


def test_blocks_are_members_of_containers_that_share_no_weight() -> None:
    tied = nn.Linear(4, 4)
    inner = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    model = nn.ModuleDict(
        {
            "layers": nn.ModuleList([inner, nn.LayerNorm(4), nn.Sequential(tied)]),
            "head": nn.Linear(4, 4),
            "again": nn.ModuleList([tied]),
        }
    )
    found = blocks(model)
    assert [type(block).__name__ for block in found] == ["Linear", "LayerNorm", "Linear"]
    assert found[0] is inner[0]


def test_what_is_whole_stays_as_it_is() -> None:
    values = {"a": [torch.ones(2), 3], "b": (1.5, None)}
    found = whole_tensors(values)
    assert found["a"][0] is values["a"][0]
    assert found["b"] == (1.5, None)
