"""The training loop in plain PyTorch; read it from top to bottom.

In: a recipe and its splits. Out: a model with the weights of its best epoch. Pruning, and
quantization-aware training, run the same loop again, each from the weights of the phase before.

Rules: a run is a function of the recipe and the data. The order of rows comes from the seed and the
epoch (`training.loading.loader`), the learning rate from the step, and the checkpoint restores the
rest, so a run that was killed at any step and resumed ends with the same weights, bit for bit on
one CPU.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from rich.console import Console
from safetensors.torch import load_model
from torch import nn

from flambeau.protocol.signature import Signature
from model_store.manifest import DataFile, Parent
from training.distributed.batch_norms import batch_norms_shared
from training.distributed.ranks import ALONE, Ranks
from training.distributed.replica import Replica
from training.errors import StoppedError
from training.loading.loader import Loader
from training.loading.splits import Splits
from training.loop.activation_checkpoint import activations_recomputed
from training.loop.checkpoint import CheckpointFolder
from training.loop.compression.later_phases import (
    example_of,
    fine_tuning,
    prune,
    quantization_aware,
    try_compression,
)
from training.loop.compression.pruning import MidwayPruning, zeros_held
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
from training.network.debugging import Watch, profiled, watched
from training.network.model import build_model, try_model
from training.process.compilation import compiling
from training.process.kept_memory import freed_memory_kept
from training.process.reproducibility import reproducible, unwritten_memory_shown
from training.recipe.parts.train_parts import TrainPart
from training.recipe.recipe import Recipe
from training.run_folder import PhaseFolder, RunFolder, write_atomically
from training.tracking.progress import TrainingProgress, open_progress, say
from training.tracking.trackers import HistogramTracker, open_trackers
from training.watcher import LaterPhase, NullWatcher, Watcher


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """The result of a run."""

    model: nn.Module
    """In evaluation mode, with the weights of the best epoch."""
    weights: Path
    """The same weights as safetensors."""
    qat_weights: Path | None = None
    """Weights of quantization-aware training, for artifacts of `method: qat`."""
    signature: Signature
    """Inputs and outputs of the model."""
    loss: Objective | None = None
    """The objective that was minimised."""
    state: TrainState
    """The state at the end of the run."""
    parent: Parent | None = None
    """The version that the training started from."""
    given: DataFile | None = None
    """The file of the weights, if they were not trained by this run."""


@dataclass(frozen=True, slots=True)
class _Phase:
    """The inputs of a phase of the run, besides its model."""

    recipe: Recipe
    loss: Objective
    splits: Splits
    folder: PhaseFolder
    console: Console
    resume: bool
    watcher: Watcher
    ranks: Ranks = ALONE


@dataclass(frozen=True, slots=True)
class _Parts:
    """The objects that train the model of a phase."""

    model: nn.Module
    evaluated: nn.Module
    """The model itself, or the average of its weights."""
    replica: Replica
    freezing: Freezing
    loader: Loader
    run: RunCheckpoints
    pruning: MidwayPruning
    watch: Watch
    after_step: Sequence[Callable[[], None]]


@dataclass(frozen=True, slots=True)
class _Learned:
    """The result of a phase."""

    state: TrainState
    """The state at its end."""
    last_epoch: int | None
    """The epoch whose saved weights the model has; None if the saved weights are an average, or the
    model has only a shard of them."""


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

    Other ranks share the training (see `assist`); this rank alone runs the phases after it.

    Args:
        recipe: the run.
        splits: the data; the test split is not used.
        folder: the run's folder of checkpoints and metrics.
        console: shows the progress.
        resume: True to resume from the newest checkpoint, if there is one; otherwise starts anew.
        watcher: receives every epoch, and may end the run after any step.
        first: weights to start from, if the recipe has `model.from`.
        ranks: all ranks of the run; this process is the first of them.

    Raises:
        TargetError: the model is no `nn.Module`, or cannot be made.
        StoppedError: the watcher requested it.
        RecipeError: pruning or quantization-aware training is impossible as the recipe has it, or a
            tracker or a device is missing.
        CheckpointError: the checkpoint is damaged, or the next one cannot be written.
        DataError: a row cannot be read, or has a label that is no class of the model.
        DivergedError: the loss or the validation is no longer a number; the last checkpoint stays.
        MemoryRunOutError: memory ran out; the last checkpoint stays.
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
        phase = _Phase(recipe, loss, splits, folder, console, resume, watcher, ranks)
        learned = _learn(model, phase)
    weights, state, qat_weights = _later_phases(model, signature, folder, phase, learned)
    return Trained(
        model=model.eval(),
        weights=weights,
        qat_weights=qat_weights,
        signature=signature,
        loss=loss,
        state=state,
        parent=None if first is None else first.parent,
    )


def _later_phases(
    model: nn.Module, signature: Signature, folder: RunFolder, phase: _Phase, learned: _Learned
) -> tuple[Path, TrainState, Path | None]:
    """Runs pruning and quantization-aware training, if the recipe has them.

    Returns:
        The path of the best weights, their state, and the path of the 8-bit form's weights.
    """
    recipe, watcher = phase.recipe, phase.watcher
    state, weights, qat_weights = learned.state, _take_best(model, learned, folder), None
    if recipe.prune is not None and recipe.prune.at is None:
        say(phase.console, prune(model, recipe.prune, example_of(phase.splits.train)))
        tuned = fine_tuning(recipe, "pruned", *recipe.prune.fine_tuning)
        watcher = LaterPhase(watcher, state.epoch)
        later = replace(phase, recipe=tuned, folder=folder.phase("prune"), watcher=watcher)
        weights, state = _fine_tune(model, later)
    if recipe.qat is not None:
        tuned = fine_tuning(recipe, "qat", recipe.qat.epochs, recipe.qat.lr_share)
        rounding = quantization_aware(model.eval(), recipe, phase.splits.train, signature)
        watcher = LaterPhase(watcher, state.epoch)
        later = replace(phase, recipe=tuned, folder=folder.phase("qat"), watcher=watcher)
        qat_weights, _ = _fine_tune(rounding, later)
    return weights, state, qat_weights


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
    """Trains together with the first rank, and returns when the training is over.

    Args:
        recipe: the run.
        splits: the data, the same as on the first rank.
        folder: the folder that checkpoints are read from.
        resume: the same value as on the first rank.
        watcher: may end the run on all ranks.
        first: the same weights as on the first rank.
        ranks: all ranks of the run.

    Raises:
        TrainingError: see `train`.
    """
    quiet = Console(quiet=True)
    with reproducible(recipe.seed, recipe.train.threads, recipe.train.deterministic):
        model, _, loss, _ = _begin(recipe, splits, first)
        _learn(model, _Phase(recipe, loss, splits, folder, quiet, resume, watcher, ranks))


def _begin(
    recipe: Recipe, splits: Splits, first: FirstWeights | None
) -> tuple[nn.Module, Signature, Objective, TransferReport | None]:
    """Returns the untrained model, its signature, its objective, and the transferred weights."""
    model = build_model(recipe, list(splits.train.inputs))
    transfer = None if first is None else first.put_into(model)
    signature = try_model(model, splits, recipe)
    widths = [spec.shape[-1] for spec in signature.outputs]
    loss = make_objective(recipe, splits.train_labels, widths)
    try_compression(model, recipe, splits.train, signature)
    return model, signature, loss, transfer


def _fine_tune(model: nn.Module, phase: _Phase) -> tuple[Path, TrainState]:
    """Runs a phase after the training, with pruned weights held at zero; loads its best weights.

    It is a function of the recipe, the data and the initial weights, as training is of the first
    two.
    """
    recipe, phase = phase.recipe, replace(phase, ranks=ALONE)
    held = contextlib.nullcontext() if recipe.prune is None else zeros_held(model)
    with reproducible(recipe.seed, recipe.train.threads, recipe.train.deterministic), held:
        learned = _learn(model, phase)
    return _take_best(model, learned, phase.folder), learned.state


def _take_best(model: nn.Module, learned: _Learned, folder: PhaseFolder) -> Path:
    """Loads the weights of a phase's best epoch into the model.

    Returns:
        The path of the weights.
    """
    best = learned.state.best_epoch
    weights = CheckpointFolder(folder.checkpoints).weights_path(best)
    if learned.last_epoch != best:  # loading them takes their memory once more
        load_model(model, str(weights))
    return weights


def _learn(model: nn.Module, phase: _Phase) -> _Learned:
    """Runs epochs until they or the patience run out; the folder keeps the best weights."""
    recipe, ranks = phase.recipe, phase.ranks
    device = training_device(recipe.train.device)
    with memory_named(recipe):  # the model alone may be too large for a GPU
        whole = model.to(device)
        replica = Replica(whole, recipe.train, ranks)
        model = replica.module
        freezing = Freezing(model, recipe.model)
        optimizer = build_optimizer(model, recipe.optim)
        average = WeightAverage(model, recipe.train.ema)
        evaluated = average.evaluated
    checkpoints = SharedCheckpoints(phase.folder.checkpoints, replica, recipe.seed)
    with (
        memory_named(recipe),
        contextlib.closing(Loader(phase.splits, recipe, ranks, phase.loss.classes)) as loader,
        _as_it_learns(model, recipe.train, device, replica),
        watched(model, recipe.debug) as watch,
        profiled(recipe.profile if ranks.is_first else None, phase.folder.profile) as profile_step,
    ):
        held = freezing.held_for_good
        check_norm_rows(whole, held, phase.splits.train, loader.rows, recipe, ranks)
        stepper = Stepper(model, optimizer, recipe, phase.loss, loader.steps, average, replica)
        run = RunCheckpoints(
            recipe, checkpoints, evaluated, optimizer, stepper, watch, phase.watcher
        )
        pruning = MidwayPruning(recipe, loader.steps, model, evaluated, optimizer, phase.console)
        state = run.begin(phase.resume, phase.console)
        pruning.go_on(state.step)
        replica.begin()
        after_step = (watch.after_step, profile_step)
        parts = _Parts(model, evaluated, replica, freezing, loader, run, pruning, watch, after_step)
        state = _run_epochs(phase, parts, state)
    optimizer.zero_grad()  # the last step's gradients take as much memory as the weights
    freezing.release()
    pruning.close()
    whole.to(CPU)
    ranks.leave()
    return _Learned(state, state.epoch if evaluated is whole else None)


def _run_epochs(phase: _Phase, parts: _Parts, state: TrainState) -> TrainState:
    """Trains, evaluates and saves epoch by epoch.

    Raises:
        StoppedError: the watcher requested it, before the last epoch.
    """
    recipe, ranks, loader = phase.recipe, phase.ranks, parts.loader
    tracked = recipe if ranks.is_first else recipe.model_copy(update={"track": ()})
    before = min(state.in_epoch * loader.step_rows, loader.rows)
    with (
        open_trackers(tracked, phase.folder, state.epoch) as trackers,
        open_progress(phase.console, recipe, loader.rows, state.epoch, before) as progress,
    ):
        while not state.finished:
            state, metrics = _run_epoch(phase, parts, state, progress)
            for tracker in trackers:
                if isinstance(tracker, HistogramTracker):
                    tracker.log_histograms(state.epoch, parts.watch.histograms())
                tracker.log(state.epoch, metrics)
            # The state is saved last: a resumed run repeats what came after the previous one.
            stopping = parts.run.end_epoch(state)
            progress.end_epoch(state.epoch, metrics)
            if ranks.is_first:
                phase.watcher.end_epoch(state.epoch, metrics)
            if stopping and not state.finished:
                raise StoppedError(f"stopped after epoch {state.epoch}; resume to continue")
    return state


def _run_epoch(
    phase: _Phase, parts: _Parts, state: TrainState, progress: TrainingProgress
) -> tuple[TrainState, dict[str, float]]:
    """Trains one epoch, or the rest of it, and evaluates. Returns the new state and the metrics."""
    recipe, ranks, loader = phase.recipe, phase.ranks, parts.loader
    parts.model.train()
    parts.freezing.begin_epoch(state.epoch + 1)
    metrics = _train_epoch(parts, state, progress)
    parts.replica.share_buffers(parts.evaluated)
    metrics |= evaluate(parts.evaluated, phase.splits.validation, recipe, "val", phase.loss, ranks)
    metrics |= parts.watch.metrics()
    return ranks.decided(after_epoch(state, metrics, recipe, loader.steps)), metrics


@contextlib.contextmanager
def _as_it_learns(
    model: nn.Module, part: TrainPart, device: torch.device, replica: Replica
) -> Iterator[None]:
    """Applies the recipe's options of training to the model, within the block."""
    with (
        compiling(part.compile, device),
        batch_norms_shared(model, part.sync_batch_norm, replica),
        activations_recomputed(model, part.activation_checkpoint),
    ):
        yield


def _train_epoch(parts: _Parts, state: TrainState, progress: TrainingProgress) -> dict[str, float]:
    """Trains one epoch, or the rest of it."""
    run, loader = parts.run, parts.loader
    since, waited_s = time.perf_counter(), loader.waited_s
    first_step = state.step - state.in_epoch
    windows = enumerate(loader.windows(state.epoch, state.in_epoch), state.in_epoch)
    with unwritten_memory_shown() as shown:
        for number, window in windows:
            parts.pruning.before_step(first_step + number)
            run.figures.add(run.stepper.step(window, first_step + number, state.rate_factor))
            shown()
            for look in parts.after_step:
                look()
            progress.advance(loader.rows_of(number))
            run.end_step(state, number + 1)
    metrics = run.end_figures()
    share = (loader.waited_s - waited_s) / max(time.perf_counter() - since, 1e-9)
    return {**metrics, "train/wait_share": share}
