"""First weights, freezing, averaged weights, precision and recomputed activations."""

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from rich.console import Console
from safetensors.torch import load_file
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from tests.unit.training.loop.optimization.test_optimizers import batches, stepper
from tests.unit.training.recipes import DATA, recipe, splits
from training import networks
from training.errors import RecipeError
from training.loop.compression.later_phases import fine_tuning
from training.loop.evaluation import evaluate
from training.loop.freezing import Freezing
from training.loop.loop import Trained, train
from training.loop.objective import make_objective
from training.loop.optimization.optimizer_step import Stepper
from training.loop.optimization.optimizers import build_optimizer
from training.loop.optimization.weight_average import WeightAverage
from training.network.model import build_model
from training.recipe.parts.model_parts import FreezePart
from training.recipe.recipe import Recipe
from training.run_folder import RunFolder

MODEL = recipe().document()["model"]


def trained(runs: Path, chosen: Recipe) -> Trained:
    folder = RunFolder(runs, chosen, DATA)
    with folder.locked():
        return train(chosen, splits(), folder, Console(file=io.StringIO()))


def fresh(**changes: Any) -> nn.Module:
    torch.manual_seed(0)
    return build_model(recipe(**changes))


def test_layers_begin_as_the_recipe_says_by_type() -> None:
    model = fresh(model={**MODEL, "init": {"linear": "zeros"}})
    assert not model.get_parameter("head.2.weight").any()
    assert torch.equal(
        model.get_parameter("features.0.weight"), fresh().state_dict()["features.0.weight"]
    )
    torch.manual_seed(0)
    network = networks.SmallCnn(width=4, classes=3)
    for layer in (network.features[0], network.features[3], network.features[7]):
        assert isinstance(layer, nn.Conv2d)
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    found = fresh(model={**MODEL, "init": {"conv": "kaiming_normal"}})
    for name, expected in network.named_parameters():
        assert torch.equal(found.get_parameter(name), expected), name
    assert (
        not fresh(model={**MODEL, "init": {"linear": "normal"}}).get_parameter("head.2.bias").any()
    )


def test_a_type_that_the_model_lacks_is_named() -> None:
    with pytest.raises(RecipeError, match=r"names recurrent, and the model has none; .*Conv2d"):
        fresh(model={**MODEL, "init": {"recurrent": "orthogonal"}})


def test_what_is_frozen_stays_as_it_was_statistics_too(tmp_path: Path) -> None:
    chosen = recipe(train={"epochs": 2}, model={**MODEL, "freeze": ["features.*"]})
    torch.manual_seed(chosen.seed)
    before = build_model(chosen).state_dict()
    after = trained(tmp_path, chosen).model.state_dict()
    changed = {name for name, tensor in after.items() if not torch.equal(tensor, before[name])}
    assert changed == {"head.2.weight", "head.2.bias"}


def test_statistics_of_a_frozen_norm_without_weights_stay_too() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, affine=False), nn.Linear(4, 2))
    for pattern, moves in (("[01].*", False), ("0.*", True)):
        norm = model[1]
        assert isinstance(norm, nn.BatchNorm1d)
        norm.reset_running_stats()
        freezing = Freezing(model.train(), FreezePart(freeze=(pattern,)))
        freezing.begin_epoch(1)
        model(torch.randn(8, 4))
        freezing.release()
        assert norm.running_mean is not None
        assert bool(norm.running_mean.any()) is moves, pattern


def test_what_is_frozen_learns_from_the_epoch_on_that_the_recipe_names(tmp_path: Path) -> None:
    part = {**MODEL, "freeze": ["features.*"], "unfreeze_at": {"epoch": 2}}
    for epochs, moves in ((1, False), (2, True)):
        chosen = recipe(train={"epochs": epochs}, model=part, optim={"sgd": {"lr": 0.1}})
        torch.manual_seed(chosen.seed)
        before = build_model(chosen).state_dict()
        trained(tmp_path, chosen)
        checkpoints = RunFolder(tmp_path, chosen, DATA).checkpoints
        after = load_file(checkpoints / f"epoch-{epochs:06d}.safetensors")
        for name in ("features.0.weight", "features.1.running_mean"):
            assert torch.equal(after[name], before[name]) is not moves, name


def test_the_average_is_that_of_torch_and_is_what_is_published(tmp_path: Path) -> None:
    chosen = recipe(train={"epochs": 4, "ema": 0.8})
    model = fresh()
    average = WeightAverage(model, 0.8)
    follow = get_ema_multi_avg_fn(0.8)  # type: ignore[no-untyped-call]
    expected = AveragedModel(model, multi_avg_fn=follow, use_buffers=True)
    loss = make_objective(chosen, splits().train.every_labels(), [3])
    moved = Stepper(model, build_optimizer(model, chosen.optim), chosen, loss, 4, average)
    for step, batch in enumerate(batches()):
        moved.step([batch], step, 1.0)
        expected.update_parameters(model)
    for name, tensor in expected.module.state_dict().items():
        assert torch.equal(average.evaluated.state_dict()[name], tensor), name
    assert not torch.equal(
        average.evaluated.state_dict()["head.2.weight"], model.state_dict()["head.2.weight"]
    )

    found = trained(tmp_path, chosen)
    metrics = evaluate(found.model, splits().validation, chosen, "val")
    assert metrics["val/loss"] == found.state.best_value
    state = torch.load(RunFolder(tmp_path, chosen, DATA).checkpoints / "state.pt")
    assert state["beside"]["averaged_steps"] == 20
    assert not torch.equal(
        state["beside"]["trained_weights"]["head.2.weight"],
        load_file(found.weights)["head.2.weight"],
    )


def test_an_average_keeps_the_zeros_of_pruning(tmp_path: Path) -> None:
    chosen = recipe(train={"epochs": 1, "ema": 0.5}, prune={"amount": 0.5, "fine_tune_epochs": 2})
    weight = trained(tmp_path, chosen).model.get_parameter("features.3.weight")
    assert (weight == 0).float().mean() == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("patterns", [["features"], ["features.[0-5]", "head"], ["*"]])
def test_recomputed_activations_change_no_bit(patterns: list[str], tmp_path: Path) -> None:
    plain = recipe(train={"epochs": 2})
    chosen = recipe(train={"epochs": 2, "activation_checkpoint": patterns})
    expected, found = trained(tmp_path, plain).model, trained(tmp_path, chosen).model
    for name, tensor in expected.state_dict().items():
        assert torch.equal(found.state_dict()[name], tensor), name
    assert all("forward" not in vars(module) for module in found.modules())


def test_recomputing_keeps_fewer_activations() -> None:
    def kept(patterns: list[str]) -> int:
        from training.loop.activation_checkpoint import activations_recomputed

        model, found = fresh(), list[int]()

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            found.append(tensor.numel())
            return tensor

        with (
            activations_recomputed(model, patterns),
            torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
        ):
            model(*batches()[0].inputs)
        return sum(found)

    assert kept(["features"]) < kept([]) / 4


def test_bf16_learns_in_bf16_and_keeps_weights_in_fp32() -> None:
    seen: list[torch.dtype] = []
    model, plain = fresh(), fresh()
    model.get_submodule("features.0").register_forward_hook(
        lambda module, inputs, output: seen.append(output.dtype)
    )
    coarse = stepper(model, recipe(train={"precision": "bf16"})).step(batches()[:1], 0, 1.0)
    torch.manual_seed(1)
    fine = stepper(plain, recipe()).step(batches()[:1], 0, 1.0)
    assert seen == [torch.bfloat16]
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert coarse.loss != fine.loss
    assert coarse.loss == pytest.approx(fine.loss, rel=0.5)


def test_fp16_scales_what_would_vanish(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scaler on the CPU, which recipes cannot have, stands for that of a GPU."""

    def scaler(precision: str, device: str) -> torch.amp.GradScaler:
        return torch.amp.GradScaler("cpu", init_scale=2.0**14, growth_interval=2)

    fine = stepper(fresh(), recipe()).step(batches()[:1], 0, 1.0)
    monkeypatch.setattr("training.loop.optimization.optimizer_step.gradient_scaler", scaler)
    model = fresh()
    moved = stepper(model, recipe(train={"precision": "fp16"}))
    for step, batch in enumerate(batches()[:2]):
        found = moved.step([batch], step, 1.0)
        if step == 0:
            assert found.gradient_norm == pytest.approx(fine.gradient_norm, rel=0.5)
    weight = "head.2.weight"
    assert not torch.equal(model.get_parameter(weight), fresh().get_parameter(weight))
    saved = moved.state()
    assert saved["scaler"]["scale"] == 2.0**15  # it grew behind two good steps
    again = stepper(fresh(), recipe(train={"precision": "fp16"}))
    again.restore(saved)
    assert again.state() == saved


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"train": {"precision": "fp16"}}, "fp16 needs a GPU.*take bf16"),
        ({"train": {"activation_checkpoint": ["blocks.*"]}}, r"'blocks.\*' fits nothing"),
        ({"model": {**MODEL, "freeze": ["stem.*"]}}, r"model.freeze 'stem.\*' fits nothing"),
        ({"model": {**MODEL, "freeze": ["*"]}}, "no parameter of the model is left to train"),
    ],
)
def test_what_the_model_cannot_do_is_refused(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(RecipeError, match=words):
        trained(tmp_path, recipe(**changes))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"optim": {"lbfgs": {}}, "train": {"precision": "bf16"}}, "take fp32"),
        ({"optim": {"muon": {}}, "prune": {"amount": 0.5}}, "take another optimizer"),
        ({"model": {**MODEL, "unfreeze_at": {"epoch": 2}}}, "give both"),
        ({"model": {**MODEL, "init": {"linear": "xavier"}}}, "'xavier_uniform'"),
        ({"train": {"ema": 1.0}}, "less than 1"),
    ],
)
def test_options_that_exclude_each_other_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        recipe(**changes)


def test_later_phases_go_on_with_what_still_fits() -> None:
    part = {**MODEL, "freeze": ["features.0.*"]}
    train = {"epochs": 9, "ema": 0.9, "precision": "bf16", "activation_checkpoint": ["features"]}
    optim = {"sgd": {"lr": 1.0}, "groups": [{"match": "head.*"}], "layer_decay": 0.5, "clip": 3}
    chosen = recipe(model=part, train=train, optim=optim, debug={"gradients": ["head.*"]})
    pruned = fine_tuning(chosen, "pruned", epochs=2, lr_share=0.1)
    assert pruned.model.freeze == ("features.0.*",)
    assert (pruned.train.epochs, pruned.train.ema, pruned.optim.chosen.lr) == (2, 0.9, 0.1)
    unfrozen = recipe(model={**part, "unfreeze_at": {"epoch": 2}})
    assert fine_tuning(unfrozen, "pruned", epochs=2, lr_share=0.1).model.freeze == ()
    # A network rewritten for 8 bits has other names.
    rounded = fine_tuning(chosen, "qat", epochs=2, lr_share=0.1)
    assert (rounded.model.freeze, rounded.optim.groups, rounded.debug.gradients) == ((), (), ())
    assert (rounded.train.ema, rounded.train.precision) == (None, "fp32")
    assert rounded.train.activation_checkpoint == ()
    assert (rounded.optim.layer_decay, rounded.optim.clip) == (None, chosen.optim.clip)
