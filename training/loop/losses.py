"""Losses: functions of one output of a model and one array of labels.

Shapes: N rows, T labels of a row (or none: one label a row), K classes, M labels in all; numbers
are [N], [N, D] or [N, T, D]. A loss is the mean over the labels that count, each with its class's
weight, so that the means of several batches combine to the mean of all rows (see `Loss.weight_of`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from training.errors import RecipeError, TargetError
from training.loading.label_arrays import IGNORED_LABEL, LabelArray, counted
from training.recipe.parts.loss_parts import Bce, ClassWeight, SingleLoss
from training.recipe.targets import call_named, call_target


@dataclass(frozen=True, slots=True)
class Loss:
    """One loss of a recipe."""

    of: Callable[[Tensor, Tensor], Tensor]
    """Maps an output and labels to the mean, a scalar. For classes: logits [N, K] or [N, T, K], and
    labels [N] or [N, T]. Otherwise: both of one shape, where [N, 1] may stand for [N]."""
    class_weights: Tensor | None = None
    """[K]; None if all labels have the same weight."""

    def weight_of(self, labels: Tensor) -> float:
        """Returns the weight of these labels' mean among the means of other batches.

        Args:
            labels: labels in the host's memory; integers equal to `IGNORED_LABEL` do not count, nor
                do NaNs.
        """
        if labels.ndim == 1 and self.class_weights is None:
            return float(labels.numel())  # a row whose only label does not count was refused
        counts = counted(labels.numpy())
        if self.class_weights is None:
            return float(np.count_nonzero(counts))
        return float(self.class_weights[labels[torch.from_numpy(counts)]].double().sum())


def make_loss(part: SingleLoss, labels: LabelArray, classes: int) -> Loss:
    """Makes one loss of a recipe.

    Args:
        part: the recipe's loss, which is not a sum.
        labels: labels of the training rows, which `balanced` counts.
        classes: K, the length of the output's last axis.

    Raises:
        RecipeError: the number of weights is not that of the classes, or of the labels.
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
    if part.single_task != "classes":
        return Loss(partial(_of_numbers, _number_loss(part, labels, classes)))
    of_classes = labels.astype(np.int64)
    weights = _class_weights(part.chosen.weight, of_classes, classes, part.choice)
    if part.cross_entropy is not None:
        return Loss(partial(_cross_entropy, weights, part.cross_entropy.label_smoothing), weights)
    if part.focal is not None:
        return Loss(partial(_focal, weights, part.focal.gamma), weights)
    return Loss(partial(_nll, weights), weights)


def _number_loss(
    part: SingleLoss, labels: LabelArray, width: int
) -> Callable[[Tensor, Tensor], Tensor]:
    """Returns a function of two tensors of one shape."""
    if part.bce is not None:
        weight = _pos_weight(part.bce, labels, width)
        return partial(functional.binary_cross_entropy_with_logits, pos_weight=weight)
    if part.smooth_l1 is not None:
        return partial(functional.smooth_l1_loss, beta=part.smooth_l1.beta)
    if part.huber is not None:
        return partial(functional.huber_loss, delta=part.huber.delta)
    if part.poisson is not None:
        return partial(functional.poisson_nll_loss, log_input=part.poisson.log_input)
    return functional.mse_loss if part.mse is not None else functional.l1_loss


def _pos_weight(part: Bce, labels: LabelArray, width: int) -> Tensor | None:
    """Returns the weights of the labels in order, or one for all of them."""
    weight = part.pos_weight
    if weight is None:
        return None
    if weight == "balanced":
        ones = np.asarray(labels.reshape(len(labels), -1).sum(axis=0))
        # A label that no training row has keeps a weight of 1, and so does one that every row has.
        usual = (ones > 0) & (ones < len(labels))
        balanced = np.divide(len(labels) - ones, ones, out=np.ones(len(ones)), where=usual)
        return torch.from_numpy(balanced.astype(np.float32))
    if isinstance(weight, tuple) and len(weight) != width:
        raise RecipeError(
            f"loss.bce.pos_weight has {len(weight)} numbers, and the model {width} labels; give "
            "one for each, one for all, or balanced"
        )
    return torch.tensor(weight)


def _of_numbers(
    function: Callable[[Tensor, Tensor], Tensor], outputs: Tensor, labels: Tensor
) -> Tensor:
    """Returns the mean over the labels that count."""
    # Without this, [N, 1] and [N] would silently broadcast to [N, N].
    outputs = outputs.reshape(labels.shape)
    if labels.ndim == 3:
        told = ~labels.isnan()
        outputs, labels = outputs[told], labels[told]
    return function(outputs, labels)


def _class_weights(
    weight: ClassWeight, labels: npt.NDArray[np.int64], classes: int, choice: str
) -> Tensor | None:
    if weight is None:
        return None
    if weight == "balanced":
        counts = np.bincount(labels[counted(labels)], minlength=classes)
        # A class without training rows keeps a weight of 1: only other splits have its labels.
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
        *_row_by_row(logits, labels),
        weight=_beside(weights, labels),
        label_smoothing=label_smoothing,
        ignore_index=IGNORED_LABEL,
    )


def _focal(weights: Tensor | None, gamma: float, logits: Tensor, labels: Tensor) -> Tensor:
    """Returns the mean of (1 - p)^gamma * -log p over labels that count, p of the right class."""
    labels = labels.flatten()
    counted = labels != IGNORED_LABEL
    labels = labels[counted]  # [M]
    log_p = functional.log_softmax(logits.flatten(0, -2)[counted], dim=-1)
    log_p = log_p.gather(1, labels[:, None])[:, 0]
    each = -((1 - log_p.exp()) ** gamma) * log_p
    if weights is None:
        return each.mean()
    weights = weights.to(labels.device)
    return (each * weights[labels]).sum() / weights[labels].sum()


def _nll(weights: Tensor | None, log_probabilities: Tensor, labels: Tensor) -> Tensor:
    return functional.nll_loss(
        *_row_by_row(log_probabilities, labels),
        weight=_beside(weights, labels),
        ignore_index=IGNORED_LABEL,
    )


def _row_by_row(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Returns logits [M, K] and labels [M]."""
    if labels.ndim == 1 and logits.ndim == 2:  # already flat: calling torch takes longer
        return logits, labels
    return logits.flatten(0, -2), labels.flatten()


def _beside(weights: Tensor | None, labels: Tensor) -> Tensor | None:
    return None if weights is None else weights.to(labels.device)


def _own(
    function: Callable[[Tensor, Tensor], Tensor], target: str, logits: Tensor, labels: Tensor
) -> Tensor:
    found = call_named(function, f"loss.target {target}", logits, labels)
    if not isinstance(found, Tensor) or found.ndim != 0:
        what = f"shape {list(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
        raise TargetError(f"loss.target {target} returned a {what}; return a scalar, the mean")
    return found
