"""Losses of numbers: those of torch, and sums whose every mean weighs what its labels do."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from tests.unit.training.number_tasks import number_recipe
from tests.unit.training.recipes import recipe
from training.datasets import load_splits
from training.errors import RecipeError
from training.loading.batch import TrainingBatch
from training.loop.evaluation import evaluate
from training.loop.losses import Loss, make_loss
from training.loop.objective import make_objective
from training.loop.optimization.optimizer_step import Stepper
from training.loop.optimization.optimizers import build_optimizer
from training.network.model import build_model
from training.recipe.recipe import Recipe

torch.manual_seed(1)
OUTPUTS = torch.randn(8, 3)
ONES = (torch.rand(8, 3) < 0.3).float()
COUNTS = torch.poisson(torch.full((8, 3), 2.0))
WEIGHTS = torch.tensor([2.0, 0.5, 3.0])


def loss(part: dict[str, Any], labels: torch.Tensor) -> Loss:
    return make_loss(recipe(loss=part).loss, labels.numpy(), labels.shape[-1])


@pytest.mark.parametrize(
    ("part", "labels", "expected"),
    [
        ({"mse": {}}, COUNTS, functional.mse_loss(OUTPUTS, COUNTS)),
        ({"l1": {}}, COUNTS, functional.l1_loss(OUTPUTS, COUNTS)),
        (
            {"smooth_l1": {"beta": 0.5}},
            COUNTS,
            functional.smooth_l1_loss(OUTPUTS, COUNTS, beta=0.5),
        ),
        ({"huber": {"delta": 0.5}}, COUNTS, functional.huber_loss(OUTPUTS, COUNTS, delta=0.5)),
        ({"poisson": {}}, COUNTS, functional.poisson_nll_loss(OUTPUTS, COUNTS)),
        (
            {"poisson": {"log_input": False}},
            COUNTS,
            functional.poisson_nll_loss(OUTPUTS, COUNTS, log_input=False),
        ),
        ({"bce": {}}, ONES, functional.binary_cross_entropy_with_logits(OUTPUTS, ONES)),
        (
            {"bce": {"pos_weight": WEIGHTS.tolist()}},
            ONES,
            functional.binary_cross_entropy_with_logits(OUTPUTS, ONES, pos_weight=WEIGHTS),
        ),
        (
            {"bce": {"pos_weight": 3.0}},
            ONES,
            functional.binary_cross_entropy_with_logits(
                OUTPUTS, ONES, pos_weight=torch.tensor(3.0)
            ),
        ),
    ],
)
def test_each_loss_is_that_of_torch(
    part: dict[str, Any], labels: torch.Tensor, expected: torch.Tensor
) -> None:
    if part.get("poisson") == {"log_input": False}:
        outputs = OUTPUTS.abs()
        expected = functional.poisson_nll_loss(outputs, labels, log_input=False)
        assert torch.equal(loss(part, labels).of(outputs, labels), expected)
        return
    assert torch.equal(loss(part, labels).of(OUTPUTS, labels), expected)


def test_balanced_ones_weigh_as_much_as_zeros() -> None:
    labels = torch.tensor([[1, 0, 1, 1], [0, 0, 1, 1], [0, 0, 1, 1], [0, 0, 1, 0]]).float()
    zeros = torch.zeros(4, 4)
    each = functional.binary_cross_entropy_with_logits(
        zeros, labels, pos_weight=torch.tensor([3.0, 1.0, 1.0, 1 / 3])
    )
    assert torch.equal(loss({"bce": {"pos_weight": "balanced"}}, labels).of(zeros, labels), each)
    with pytest.raises(RecipeError, match="pos_weight has 2 numbers, and the model 4 labels"):
        loss({"bce": {"pos_weight": [1.0, 2.0]}}, labels)


def test_one_number_a_row_is_no_matrix_beside_a_column() -> None:
    labels = torch.tensor([1.0, 2.0, 4.0])
    found = make_loss(recipe(loss={"mse": {}}).loss, labels.numpy(), 1).of(labels[:, None], labels)
    assert found.item() == 0


def test_places_without_a_number_do_not_count() -> None:
    labels = COUNTS.clone()[:, :, None]
    labels[2:5, 1:] = torch.nan
    chosen = loss({"huber": {"delta": 0.7}}, labels)
    outputs = OUTPUTS[:, :, None]
    parts = (slice(3), slice(3, 8))
    means = [chosen.of(outputs[part], labels[part]).item() for part in parts]
    weights = [chosen.weight_of(labels[part]) for part in parts]
    assert sum(weights) == 24 - 6
    assert np.average(means, weights=weights) == pytest.approx(chosen.of(outputs, labels).item())


def two_heads(accumulate: int) -> Recipe:
    """Classes with weights, and numbers with gaps: each batch has other shares of the two."""
    return number_recipe(
        "two",
        {
            "sum": [
                {"cross_entropy": {"weight": [0.2, 3.0]}},
                {"mse": {}, "weight": 0.3, "output": "amount", "labels": "amount"},
            ]
        },
        model={
            "target": "tests.unit.training.number_tasks:Three",
            "outputs": ["classes", "amount"],
        },
        optim={"sgd": {"lr": 0.1, "momentum": 0}, "clip": None, "accumulate": accumulate},
        schedule={"constant": {}, "warmup_share": 0},
    )


def test_a_window_of_uneven_batches_moves_weights_as_one_batch_does() -> None:
    moved, losses = [], []
    for parts in ([96], [10, 50, 36]):
        chosen = two_heads(len(parts))
        split = load_splits(chosen).train
        torch.manual_seed(0)
        model = build_model(chosen)
        objective = make_objective(chosen, split.every_labels(), [2, 1])
        stepper = Stepper(model, build_optimizer(model, chosen.optim), chosen, objective, 1)
        places = torch.split(torch.arange(96), parts)
        window = [
            TrainingBatch(
                place.numpy(),
                [torch.from_numpy(split.inputs["features"])[place]],
                torch.from_numpy(split.labels)[place],
                {"amount": torch.from_numpy(split.others["amount"])[place]},
            )
            for place in places
        ]
        losses.append(stepper.step(window, 0, 1.0).loss)
        moved.append(torch.cat([parameter.flatten() for parameter in model.parameters()]))
        model = build_model(chosen)
    assert losses[1] == pytest.approx(losses[0], rel=1e-6)
    torch.testing.assert_close(moved[1], moved[0], rtol=0, atol=1e-6)


def test_evaluation_weighs_each_loss_by_its_own_labels() -> None:
    chosen = two_heads(1)
    split = load_splits(chosen).test
    torch.manual_seed(0)
    model = build_model(chosen)
    data = chosen.data.model_copy(update={"batch_size": 96})
    whole = evaluate(model, split, chosen.model_copy(update={"data": data}), "val")
    parts = evaluate(model, split, chosen, "val")
    assert set(parts) == {"val/loss", "val/accuracy", "val/macro_f1"}
    assert parts == pytest.approx(whole, rel=1e-6)
