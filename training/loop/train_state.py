"""The progress of a run, and the rule that ends it. Pure."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from model_store.metric import Better, is_better
from training.errors import DivergedError
from training.recipe.parts.schedule_parts import Plateau
from training.recipe.recipe import Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainState:
    """The progress of a run. Replaced, never changed."""

    epoch: int = 0
    """Epochs finished."""
    step: int = 0
    """Optimizer steps finished."""
    in_epoch: int = 0
    """Steps of them that belong to the unfinished epoch."""
    best_epoch: int = 0
    """The epoch with the best validation value, counted from 1; 0 before the first."""
    best_value: float = 0.0
    """The value of `stop.metric` at that epoch."""
    finished: bool = False
    """True if training is over: all epochs are finished, or it stopped early."""
    rate_factor: float = 1.0
    """Factor that `schedule.plateau` has applied to the learning rate."""
    plateau_best: float | None = None
    """The value of `stop.metric` that the plateau must beat; None before the first epoch."""
    plateau_epochs: int = 0
    """Epochs without such an improvement."""


def after_epoch(
    state: TrainState, metrics: Mapping[str, float], recipe: Recipe, steps: int
) -> TrainState:
    """Returns the state after one more epoch: the best epoch so far, and whether it was the last.

    Pure. The first of equal values stays the best, and an infinite value is never the best. With
    `prune.at`, no epoch before the pruning is best, and none ends the run.

    Args:
        state: the state at the start of the epoch, or anywhere in it.
        metrics: metrics of the epoch.
        recipe: the run.
        steps: steps of every epoch.

    Raises:
        DivergedError: the loss or `stop.metric` is NaN, or that was the last epoch, and no epoch
            was best.
    """
    epoch, value = state.epoch + 1, metrics[recipe.stop.metric]
    for name in ("val/loss", recipe.stop.metric):
        if math.isnan(metrics[name]):
            raise DivergedError(
                f"split 'validation': {name} is nan after epoch {epoch} (step {epoch * steps}); "
                f"{_what_to_do(recipe)}; the last checkpoint is kept"
            )
    part = recipe.prune
    pruned_at = None if part is None else part.first_step(recipe.train.epochs, steps)
    if pruned_at is not None and state.epoch * steps <= pruned_at < epoch * steps:
        # Best value and plateau start again for the network with fewer weights.
        state = replace(state, best_epoch=0, plateau_best=None, plateau_epochs=0)
    state = replace(state, epoch=epoch, step=epoch * steps, in_epoch=0)
    better = recipe.better_of(recipe.stop.metric)
    first = state.best_epoch == 0 and math.isfinite(value)
    if first or (state.best_epoch and is_better(better, value, state.best_value)):
        state = replace(state, best_epoch=epoch, best_value=value)
    if recipe.schedule.plateau is not None:
        state = _after_waiting(state, value, recipe.schedule.plateau, better)
    patience = recipe.stop.patience
    gave_up = patience is not None and epoch - state.best_epoch >= patience
    gave_up = gave_up and (pruned_at is None or pruned_at < epoch * steps)
    finished = gave_up or epoch >= recipe.train.epochs
    if finished and state.best_epoch == 0:
        raise DivergedError(
            f"split 'validation': {recipe.stop.metric} was infinite in every epoch, of which there "
            f"were {epoch}, so none is best; {_what_to_do(recipe)}; the last checkpoint is kept"
        )
    return replace(state, finished=finished)


def _what_to_do(recipe: Recipe) -> str:
    optim = recipe.optim
    return (
        f"lower optim.{optim.choice}.lr ({optim.chosen.lr:g}), and check how the model handles "
        "large numbers, and statistics that only evaluation uses, such as those of batch norms"
    )


def within_epoch(state: TrainState, in_epoch: int) -> TrainState:
    """Returns the state after that many steps of the current epoch. Pure."""
    step = state.step - state.in_epoch + in_epoch
    return replace(state, step=step, in_epoch=in_epoch)


def _after_waiting(state: TrainState, value: float, plateau: Plateau, better: Better) -> TrainState:
    """Applies one epoch of torch's `ReduceLROnPlateau`, with a relative threshold."""
    best = state.plateau_best
    margin = -plateau.threshold if better == "lower" else plateau.threshold
    if best is None or is_better(better, value, best * (1 + margin)):
        return replace(state, plateau_best=value, plateau_epochs=0)
    if state.plateau_epochs < plateau.patience:
        return replace(state, plateau_epochs=state.plateau_epochs + 1)
    factor = max(state.rate_factor * plateau.factor, plateau.min_lr_share)
    return replace(state, rate_factor=factor, plateau_epochs=0)
