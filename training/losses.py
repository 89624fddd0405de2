"""Losses on class labels: functions of the model's first output and the labels.

Shapes: N rows, T labels of a row (or none: one label a row), K classes, M labels in all. A loss
is the mean over the labels that count, each with its class's weight, so that the means of several
batches make the mean of all rows (see `Loss.weight_of`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from training.datasets import IGNORED_LABEL
from training.errors import RecipeError, TargetError
from training.loss_parts import ClassWeight, LossPart
from training.targets import call_target


@dataclass(frozen=True, slots=True)
class Loss:
    """The loss of a recipe."""

    of: Callable[[Tensor, Tensor], Tensor]
    """From logits [N, K] or [N, T, K], and labels [N] or [N, T], to the mean, a scalar."""
    class_weights: Tensor | None = None
    """[K]; None where all labels weigh the same."""

    def weight_of(self, labels: Tensor) -> float:
        """What the mean of these labels weighs beside the means of others.

        Args:
            labels: [N] or [N, T]; `IGNORED_LABEL` does not count.
        """
        counted = labels[labels != IGNORED_LABEL]
        if self.class_weights is None:
            return float(counted.numel())
        return float(self.class_weights[counted].double().sum())


def make_loss(part: LossPart, labels: npt.NDArray[np.int64], classes: int) -> Loss:
    """The loss of a recipe.

    Args:
        part: the recipe's.
        labels: of the training rows, which `balanced` counts.
        classes: K.

    Raises:
        RecipeError: there is not one weight for each class.
        TargetError: the recipe's own loss cannot be made.
    """
    if part.target is not None:
        function = call_target(part.target, part.args, "loss")
        if not callable(function):
            raise TargetError(
                f"loss.target {part.target} made a {type(function).__name__}; let it make a "
                "function of logits and labels"
            )
        return Loss(partial(_own, function, part.target))
    weights = _class_weights(part.chosen.weight, labels, classes, part.choice)
    if part.cross_entropy is not None:
        return Loss(partial(_cross_entropy, weights, part.cross_entropy.label_smoothing), weights)
    if part.focal is not None:
        return Loss(partial(_focal, weights, part.focal.gamma), weights)
    return Loss(partial(_nll, weights), weights)


def _class_weights(
    weight: ClassWeight, labels: npt.NDArray[np.int64], classes: int, choice: str
) -> Tensor | None:
    if weight is None:
        return None
    if weight == "balanced":
        counts = np.bincount(labels[labels != IGNORED_LABEL], minlength=classes)
        # A class without rows keeps a weight of 1: only other splits have labels of it.
        balanced = counts.sum() / (classes * np.where(counts, counts, counts.sum() / classes))
        return torch.from_numpy(balanced.astype(np.float32))
    if len(weight) != classes:
        raise RecipeError(
            f"loss.{choice}.weight has {len(weight)} numbers, and the model {classes} classes; "
            "give one for each, or balanced"
        )
    return torch.tensor(weight)


def _cross_entropy(
    weights: Tensor | None, label_smoothing: float, logits: Tensor, labels: Tensor
) -> Tensor:
    return functional.cross_entropy(
        logits.flatten(0, -2),
        labels.flatten(),
        weight=weights,
        label_smoothing=label_smoothing,
        ignore_index=IGNORED_LABEL,
    )


def _focal(weights: Tensor | None, gamma: float, logits: Tensor, labels: Tensor) -> Tensor:
    """The mean of (1 - p)^gamma * -log p over the labels that count, p of the right class."""
    labels = labels.flatten()
    counted = labels != IGNORED_LABEL
    labels = labels[counted]  # [M]
    log_p = functional.log_softmax(logits.flatten(0, -2)[counted], dim=-1)
    log_p = log_p.gather(1, labels[:, None])[:, 0]
    each = -((1 - log_p.exp()) ** gamma) * log_p
    if weights is None:
        return each.mean()
    return (each * weights[labels]).sum() / weights[labels].sum()


def _nll(weights: Tensor | None, log_probabilities: Tensor, labels: Tensor) -> Tensor:
    return functional.nll_loss(
        log_probabilities.flatten(0, -2),
        labels.flatten(),
        weight=weights,
        ignore_index=IGNORED_LABEL,
    )


def _own(
    function: Callable[[Tensor, Tensor], Tensor], target: str, logits: Tensor, labels: Tensor
) -> Tensor:
    found = function(logits, labels)
    if not isinstance(found, Tensor) or found.ndim != 0:
        what = f"shape {list(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
        raise TargetError(f"loss.target {target} returned a {what}; return a scalar, the mean")
    return found
