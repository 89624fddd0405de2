"""The training loop: plain torch, to be read from top to bottom.

In: a recipe and its splits. Out: a model that holds the weights of its best epoch. Pruning, and
training for 8 bits, are the same loop again, each from the weights of the phase before.

Rules kept here: a run is a function of the recipe and the data. The order of rows comes from the
seed and the epoch, the learning rate from the step, and the checkpoint restores the rest, so a run
that was killed and resumed ends with the same weights, bit for bit on one CPU.
"""

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console
from safetensors.torch import load_model
from torch import nn

from model_store.signature import Signature
from training.activation_checkpoint import activations_recomputed
from training.checkpoint import CheckpointFolder
from training.datasets import Split, Splits
from training.debugging import profiled, watched
from training.errors import StoppedError
from training.freezing import Freezing
from training.later_phases import (
    example_of,
    fine_tuning,
    prune,
    quantization_aware,
    try_compression,
)
from training.losses import Loss, make_loss
from training.model import build_model, first_output, try_model
from training.optimizer_step import Batch, Stepper
from training.optimizers import build_optimizer
from training.progress import TrainingProgress, open_progress, say
from training.pruning import zeros_held
from training.recipe import Recipe
from training.reproducibility import reproducible
from training.run_folder import PhaseFolder, RunFolder
from training.task_metric import Tally, tally
from training.trackers import HistogramTracker, open_trackers
from training.train_state import TrainState, after_epoch
from training.watcher import LaterPhase, Nobody, Watcher
from training.weight_average import WeightAverage


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What a run leaves behind."""

    model: nn.Module
    """In evaluation mode, with the weights of the best epoch."""
    weights: Path
    """The same weights as safetensors."""
    qat_weights: Path | None = None
    """What the network became with rounding, for artifacts of `method: qat`."""
    signature: Signature
    """What it takes and gives."""
    loss: Loss | None = None
    """What was minimised."""
    state: TrainState
    """How the run ended."""


def train(
    recipe: Recipe,
    splits: Splits,
    folder: RunFolder,
    console: Console,
    resume: bool = False,
    watcher: Watcher | None = None,
) -> Trained:
    """Trains until the epochs or the patience run out.

    Args:
        recipe: the run.
        splits: the data; the test split is not looked at.
        folder: keeps checkpoints and metrics.
        console: shows the progress.
        resume: goes on from the newest checkpoint, if there is one; otherwise starts anew.
        watcher: told of every epoch, and may end the run after one.

    Raises:
        TargetError: the model is no `nn.Module`, or cannot be made.
        StoppedError: the watcher asked for it.
        RecipeError: it cannot be pruned, or trained for 8 bits, as the recipe says.
        CheckpointError: the checkpoint is damaged.
        DivergedError: the loss is no longer a number; the last checkpoint stays.
    """
    watcher = watcher or Nobody()
    if not (resume and CheckpointFolder(folder.checkpoints).exists):
        folder.forget_phases()
    with reproducible(recipe.seed, recipe.train.threads):
        model = build_model(recipe, list(splits.train.inputs))
        signature = try_model(model, splits, recipe)
        loss = make_loss(recipe.loss, splits.train.labels, signature.outputs[0].shape[-1])
        try_compression(model, recipe, splits.train, signature)
        state = _learn(model, recipe, loss, splits, folder, console, resume, watcher)
    weights, qat_weights = CheckpointFolder(folder.checkpoints).weights_path(state.best_epoch), None
    load_model(model, str(weights))
    later = partial(_fine_tune, loss=loss, splits=splits, console=console, resume=resume)
    if recipe.prune is not None:
        say(console, prune(model, recipe.prune, example_of(splits.train)))
        tuned = fine_tuning(recipe, "pruned", recipe.prune.fine_tune_epochs, recipe.prune.lr_share)
        watcher = LaterPhase(watcher, state.epoch)
        weights, state = later(model, tuned, folder=folder.phase("prune"), watcher=watcher)
    if recipe.qat is not None:
        tuned = fine_tuning(recipe, "qat", recipe.qat.epochs, recipe.qat.lr_share)
        rounding = quantization_aware(model.eval(), recipe, splits.train, signature)
        watcher = LaterPhase(watcher, state.epoch)
        qat_weights, _ = later(rounding, tuned, folder=folder.phase("qat"), watcher=watcher)
    return Trained(
        model=model.eval(),
        weights=weights,
        qat_weights=qat_weights,
        signature=signature,
        loss=loss,
        state=state,
    )


def _fine_tune(
    model: nn.Module,
    recipe: Recipe,
    *,
    loss: Loss,
    splits: Splits,
    folder: PhaseFolder,
    console: Console,
    resume: bool,
    watcher: Watcher,
) -> tuple[Path, TrainState]:
    """A phase behind the training, with the zeros of pruning held; the model gets its best weights.

    It is a function of the recipe, the data and the weights it begins with, as training is of the
    first two.
    """
    held = contextlib.nullcontext() if recipe.prune is None else zeros_held(model)
    with reproducible(recipe.seed, recipe.train.threads), held:
        state = _learn(model, recipe, loss, splits, folder, console, resume, watcher)
    weights = CheckpointFolder(folder.checkpoints).weights_path(state.best_epoch)
    load_model(model, str(weights))
    return weights, state


def _learn(
    model: nn.Module,
    recipe: Recipe,
    loss: Loss,
    splits: Splits,
    folder: PhaseFolder,
    console: Console,
    resume: bool,
    watcher: Watcher,
) -> TrainState:
    """Epochs until they or the patience run out; the folder keeps the best weights."""
    freezing = Freezing(model, recipe.model)
    optimizer = build_optimizer(model, recipe.optim)
    epoch_steps = steps_per_epoch(splits.train.rows, recipe)
    average = WeightAverage(model, recipe.train.ema)
    stepper = Stepper(model, optimizer, recipe, loss, epoch_steps, average)
    checkpoints = CheckpointFolder(folder.checkpoints)
    state = _start(checkpoints, average.evaluated, optimizer, stepper, resume, console)
    with (
        activations_recomputed(model, recipe.train.activation_checkpoint),
        watched(model, recipe.debug) as watch,
        profiled(recipe.profile, folder.profile) as profile_step,
        open_trackers(recipe.track, folder, state.epoch) as trackers,
        open_progress(console, recipe, splits.train.rows, state.epoch) as progress,
    ):
        while not state.finished:
            model.train()
            freezing.begin_epoch(state.epoch + 1)
            after_step = (watch.after_step, profile_step)
            metrics = _train_epoch(stepper, splits.train, recipe, state, progress, after_step)
            metrics |= evaluate(average.evaluated, splits.validation, recipe, "val", loss)
            metrics |= watch.metrics()
            state = after_epoch(state, metrics, recipe, epoch_steps)
            for tracker in trackers:
                if isinstance(tracker, HistogramTracker):
                    tracker.log_histograms(state.epoch, watch.histograms())
                tracker.log(state.epoch, metrics)
            # The state comes last: until then a resumed run repeats this epoch.
            stopping = watcher.stop_asked
            due = state.finished or state.epoch % recipe.checkpoint.every_epochs == 0
            due = due or stopping
            if due or state.best_epoch == state.epoch:
                checkpoints.save_weights(average.evaluated, state.epoch)
            if due:
                checkpoints.save_state(state, optimizer, stepper.state())
            progress.end_epoch(state.epoch, metrics)
            watcher.end_epoch(state.epoch, metrics)
            if stopping and not state.finished:
                raise StoppedError(f"stopped after epoch {state.epoch}; resume to go on")
    freezing.release()
    return state


def _train_epoch(
    stepper: Stepper,
    split: Split,
    recipe: Recipe,
    state: TrainState,
    progress: TrainingProgress,
    after_step: Sequence[Callable[[], None]],
) -> dict[str, float]:
    """One pass over the training rows."""
    loss_sum, norm_sum, weight, step, rate = 0.0, 0.0, 0.0, state.step, 0.0
    for window in _windows(_shuffled_batches(split, recipe, state.epoch), recipe.optim.accumulate):
        found = stepper.step(window, step, state.rate_factor)
        step += 1
        loss_sum += found.loss * found.weight
        weight += found.weight
        norm_sum += found.gradient_norm
        rate = found.learning_rate
        for look in after_step:
            look()
        progress.advance(sum(len(batch.rows) for batch in window))
    return {
        "train/loss": loss_sum / weight,
        "train/gradient_norm": norm_sum / (step - state.step),
        "train/learning_rate": rate,
    }


def evaluate(
    model: nn.Module, split: Split, recipe: Recipe, name: str, loss: Loss | None = None
) -> dict[str, float]:
    """Loss and accuracy of a model over a split; `exact_match` too where a row has T labels.

    Args:
        model: put into evaluation mode.
        split: the rows.
        recipe: gives the batch size.
        name: goes before the metrics' names, as in `val/accuracy`.
        loss: what is minimised; None makes it from the recipe and this split.
    """
    model.eval()
    loss_sum, weight_sum, answers = 0.0, 0.0, Tally()
    with torch.inference_mode():
        for start in range(0, split.rows, recipe.data.batch_size):
            rows = np.arange(start, min(start + recipe.data.batch_size, split.rows))
            batch = _batch(split, rows)
            logits = first_output(model(*batch.inputs))
            loss = loss or make_loss(recipe.loss, split.labels, logits.shape[-1])
            weight = loss.weight_of(batch.labels)
            loss_sum += loss.of(logits, batch.labels).item() * weight
            weight_sum += weight
            answers += tally(logits.numpy(), split.labels[rows])
    metrics = {"loss": loss_sum / weight_sum, **answers.metrics()}
    return {f"{name}/{metric}": value for metric, value in metrics.items()}


def steps_per_epoch(rows: int, recipe: Recipe) -> int:
    """Steps of the optimizer in one epoch; the last batch may be short, and the last window."""
    return math.ceil(math.ceil(rows / recipe.data.batch_size) / recipe.optim.accumulate)


def _windows(batches: Iterator[Batch], size: int) -> Iterator[list[Batch]]:
    """Groups of batches, the last of which may be short."""
    while window := list(itertools.islice(batches, size)):
        yield window


def _shuffled_batches(split: Split, recipe: Recipe, epoch: int) -> Iterator[Batch]:
    """All rows in an order that depends on the seed and the epoch alone."""
    order = np.random.default_rng((recipe.seed, epoch)).permutation(split.rows)
    for start in range(0, split.rows, recipe.data.batch_size):
        yield _batch(split, order[start : start + recipe.data.batch_size])


def _batch(split: Split, rows: npt.NDArray[np.int64]) -> Batch:
    inputs = [torch.from_numpy(array[rows]) for array in split.inputs.values()]
    return Batch(rows, inputs, torch.from_numpy(split.labels[rows]))


def _start(
    checkpoints: CheckpointFolder,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    stepper: Stepper,
    resume: bool,
    console: Console,
) -> TrainState:
    if resume and checkpoints.exists:
        state = checkpoints.load(model, optimizer, stepper.restore)
        say(console, f"resuming after epoch {state.epoch} from {checkpoints.path}")
        return state
    if resume:
        say(console, f"nothing to resume in {checkpoints.path}; starting anew")
    checkpoints.clear()
    return TrainState()
