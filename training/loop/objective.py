"""What a run minimises: the losses of its recipe, each of an output and labels of its own.

In: what a model gave, and all labels by name. Out: the means of the losses, each times its weight,
added.

Rules kept here: each mean keeps a weight of its own beside the means of other batches, since one
loss may count other labels than another; so the mean over a window of batches, the last short one
too, is the mean over all its labels, for each loss (see `Objective.weights`).

Shapes: L losses.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from training.loading.label_arrays import LabelArray
from training.loop.losses import Loss, make_loss
from training.network.model import Outputs, outputs_of
from training.recipe.parts.loss_parts import LABELS
from training.recipe.recipe import Recipe

Weights = npt.NDArray[np.float64]
"""A number for each loss, [L]."""


@dataclass(frozen=True, slots=True)
class Term:
    """One of the losses."""

    loss: Loss
    factor: float
    """What its mean is multiplied by."""
    output: int
    """The place of its output."""
    labels: str
    """The name of its labels."""
    classes: int | None
    """How many they may name; None where they are no classes."""


@dataclass(frozen=True, slots=True)
class Objective:
    """The losses of a recipe."""

    terms: tuple[Term, ...]

    @property
    def classes(self) -> int | None:
        """How many classes the labels that judge may name; None where they name none."""
        judging = [term.classes for term in self.terms if term.labels == LABELS]
        return min((found for found in judging if found is not None), default=None)

    def means(self, outputs: Outputs, labels: Mapping[str, Tensor]) -> list[Tensor]:
        """The mean of every loss over these rows, before its factor: L scalars.

        Args:
            outputs: of the model.
            labels: by name.
        """
        found = outputs_of(outputs)
        return [_mean(term, found, labels) for term in self.terms]

    def of(
        self,
        outputs: Outputs,
        labels: Mapping[str, Tensor],
        shares: Weights | None = None,
    ) -> Tensor:
        """What is minimised, a scalar: the means, each times its factor and its share, added.

        Args:
            outputs: of the model.
            labels: by name.
            shares: of each loss, how much of the labels of a window these rows have, [L]; None for
                all.
        """
        found, total = outputs_of(outputs), None
        for place, term in enumerate(self.terms):
            factor = term.factor * (1.0 if shares is None else float(shares[place]))
            if factor == 0.0:  # the mean over no label is no number
                continue
            mean = _mean(term, found, labels)
            part = mean if factor == 1.0 else mean * factor
            total = part if total is None else total + part
        # Where nothing counts there is a gradient all the same, which other processes wait for.
        return found[0].float().sum() * 0 if total is None else total

    def weights(self, labels: Mapping[str, Tensor]) -> Weights:
        """What each mean of these rows weighs beside the means of others, [L]."""
        return np.array([term.loss.weight_of(labels[term.labels]) for term in self.terms])

    def first_weight(self, labels: Mapping[str, Tensor]) -> float:
        """The first of the `weights`."""
        first = self.terms[0]
        return first.loss.weight_of(labels[first.labels])

    def value(self, means: Weights) -> float:
        """The sum of means over many rows, each times its factor."""
        return float(sum(t.factor * m for t, m in zip(self.terms, means, strict=True)))


def _mean(term: Term, outputs: Sequence[Tensor], labels: Mapping[str, Tensor]) -> Tensor:
    # Half precision is for layers: a loss sums over many rows.
    return term.loss.of(outputs[term.output].float(), labels[term.labels])


def make_objective(
    recipe: Recipe, labels: Mapping[str, LabelArray], widths: Sequence[int]
) -> Objective:
    """The losses of a recipe.

    Args:
        recipe: the run.
        labels: of the training rows, by name, which `balanced` counts.
        widths: how long the last axis of every output is.

    Raises:
        RecipeError: a loss has not one weight for each class.
        TargetError: a loss of the recipe's own cannot be made.
    """
    names = recipe.model.outputs
    terms = []
    for part in recipe.loss.terms:
        place = 0 if part.output is None else names.index(part.output)
        loss = make_loss(part, labels[part.labels], widths[place])
        classes = widths[place] if part.single_task == "classes" else None
        terms.append(Term(loss, part.weight, place, part.labels, classes))
    return Objective(tuple(terms))
