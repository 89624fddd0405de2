"""The training loop: plain torch, to be read from top to bottom.

In: a recipe and its splits. Out: a model that holds the weights of its best epoch. Pruning, and
training for 8 bits, are the same loop again, each from the weights of the phase before.

Rules kept here: a run is a function of the recipe and the data. The order of rows comes from the
seed and the epoch, the learning rate from the step, and the checkpoint restores the rest, so a run
that was killed and resumed ends with the same weights, bit for bit on one CPU.
"""

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console
from safetensors.torch import load_model
from torch import Tensor, nn
from torch.nn import functional

from model_store.signature import Signature
from training.checkpoint import CheckpointFolder
from training.datasets import IGNORED_LABEL, Split, Splits
from training.errors import DivergedError, StoppedError
from training.later_phases import (
    example_of,
    fine_tuning,
    prune,
    quantization_aware,
    try_compression,
)
from training.model import build_model, first_output, try_model
from training.progress import TrainingProgress, open_progress, say
from training.pruning import zeros_held
from training.recipe import OptimPart, Recipe
from training.reproducibility import reproducible
from training.run_folder import PhaseFolder, RunFolder
from training.schedule import learning_rate_factor, teacher_forcing_share
from training.task_metric import Tally, tally
from training.trackers import open_trackers
from training.train_state import TrainState, after_epoch
from training.watcher import LaterPhase, Nobody, Watcher


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
        DivergedError: the loss is no longer a number.
    """
    watcher = watcher or Nobody()
    if not (resume and CheckpointFolder(folder.checkpoints).exists):
        folder.forget_phases()
    with reproducible(recipe.seed, recipe.train.threads):
        model = build_model(recipe, list(splits.train.inputs))
        signature = try_model(model, splits, recipe)
        try_compression(model, recipe, splits.train, signature)
        state = _learn(model, recipe, splits, folder, console, resume, watcher)
    weights, qat_weights = CheckpointFolder(folder.checkpoints).weights_path(state.best_epoch), None
    load_model(model, str(weights))
    later = partial(_fine_tune, splits=splits, console=console, resume=resume)
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
        state=state,
    )


def _fine_tune(
    model: nn.Module,
    recipe: Recipe,
    *,
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
        state = _learn(model, recipe, splits, folder, console, resume, watcher)
    weights = CheckpointFolder(folder.checkpoints).weights_path(state.best_epoch)
    load_model(model, str(weights))
    return weights, state


def _learn(
    model: nn.Module,
    recipe: Recipe,
    splits: Splits,
    folder: PhaseFolder,
    console: Console,
    resume: bool,
    watcher: Watcher,
) -> TrainState:
    """Epochs until they or the patience run out; the folder keeps the best weights."""
    optimizer = build_optimizer(model, recipe.optim)
    checkpoints = CheckpointFolder(folder.checkpoints)
    state = _start(checkpoints, model, optimizer, resume, console)
    rows = splits.train.rows
    with (
        open_trackers(recipe.track, folder, state.epoch) as trackers,
        open_progress(console, recipe, rows, state.epoch) as progress,
    ):
        while not state.finished:
            metrics = _train_epoch(model, optimizer, splits.train, recipe, state, progress)
            metrics |= evaluate(model, splits.validation, recipe, "val")
            state = after_epoch(state, metrics, recipe, steps_per_epoch(rows, recipe))
            for tracker in trackers:
                tracker.log(state.epoch, metrics)
            # The state comes last: until then a resumed run repeats this epoch.
            stopping = watcher.stop_asked
            due = state.finished or state.epoch % recipe.checkpoint.every_epochs == 0
            due = due or stopping
            if due or state.best_epoch == state.epoch:
                checkpoints.save_weights(model, state.epoch)
            if due:
                checkpoints.save_state(state, optimizer)
            progress.end_epoch(state.epoch, metrics)
            watcher.end_epoch(state.epoch, metrics)
            if stopping and not state.finished:
                raise StoppedError(f"stopped after epoch {state.epoch}; resume to go on")
    return state


def _train_epoch(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    split: Split,
    recipe: Recipe,
    state: TrainState,
    progress: TrainingProgress,
) -> dict[str, float]:
    """One pass over the training rows, N of them in each step."""
    total_steps = recipe.train.epochs * steps_per_epoch(split.rows, recipe)
    model.train()
    loss_sum, norm_sum, rate, step, labels_seen = 0.0, 0.0, 0.0, state.step, 0
    for inputs, labels in _shuffled_batches(split, recipe, state.epoch):
        rate = recipe.optim.adamw.lr * learning_rate_factor(step, total_steps, recipe.schedule)
        for group in optimizer.param_groups:
            group["lr"] = rate
        told = _told(labels, recipe, step, total_steps)
        logits = first_output(model(*inputs, **told))  # [N, K] or [N, T, K]
        loss = _loss(logits, labels, recipe)
        if not math.isfinite(loss.item()):
            raise DivergedError(
                f"the loss is {loss.item()} at step {step} (epoch {state.epoch + 1}, learning "
                f"rate {rate:.3g}); lower optim.adamw.lr ({recipe.optim.adamw.lr:g}) or optim.clip "
                f"({recipe.optim.clip}), and look for NaN in the inputs"
            )
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        limit = math.inf if recipe.optim.clip is None else recipe.optim.clip
        norm = nn.utils.clip_grad_norm_(model.parameters(), limit)
        optimizer.step()
        step += 1
        counted = _counted(labels)
        loss_sum += loss.item() * counted
        labels_seen += counted
        norm_sum += norm.item()
        progress.advance(len(labels))
    steps = step - state.step
    return {
        "train/loss": loss_sum / labels_seen,
        "train/gradient_norm": norm_sum / steps,
        "train/learning_rate": rate,
    }


def evaluate(model: nn.Module, split: Split, recipe: Recipe, name: str) -> dict[str, float]:
    """Loss and accuracy of a model over a split; `exact_match` too where a row has T labels.

    Args:
        model: put into evaluation mode.
        split: the rows.
        recipe: gives the loss and the batch size.
        name: goes before the metrics' names, as in `val/accuracy`.
    """
    model.eval()
    loss_sum, answers = 0.0, Tally()
    with torch.inference_mode():
        for start in range(0, split.rows, recipe.data.batch_size):
            rows = np.arange(start, min(start + recipe.data.batch_size, split.rows))
            inputs, labels = _batch(split, rows)
            logits = first_output(model(*inputs))
            loss_sum += _loss(logits, labels, recipe).item() * _counted(labels)
            answers += tally(logits.numpy(), split.labels[rows])
    metrics = {"loss": loss_sum / answers.labels, **answers.metrics()}
    return {f"{name}/{metric}": value for metric, value in metrics.items()}


def build_optimizer(model: nn.Module, optim: OptimPart) -> torch.optim.Optimizer:
    """AdamW; biases and norms (all that has one dimension) are spared from weight decay."""
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": optim.adamw.weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([g for g in groups if g["params"]], lr=optim.adamw.lr)


def steps_per_epoch(rows: int, recipe: Recipe) -> int:
    """Batches of one epoch; the last one may be short."""
    return math.ceil(rows / recipe.data.batch_size)


def _shuffled_batches(
    split: Split, recipe: Recipe, epoch: int
) -> Iterator[tuple[list[Tensor], Tensor]]:
    """All rows in an order that depends on the seed and the epoch alone."""
    order = np.random.default_rng((recipe.seed, epoch)).permutation(split.rows)
    for start in range(0, split.rows, recipe.data.batch_size):
        yield _batch(split, order[start : start + recipe.data.batch_size])


def _batch(split: Split, rows: npt.NDArray[np.int64]) -> tuple[list[Tensor], Tensor]:
    inputs = [torch.from_numpy(array[rows]) for array in split.inputs.values()]
    return inputs, torch.from_numpy(split.labels[rows])


def _loss(logits: Tensor, labels: Tensor, recipe: Recipe) -> Tensor:
    """The mean over all labels that count."""
    return functional.cross_entropy(
        logits.flatten(0, -2),
        labels.flatten(),
        label_smoothing=recipe.loss.cross_entropy.label_smoothing,
        ignore_index=IGNORED_LABEL,
    )


def _counted(labels: Tensor) -> int:
    return int((labels != IGNORED_LABEL).sum().item())


def _told(labels: Tensor, recipe: Recipe, step: int, total_steps: int) -> dict[str, Any]:
    """What a model that writes sequences is given in training, beside its inputs."""
    forcing = recipe.train.teacher_forcing
    if forcing is None:
        return {}
    share = teacher_forcing_share(step, total_steps, forcing)
    return {"targets": labels, "teacher_forcing": share}


def _start(
    checkpoints: CheckpointFolder,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    resume: bool,
    console: Console,
) -> TrainState:
    if resume and checkpoints.exists:
        state = checkpoints.load(model, optimizer)
        say(console, f"resuming after epoch {state.epoch} from {checkpoints.path}")
        return state
    if resume:
        say(console, f"nothing to resume in {checkpoints.path}; starting anew")
    checkpoints.clear()
    return TrainState()
