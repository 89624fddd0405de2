"""Looking at a run: figures that are right, words that help, and not one bit changed."""

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

from tests.unit.training.loop.optimization.test_optimizers import batches, network, stepper
from tests.unit.training.recipes import DATA, recipe, splits
from training import networks
from training.errors import DivergedError, RecipeError
from training.loading.row_order import shuffled
from training.loop.checkpoint import CheckpointFolder
from training.loop.loop import Trained, train
from training.loop.optimization import optimizer_step
from training.loop.optimization.optimizers import build_optimizer
from training.network.debugging import watched
from training.network.model import build_model
from training.recipe.parts.debug_parts import DebugPart
from training.recipe.recipe import Recipe
from training.run_folder import RunFolder

EPOCH_STEPS = 5
"""80 rows in batches of 16."""


def trained(runs: Path, chosen: Recipe) -> Trained:
    folder = RunFolder(runs, chosen, DATA)
    with folder.locked():
        return train(chosen, splits(), folder, Console(file=io.StringIO()))


class RootOfZero(nn.Module):
    """Its loss is a number, and its gradient is not.

    Args:
        healthy_steps: in which it is one.
    """

    def __init__(self, healthy_steps: int = 0) -> None:
        super().__init__()
        self.head = nn.Linear(64, 3)
        self.healthy_steps = healthy_steps

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(image.flatten(1))
        if self.training and torch.is_grad_enabled():
            self.healthy_steps -= 1
        return logits + (logits - logits.detach()).sqrt() if self.healthy_steps < 0 else logits


def test_sizes_of_gradients_and_activations_are_means_over_the_steps() -> None:
    model, norms, sizes = network(), [], []
    moved = stepper(model, recipe(optim={"clip": None}))
    with watched(model, DebugPart(gradients=("3.*",), activations=("1",))) as watch:
        for step, batch in enumerate(batches()[:2]):
            with torch.no_grad():
                first = nn.functional.linear(
                    batch.inputs[0].flatten(1), model.get_parameter("1.weight")
                )
            sizes.append(first.square().mean().sqrt().item())
            moved.step([batch], step, 1.0)
            watch.after_step()
            gradient = model.get_parameter("3.weight").grad
            assert gradient is not None
            norms.append(gradient.norm().item())
        with torch.inference_mode():
            model(*batches()[3].inputs)  # evaluation does not count
    assert watch.metrics() == pytest.approx(
        {"gradients/3.weight": sum(norms) / 2, "activations/1": sum(sizes) / 2}
    )
    assert watch.metrics() == {}
    last = model.get_parameter("3.weight").grad
    assert last is not None
    assert torch.equal(watch.histograms()["gradients/3.weight"], last.flatten())


def test_what_comes_back_to_a_layer_is_looked_at_and_evaluation_is_not() -> None:
    model, batch = network(), batches()[0]
    with watched(model, DebugPart(backward=("3",))) as watch:
        logits = model(*batch.inputs)
        nn.functional.cross_entropy(logits, batch.labels).backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            model(*batch.inputs)
    chosen = nn.functional.one_hot(batch.labels, logits.shape[1])
    expected = (logits.softmax(1) - chosen) / len(logits)
    assert watch.metrics() == pytest.approx(
        {"backward/3": expected.square().mean().sqrt().item()}, rel=1e-4
    )
    torch.testing.assert_close(watch.histograms()["backward/3"], expected.detach().flatten())


def test_a_watched_run_ends_with_the_same_bits_and_its_figures_are_tracked(tmp_path: Path) -> None:
    layers = ["features.[02]"]
    debug = {
        "anomaly": True, "gradients": ["head.*"], "activations": layers, "backward": layers
    }  # fmt: skip
    plain = recipe(train={"epochs": 2, "threads": 1})
    chosen = recipe(
        train={"epochs": 2, "threads": 1}, debug=debug, profile={"wait": 1, "active": 2}
    )
    assert chosen.training_digest() == plain.training_digest()
    expected = trained(tmp_path / "plain", plain).weights.read_bytes()
    assert trained(tmp_path / "watched", chosen).weights.read_bytes() == expected
    assert not torch.is_anomaly_enabled()

    folder = RunFolder(tmp_path / "watched", chosen, DATA)
    names = {"gradients/head.2.weight", "gradients/head.2.bias"}
    kinds = ("gradients", "activations", "backward")
    names |= {f"{kind}/features.{place}" for kind in kinds[1:] for place in (0, 2)}
    for line in folder.metrics.read_text().splitlines():
        figures = json.loads(line)
        assert names == {name for name in figures if name.startswith(kinds)}
        assert all(figures[name] > 0 for name in names)
    events = EventAccumulator(str(folder.tensorboard), size_guidance={"histograms": 0})
    events.Reload()
    assert set(events.Tags()["histograms"]) == names
    assert [event.step for event in events.Histograms("activations/features.0")] == [1, 2]
    trace = json.loads(folder.profile.read_text())
    steps = [e["name"] for e in trace["traceEvents"] if "ProfilerStep" in e.get("name", "")]
    assert {"ProfilerStep#2", "ProfilerStep#3"} <= set(steps)


@pytest.mark.parametrize("part", [{"gradients": ["tail.*"]}, {"activations": ["tail"]}])
def test_a_pattern_that_fits_nothing_is_named(part: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"'tail.* fits nothing of the model"):
        trained(tmp_path, recipe(debug=part))


def test_a_lost_run_names_step_rows_norms_and_keeps_the_last_good_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blow_up = EPOCH_STEPS + 1

    def factor(step: int, *others: Any) -> float:
        return 1e37 if step == blow_up else 0.1

    monkeypatch.setattr(optimizer_step, "learning_rate_factor", factor)
    chosen = recipe(train={"epochs": 3}, optim={"sgd": {"lr": 10.0}})
    with pytest.raises(DivergedError) as error:
        trained(tmp_path, chosen)
    text = str(error.value)
    assert re.match(rf"the loss is (nan|inf) at step {blow_up + 1} \(epoch 2,", text)
    assert "lower optim.sgd.lr (10) or optim.clip" in text
    assert "the first output that is not finite is that of '" in text
    norms = text.split("steps before: ")[1].split(";")[0].split(", ")
    assert len(norms) == 5
    assert all(float(norm) > 0 for norm in norms)
    largest = text.split("largest first: ")[1].split(";")[0].split(", ")
    assert len(largest) == 5
    assert all(name.split(".")[0] in ("features", "head") for name in largest)
    rows = text.split("rows of the batch: ")[1].split(";")[0].split(", ")
    assert len({int(row) for row in rows}) == 16

    model = build_model(chosen)
    checkpoints = CheckpointFolder(RunFolder(tmp_path, chosen, DATA).checkpoints)
    state = checkpoints.load(model, build_optimizer(model, chosen.optim))
    assert (state.epoch, state.step) == (1, EPOCH_STEPS)
    assert all(parameter.isfinite().all() for parameter in model.parameters())


@pytest.mark.filterwarnings("ignore:Error detected in")  # torch says in which line of forward
@pytest.mark.parametrize(
    ("anomaly", "words"),
    [
        (False, r"the gradient's norm is nan at step 0 .*debug.anomaly=true shows"),
        (True, r"a gradient is not finite at step 0 .*AddmmBackward0"),
    ],
)
def test_a_gradient_that_is_no_number_never_reaches_the_weights(
    anomaly: bool, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = RootOfZero()
    before = model.head.weight.detach().clone()
    monkeypatch.setattr(networks, "root", lambda: model, raising=False)
    chosen = recipe(model={"target": "training.networks:root"}, debug={"anomaly": anomaly})
    with pytest.raises(DivergedError, match=words):
        trained(tmp_path, chosen)
    assert torch.equal(model.head.weight, before)


@pytest.mark.parametrize("step", [EPOCH_STEPS + 2, 2 * EPOCH_STEPS - 1], ids=["midway", "last"])
def test_a_gradient_that_nothing_looked_at_is_named_by_its_own_step_before_anything_is_saved(
    step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = RootOfZero(healthy_steps=step)
    monkeypatch.setattr(networks, "root", lambda: model, raising=False)
    chosen = recipe(
        model={"target": "training.networks:root"}, optim={"clip": None}, train={"epochs": 3}
    )
    with pytest.raises(DivergedError) as error:
        trained(tmp_path, chosen)
    text = str(error.value)
    assert text.startswith(f"the weights are no longer finite at step {step} (epoch 2,")
    order = shuffled(80, chosen.seed, 1)[(step - EPOCH_STEPS) * 16 :][:16]
    assert f"rows of the batch: {', '.join(map(str, order))};" in text

    checkpoints = CheckpointFolder(RunFolder(tmp_path, chosen, DATA).checkpoints)
    kept = RootOfZero()
    state = checkpoints.load(kept, build_optimizer(kept, chosen.optim))
    assert state.step == EPOCH_STEPS
    assert kept.head.weight.isfinite().all()


@pytest.mark.parametrize(
    ("optim", "is_named"), [({"adamw": {}}, True), ({"lbfgs": {}}, False)], ids=["adamw", "lbfgs"]
)
def test_first_weights_that_are_no_numbers_are_named(
    optim: dict[str, Any], is_named: bool, tmp_path: Path
) -> None:
    """L-BFGS moves the weights within a step, so that they may be lost by its own doing."""
    model = network()
    with torch.no_grad():
        next(reversed(list(model.parameters())))[0, 0] = float("inf")
    with pytest.raises(DivergedError) as caught:
        stepper(model, recipe(optim=optim)).step([batches()[0]], 0, 1.0)
    text = str(caught.value)
    assert ("first weights that are not finite: 3.weight;" in text) is is_named
    assert ("lower optim" in text) is not is_named


def test_inputs_that_are_no_numbers_are_named(tmp_path: Path) -> None:
    batch = batches()[0]
    batch.inputs[0][3, 0, 0, 0] = float("nan")
    model = network()
    with pytest.raises(DivergedError, match="input 0 of the model is not finite"):
        stepper(model, recipe()).step([batch], 0, 1.0)
