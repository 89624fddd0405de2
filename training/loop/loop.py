"""The training loop: plain torch, to be read from top to bottom.

In: a recipe and its splits. Out: a model that holds the weights of its best epoch. Pruning, and
training for 8 bits, are the same loop again, each from the weights of the phase before.

Rules kept here: a run is a function of the recipe and the data. The order of rows comes from the
seed and the epoch (`training.loading.loader`), the learning rate from the step, and the checkpoint
restores the rest, so a run that was killed at any step and resumed ends with the same weights, bit
for bit on one CPU.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from safetensors.torch import load_model
from torch import nn

from model_store.manifest import Parent
from model_store.signature import Signature
from training.datasets import Splits
from training.distributed.batch_norms import batch_norms_shared
from training.distributed.ranks import ALONE, Ranks
from training.distributed.replica import Replica
from training.errors import StoppedError
from training.loading.loader import Loader
from training.loop.activation_checkpoint import activations_recomputed
from training.loop.checkpoint import CheckpointFolder
from training.loop.compilation import compiling
from training.loop.compression.later_phases import (
    example_of,
    fine_tuning,
    prune,
    quantization_aware,
    try_compression,
)
from training.loop.compression.pruning import MidwayPruning, zeros_held
from training.loop.debugging import profiled, watched
from training.loop.device import CPU, training_device
from training.loop.evaluation import evaluate
from training.loop.freezing import Freezing
from training.loop.norm_rows import check_norm_rows
from training.loop.objective import Objective, make_objective
from training.loop.optimization.optimizer_step import Stepper
from training.loop.optimization.optimizers import build_optimizer
from training.loop.optimization.weight_average import WeightAverage
from training.loop.out_of_memory import memory_named
from training.loop.run_checkpoints import RunCheckpoints
from training.loop.shared_checkpoint import SharedCheckpoints
from training.loop.train_state import TrainState, after_epoch
from training.loop.transfer import FirstWeights, TransferReport
from training.network.model import build_model, try_model
from training.process.kept_memory import freed_memory_kept
from training.process.reproducibility import reproducible, unwritten_memory_shown
from training.recipe.recipe import Recipe, TrainPart
from training.run_folder import PhaseFolder, RunFolder, write_atomically
from training.tracking.progress import TrainingProgress, open_progress, say
from training.tracking.trackers import HistogramTracker, open_trackers
from training.watcher import LaterPhase, NullWatcher, Watcher


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
    loss: Objective | None = None
    """What was minimised."""
    state: TrainState
    """How the run ended."""
    parent: Parent | None = None
    """The version it began with."""


@dataclass(frozen=True, slots=True)
class _Learned:
    """What a phase leaves behind."""

    state: TrainState
    """How it ended."""
    last_epoch: int | None
    """The epoch whose saved weights the model has; None where those are an average, or it has had
    but a share of them."""


@freed_memory_kept()
def train(
    recipe: Recipe,
    splits: Splits,
    folder: RunFolder,
    console: Console,
    resume: bool = False,
    watcher: Watcher | None = None,
    first: FirstWeights | None = None,
    ranks: Ranks = ALONE,
) -> Trained:
    """Trains until the epochs or the patience run out.

    With other ranks (see `assist`) until the training is over; phases behind it are this one's.

    Args:
        recipe: the run.
        splits: the data; the test split is not looked at.
        folder: keeps checkpoints and metrics.
        console: shows the progress.
        resume: goes on from the newest checkpoint, if there is one; otherwise starts anew.
        watcher: told of every epoch, and may end the run after any step.
        first: what the network begins with, where the recipe has `model.from`.
        ranks: who trains with this process, which is the first of them.

    Raises:
        TargetError: the model is no `nn.Module`, or cannot be made.
        StoppedError: the watcher asked for it.
        RecipeError: it cannot be pruned, or trained for 8 bits, as the recipe says, or a tracker or
            a device is not there.
        CheckpointError: the checkpoint is damaged, or the next one cannot be written.
        DataError: a row cannot be read, or has a label that is no class of the model.
        DivergedError: the loss or the validation is no longer a number; the last checkpoint stays.
        MemoryRunOutError: it needs more memory than there is; the last checkpoint stays.
    """
    watcher = watcher or NullWatcher()
    if not (resume and CheckpointFolder(folder.checkpoints).exists):
        folder.forget_phases()
    with reproducible(recipe.seed, recipe.train.threads, recipe.train.deterministic):
        model, signature, loss, transfer = _begin(recipe, splits, first)
        if first is not None and transfer is not None:
            write_atomically(folder.transfer, transfer.to_json())
            for line in transfer.lines():
                say(console, f"from {first.parent.words}: {line}")
        learned = _learn(model, recipe, loss, splits, folder, console, resume, watcher, ranks)
    state, weights, qat_weights = learned.state, _take_best(model, learned, folder), None
    later = partial(_fine_tune, loss=loss, splits=splits, console=console, resume=resume)
    if recipe.prune is not None and recipe.prune.at is None:
        say(console, prune(model, recipe.prune, example_of(splits.train)))
        tuned = fine_tuning(recipe, "pruned", *recipe.prune.fine_tuning)
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
        parent=None if first is None else first.parent,
    )


@freed_memory_kept()
def assist(
    recipe: Recipe,
    splits: Splits,
    folder: RunFolder,
    resume: bool,
    watcher: Watcher,
    first: FirstWeights | None,
    ranks: Ranks,
) -> None:
    """Trains along with the first rank, and leaves when the training is over.

    Args:
        recipe: the run.
        splits: the data, the same as there.
        folder: where checkpoints are read.
        resume: the same as there.
        watcher: may have all ranks end the run.
        first: the same as there.
        ranks: who trains with this process.

    Raises:
        TrainingError: see `train`.
    """
    quiet = Console(quiet=True)
    with reproducible(recipe.seed, recipe.train.threads, recipe.train.deterministic):
        model, _, loss, _ = _begin(recipe, splits, first)
        _learn(model, recipe, loss, splits, folder, quiet, resume, watcher, ranks)


def _begin(
    recipe: Recipe, splits: Splits, first: FirstWeights | None
) -> tuple[nn.Module, Signature, Objective, TransferReport | None]:
    """The untrained model, what it takes and gives, what it minimises, and what it began with."""
    model = build_model(recipe, list(splits.train.inputs))
    transfer = None if first is None else first.put_into(model)
    signature = try_model(model, splits, recipe)
    widths = [spec.shape[-1] for spec in signature.outputs]
    loss = make_objective(recipe, splits.train_labels, widths)
    try_compression(model, recipe, splits.train, signature)
    return model, signature, loss, transfer


def _fine_tune(
    model: nn.Module,
    recipe: Recipe,
    *,
    loss: Objective,
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
    with reproducible(recipe.seed, recipe.train.threads, recipe.train.deterministic), held:
        learned = _learn(model, recipe, loss, splits, folder, console, resume, watcher)
    return _take_best(model, learned, folder), learned.state


def _take_best(model: nn.Module, learned: _Learned, folder: PhaseFolder) -> Path:
    """Gives the model of a phase the weights of its best epoch.

    Returns:
        Where they lie.
    """
    best = learned.state.best_epoch
    weights = CheckpointFolder(folder.checkpoints).weights_path(best)
    if learned.last_epoch != best:  # reading them takes their memory once more
        load_model(model, str(weights))
    return weights


def _learn(
    model: nn.Module,
    recipe: Recipe,
    loss: Objective,
    splits: Splits,
    folder: PhaseFolder,
    console: Console,
    resume: bool,
    watcher: Watcher,
    ranks: Ranks = ALONE,
) -> _Learned:
    """Epochs until they or the patience run out; the folder keeps the best weights."""
    device = training_device(recipe.train.device)
    with memory_named(recipe):  # it alone may be too large for a GPU
        whole = model.to(device)
        replica = Replica(whole, recipe.train, ranks)
        model = replica.module
        freezing = Freezing(model, recipe.model)
        optimizer = build_optimizer(model, recipe.optim)
        average = WeightAverage(model, recipe.train.ema)
        evaluated = average.evaluated
    checkpoints = SharedCheckpoints(folder.checkpoints, replica, recipe.seed)
    with (
        memory_named(recipe),
        contextlib.closing(Loader(splits, recipe, ranks, loss.classes)) as loader,
        _as_it_learns(model, recipe.train, device, replica),
        watched(model, recipe.debug) as watch,
        profiled(recipe.profile if ranks.is_first else None, folder.profile) as profile_step,
    ):
        held = freezing.held_for_good
        check_norm_rows(whole, held, splits.train, loader.rows, recipe, ranks)
        stepper = Stepper(model, optimizer, recipe, loss, loader.steps, average, replica)
        run = RunCheckpoints(recipe, checkpoints, evaluated, optimizer, stepper, watch, watcher)
        pruning = MidwayPruning(recipe, loader.steps, model, evaluated, optimizer, console)
        state = run.begin(resume, console)
        pruning.go_on(state.step)
        replica.begin()
        after_step = (watch.after_step, profile_step)
        tracked = recipe if ranks.is_first else recipe.model_copy(update={"track": ()})
        before = min(state.in_epoch * loader.step_rows, loader.rows)
        with (
            open_trackers(tracked, folder, state.epoch) as trackers,
            open_progress(console, recipe, loader.rows, state.epoch, before) as progress,
        ):
            while not state.finished:
                model.train()
                freezing.begin_epoch(state.epoch + 1)
                metrics = _train_epoch(run, loader, state, progress, pruning, after_step)
                replica.share_buffers(evaluated)
                metrics |= evaluate(evaluated, splits.validation, recipe, "val", loss, ranks)
                metrics |= watch.metrics()
                state = ranks.decided(after_epoch(state, metrics, recipe, loader.steps))
                for tracker in trackers:
                    if isinstance(tracker, HistogramTracker):
                        tracker.log_histograms(state.epoch, watch.histograms())
                    tracker.log(state.epoch, metrics)
                # The state comes last: until then a resumed run repeats what came behind it.
                stopping = run.end_epoch(state)
                progress.end_epoch(state.epoch, metrics)
                if ranks.is_first:
                    watcher.end_epoch(state.epoch, metrics)
                if stopping and not state.finished:
                    raise StoppedError(f"stopped after epoch {state.epoch}; resume to go on")
    optimizer.zero_grad()  # the last step's gradients take as much memory as the weights
    freezing.release()
    pruning.close()
    whole.to(CPU)
    ranks.leave()
    return _Learned(state, state.epoch if evaluated is whole else None)


@contextlib.contextmanager
def _as_it_learns(
    model: nn.Module, part: TrainPart, device: torch.device, replica: Replica
) -> Iterator[None]:
    """While the block lasts, the model runs as the recipe says of training."""
    with (
        compiling(part.compile, device),
        batch_norms_shared(model, part.sync_batch_norm, replica),
        activations_recomputed(model, part.activation_checkpoint),
    ):
        yield


def _train_epoch(
    run: RunCheckpoints,
    loader: Loader,
    state: TrainState,
    progress: TrainingProgress,
    pruning: MidwayPruning,
    after_step: Sequence[Callable[[], None]],
) -> dict[str, float]:
    """One pass over the training rows, or what is left of it."""
    since, waited_s = time.perf_counter(), loader.waited_s
    first_step = state.step - state.in_epoch
    windows = enumerate(loader.windows(state.epoch, state.in_epoch), state.in_epoch)
    with unwritten_memory_shown() as shown:
        for number, window in windows:
            pruning.before_step(first_step + number)
            run.figures.add(run.stepper.step(window, first_step + number, state.rate_factor))
            shown()
            for look in after_step:
                look()
            progress.advance(loader.rows_of(number))
            run.end_step(state, number + 1)
    metrics = run.end_figures()
    share = (loader.waited_s - waited_s) / max(time.perf_counter() - since, 1e-9)
    return {**metrics, "train/wait_share": share}
