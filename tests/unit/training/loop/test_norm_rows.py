"""Batches that would leave a batch norm a single row are refused before the training."""

import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.unit.training.recipes import recipe
from training.datasets import Split
from training.distributed.ranks import Ranks
from training.errors import RecipeError
from training.loop.norm_rows import check_norm_rows

FLAT = Split({"x": np.ones((4, 3), np.float32)}, np.zeros(4, np.int64))
IMAGES = Split({"x": np.ones((4, 3, 2, 2), np.float32)}, np.zeros(4, np.int64))


def flat() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Dropout(), nn.Linear(5, 2))


def check(rows: int, size: int, world: int, model: nn.Module | None = None, **options: Any) -> None:
    example = options.pop("example", FLAT)
    held = options.pop("held", ())
    wanted = recipe(data={"target": "a:b", "batch_size": size}, train=options)
    check_norm_rows(model or flat(), held, example, rows, wanted, Ranks(0, world))


DDP: dict[str, Any] = {"parallel": "ddp", "processes": 2}


@pytest.mark.parametrize(
    ("rows", "size", "world", "options", "words"),
    [
        (33, 16, 1, {}, "the last batch of an epoch has 1 row (33 rows, data.batch_size 16), and "
         "batch norm '1' needs 2 in training; take data.batch_size 17, or take nn.LayerNorm"),
        (4, 1, 1, {}, "every batch has 1 row (data.batch_size 1)"),
        (35, 16, 2, DDP, "2 processes share each batch, and of the last one of an epoch (3 of 35 "
         "rows, data.batch_size 16) one has a single row, and batch norm '1' needs 2 in training; "
         "set train.sync_batch_norm: true, or take data.batch_size 15"),
        (33, 16, 2, DDP, "one has a single row, and batch norm '1' needs 2 in training; take data"),
        (33, 16, 2, {**DDP, "sync_batch_norm": True}, "needs 2 in training; take data.batch_size"),
        (9, 3, 2, DDP, "set train.sync_batch_norm: true"),
    ],
)  # fmt: skip
def test_a_norm_with_one_row_is_refused(
    rows: int, size: int, world: int, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(RecipeError, match=re.escape(words)):
        check(rows, size, world, **options)


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("rows", range(1, 40))
def test_the_size_that_is_proposed_is_taken(rows: int, world: int) -> None:
    for size in range(world, 12):
        try:
            check(rows, size, world)
        except RecipeError as refused:
            found = re.search(r"data.batch_size (\d+), or", str(refused))
            if found is not None:
                check(rows, int(found[1]), world)


def test_what_can_run_is_not_refused() -> None:
    check(32, 16, 1)
    check(34, 16, 1)
    check(36, 16, 2, **DDP)
    check(35, 16, 2, **DDP, sync_batch_norm=True)
    check(33, 16, 1, nn.Sequential(nn.Linear(3, 2)))
    images = nn.Sequential(nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2))
    check(33, 16, 1, images, example=IMAGES)
    held = flat()
    check(33, 16, 1, held, held=[held[1]])  # type: ignore[index]


def test_a_norm_behind_a_pool_counts_as_one_behind_a_linear_layer() -> None:
    pooled = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.BatchNorm2d(3))
    with pytest.raises(RecipeError, match="batch norm '1' needs 2"):
        check(33, 16, 1, pooled, example=IMAGES)


def test_the_look_leaves_the_model_and_the_random_numbers_as_they_were() -> None:
    model, state = flat().train(), torch.get_rng_state()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(RecipeError):
        check(33, 16, 1, model)
    assert all(torch.equal(before[name], found) for name, found in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training
