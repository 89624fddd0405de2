"""Optimizers: each moves weights as torch's own does, and groups are those the recipe names."""

from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from tests.unit.training.recipes import CLASSES, recipe, splits
from training import networks
from training.errors import RecipeError
from training.loading.batch import TrainingBatch
from training.loop.objective import make_objective
from training.loop.optimization.optimizer_step import Stepper
from training.loop.optimization.optimizers import build_optimizer, parameter_groups
from training.recipe.parts.optimizer_parts import OptimPart
from training.recipe.recipe import Recipe

TORCH: dict[str, tuple[Any, dict[str, Any]]] = {
    "sgd": (torch.optim.SGD, {"momentum": 0.8, "nesterov": True, "weight_decay": 0.1}),
    "adam": (torch.optim.Adam, {"betas": (0.8, 0.9), "weight_decay": 0.1}),
    "adamw": (torch.optim.AdamW, {"weight_decay": 0.1, "amsgrad": True}),
    "rmsprop": (torch.optim.RMSprop, {"alpha": 0.9, "momentum": 0.5, "centered": True}),
    "adagrad": (torch.optim.Adagrad, {"lr_decay": 0.1, "initial_accumulator_value": 0.1}),
    "adadelta": (torch.optim.Adadelta, {"rho": 0.8}),
    "nadam": (torch.optim.NAdam, {"weight_decay": 0.1, "decoupled_weight_decay": True}),
    "radam": (torch.optim.RAdam, {"betas": (0.8, 0.9)}),
    "adafactor": (torch.optim.Adafactor, {"beta2_decay": -0.7}),
    "muon": (torch.optim.Muon, {"momentum": 0.9}),
    "adamax": (torch.optim.Adamax, {"betas": (0.8, 0.9), "weight_decay": 0.1}),
    "asgd": (torch.optim.ASGD, {"lambd": 0.1, "t0": 2.0, "weight_decay": 0.1}),
    "rprop": (torch.optim.Rprop, {"etas": (0.4, 1.3), "step_sizes": (1e-4, 0.1)}),
    "lbfgs": (torch.optim.LBFGS, {"max_iter": 3, "history_size": 4}),
}


def batches(size: int = 16, rows: int = 64) -> list[TrainingBatch]:
    split = splits(rows).train
    images, labels = torch.from_numpy(split.inputs["image"]), torch.from_numpy(split.labels)
    places = torch.split(torch.arange(rows), size)
    return [TrainingBatch(place.numpy(), [images[place]], labels[place]) for place in places]


def network(seed: int = 0, bias: bool = False) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 8, bias=bias), nn.Tanh(), nn.Linear(8, CLASSES, bias=bias)
    )


def stepper(model: nn.Module, chosen: Recipe, epoch_steps: int = 4) -> Stepper:
    loss = make_objective(chosen, splits().train.every_labels(), [CLASSES])
    return Stepper(model, build_optimizer(model, chosen.optim), chosen, loss, epoch_steps)


@pytest.mark.parametrize("name", TORCH)
def test_each_optimizer_moves_weights_as_that_of_torch(name: str) -> None:
    kind, settings = TORCH[name]
    chosen = recipe(
        optim={name: {"lr": 0.01, **settings}, "clip": None},
        schedule={"constant": {}, "warmup_share": 0},
    )
    ours, theirs = network(), network()
    moved = stepper(ours, chosen)
    if name == "lbfgs":
        settings = {**settings, "line_search_fn": "strong_wolfe"}
    optimizer = kind(theirs.parameters(), lr=0.01, **settings)
    for step, batch in enumerate(batches()):
        moved.step([batch], step, 1.0)

        def closure(batch: TrainingBatch = batch) -> float:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(theirs(*batch.inputs), batch.labels)
            loss.backward()  # type: ignore[no-untyped-call]
            return loss.item()

        optimizer.step(closure)
    for found, expected in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(found, expected)
    assert not torch.equal(next(ours.parameters()), next(network().parameters()))


def test_what_torch_has_a_recipe_has() -> None:
    has = {name for name in vars(torch.optim) if isinstance(getattr(torch.optim, name), type)}
    choices = [type(OptimPart.model_validate({n: {}}).chosen).__name__ for n in OptimPart.choices]
    assert has - set(choices) == {"Optimizer"}
    assert set(OptimPart.choices) - set(TORCH) == {"sparse_adam"}  # see `test_joined_optimizer`


def test_a_group_of_an_optimizer_without_decay_has_none() -> None:
    assert sizes(rprop={}, groups=[{"match": "head.*", "lr_scale": 2}]).keys() == {
        (1.0, 0.0),
        (2.0, 0.0),
    }
    with pytest.raises(ValidationError, match="rprop has no weight decay; drop that of groups"):
        OptimPart.model_validate({"rprop": {}, "groups": [{"match": "*", "weight_decay": 0.1}]})


def groups(**optim: Any) -> list[dict[str, Any]]:
    return parameter_groups(networks.SmallCnn(width=4), recipe(optim=optim).optim)


def sizes(**optim: Any) -> dict[tuple[float, float], int]:
    """Returns the number of parameters for each factor and weight decay."""
    return {(g["lr_scale"], g["weight_decay"]): len(g["params"]) for g in groups(**optim)}


def test_groups_have_their_own_rates_and_decay() -> None:
    assert sizes() == {(1.0, 0.01): 4, (1.0, 0.0): 7}
    assert sizes(no_decay=[]) == {(1.0, 0.01): 11}
    assert sizes(no_decay=["norm"]) == {(1.0, 0.01): 5, (1.0, 0.0): 6}
    assert sizes(no_decay=["bias", "features.0.*"]) == {(1.0, 0.0): 2, (1.0, 0.01): 9}
    head = {"match": "head.*", "lr_scale": 10, "weight_decay": 0.5}
    assert sizes(groups=[head]) == {(1.0, 0.01): 3, (1.0, 0.0): 6, (10.0, 0.5): 1, (10.0, 0.0): 1}
    both = groups(groups=[head, {"match": "*", "lr_scale": 2}])
    assert {g["lr_scale"] for g in both} == {10.0, 2.0}  # the first that fits


def test_layers_before_the_last_learn_more_slowly() -> None:
    found = sizes(layer_decay=0.5, no_decay=[])
    # Three convolutions, each with its norm, and the last layer.
    assert found == {(0.125, 0.01): 3, (0.25, 0.01): 3, (0.5, 0.01): 3, (1.0, 0.01): 2}


def test_the_rate_of_a_group_is_a_share_of_the_schedules() -> None:
    chosen = recipe(
        optim={"sgd": {"lr": 0.5}, "groups": [{"match": "3.*", "lr_scale": 0}]},
        schedule={"constant": {}, "warmup_share": 0},
    )
    model = network()
    assert stepper(model, chosen).step(batches()[:1], 0, 0.5).learning_rate == 0.25
    before = dict(network().named_parameters())
    assert torch.equal(model.get_parameter("3.weight"), before["3.weight"])
    assert not torch.equal(model.get_parameter("1.weight"), before["1.weight"])


def test_frozen_parameters_have_no_optimizer() -> None:
    model = network()
    model.get_parameter("1.weight").requires_grad_(False)
    assert [len(g["params"]) for g in build_optimizer(model, recipe().optim).param_groups] == [1]
    model.requires_grad_(False)
    with pytest.raises(RecipeError, match="no parameter of the model is left to train"):
        build_optimizer(model, recipe().optim)


@pytest.mark.parametrize(
    ("optim", "words"),
    [
        (
            {"groups": [{"match": "haed.*"}]},
            r"'haed.\*' fits nothing .*features.0.weight.*head.2.bias",
        ),
        ({"no_decay": ["biass"]}, "optim.no_decay 'biass' fits nothing"),
        ({"muon": {}}, r"takes matrices only.*features.0.weight \[4, 1, 3, 3\].* and more"),
    ],
)
def test_what_does_not_fit_the_model_is_named(optim: dict[str, Any], words: str) -> None:
    with pytest.raises(RecipeError, match=words):
        build_optimizer(networks.SmallCnn(width=4), recipe(optim=optim).optim)


@pytest.mark.parametrize(
    ("optim", "words"),
    [
        ({"sgd": {}, "adam": {}}, "sgd and adam exclude each other"),
        ({"sgd": None}, "write sgd: {}"),
        ({"sgd": {"momentum": 0, "nesterov": True}}, "nesterov needs momentum"),
        ({"adam": {"betas": [0.9, 1.0]}}, "less than 1"),
        ({"lbfgs": {}, "clip": 1.0}, "drop clip"),
        ({"lbfgs": {}, "layer_decay": 0.5}, "drop layer_decay"),
        ({"lbfgs": {}, "accumulate": 2}, "drop accumulate"),
        ({"clip": {"norm": 1, "value": 1}}, "norm and value exclude each other"),
        ({"clip": -1}, "greater than 0"),
        ({"clip": "small"}, "valid dictionary"),
        ({"adamv": {}}, "adamv"),
    ],
)
def test_settings_that_exclude_each_other_are_refused(optim: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        recipe(optim=optim)


def test_a_resolved_recipe_holds_one_optimizer_and_one_spelling() -> None:
    assert recipe(optim={"clip": 2}).optim == recipe(optim={"clip": {"norm": 2.0}}).optim
    spellings: list[dict[str, Any]] = [
        {"rmsprop": {}},
        {"lbfgs": {}},
        {"clip": None},
        {"clip": {"value": 0.5}},
    ]
    for optim in spellings:
        chosen = recipe(optim=optim)
        document = chosen.document()
        assert Recipe.model_validate(document) == chosen
        assert set(document["optim"]) & set(OptimPart.choices) == {chosen.optim.choice}
    assert recipe(optim={"clip": 2}).document()["optim"]["clip"] == {"norm": 2.0}


@pytest.mark.parametrize("weight", [None, [0.5, 1.0, 3.0]])
@pytest.mark.parametrize("rows", [64, 40])
def test_a_window_of_batches_moves_weights_as_one_large_batch(
    rows: int, weight: list[float] | None
) -> None:
    chosen = recipe(optim={"sgd": {}, "accumulate": 4}, loss={"cross_entropy": {"weight": weight}})
    window, whole = network(bias=True), network(bias=True)
    small = stepper(window, chosen).step(batches(16, rows), 0, 1.0)
    large = stepper(whole, chosen).step(batches(rows, rows), 0, 1.0)
    assert small.loss == pytest.approx(large.loss)
    assert small.gradient_norm == pytest.approx(large.gradient_norm)
    for found, expected in zip(window.parameters(), whole.parameters(), strict=True):
        assert torch.allclose(found, expected, atol=1e-7)


def test_gradients_are_clipped_by_their_elements() -> None:
    chosen = recipe(
        optim={"sgd": {"lr": 1.0, "momentum": 0}, "clip": {"value": 1e-3}},
        schedule={"constant": {}, "warmup_share": 0},
    )
    model, before = network(), network()
    stepper(model, chosen).step(batches()[:1], 0, 1.0)
    moved = [
        (a - b).abs().max().item()
        for a, b in zip(model.parameters(), before.parameters(), strict=True)
    ]
    assert max(moved) == pytest.approx(1e-3, rel=1e-3)
