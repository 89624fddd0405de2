"""The objective of a run: the losses of its recipe, each of an output and labels of its own.

In: the outputs of a model, and all labels by name. Out: the weighted sum of the losses' means.

Rules: each mean has a weight of its own among the means of other batches, since one loss may count
other labels than another; so the mean over a window of batches, including the last short one, is
the mean over all its labels, for each loss (see `Objective.weights`).

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
    """The factor of its mean."""
    output: int
    """The index of its output."""
    labels: str
    """The name of its labels."""
    classes: int | None
    """The number of classes; None for labels that are no classes."""


@dataclass(frozen=True, slots=True)
class Objective:
    """The losses of a recipe."""

    terms: tuple[Term, ...]

    @property
    def classes(self) -> int | None:
        """The number of classes of the labels that evaluate the model; None without classes."""
        judging = [term.classes for term in self.terms if term.labels == LABELS]
        return min((found for found in judging if found is not None), default=None)

    def means(self, outputs: Outputs, labels: Mapping[str, Tensor]) -> list[Tensor]:
        """Returns the mean of every loss over these rows, before its factor: L scalars.

        Args:
            outputs: outputs of the model.
            labels: labels by name.
        """
        found = outputs_of(outputs)
        return [_mean(term, found, labels) for term in self.terms]

    def of(
        self,
        outputs: Outputs,
        labels: Mapping[str, Tensor],
        shares: Weights | None = None,
    ) -> Tensor:
        """Returns the objective, a scalar: the sum of the means, each times its factor and share.

        Args:
            outputs: outputs of the model.
            labels: labels by name.
            shares: of each loss, the fraction of a window's labels in these rows, [L]; None for
                all.
        """
        found, total = outputs_of(outputs), None
        for place, term in enumerate(self.terms):
            factor = term.factor * (1.0 if shares is None else float(shares[place]))
            if factor == 0.0:  # the mean over no label is NaN
                continue
            mean = _mean(term, found, labels)
            part = mean if factor == 1.0 else mean * factor
            total = part if total is None else total + part
        # Without labels there is still a gradient, which other processes wait for.
        return found[0].float().sum() * 0 if total is None else total

    def weights(self, labels: Mapping[str, Tensor]) -> Weights:
        """Returns the weight of each mean of these rows among those of other rows, [L]."""
        return np.array([term.loss.weight_of(labels[term.labels]) for term in self.terms])

    def first_weight(self, labels: Mapping[str, Tensor]) -> float:
        """Returns the first of the `weights`."""
        first = self.terms[0]
        return first.loss.weight_of(labels[first.labels])

    def value(self, means: Weights) -> float:
        """Returns the sum of means over many rows, each times its factor."""
        return float(sum(t.factor * m for t, m in zip(self.terms, means, strict=True)))


def _mean(term: Term, outputs: Sequence[Tensor], labels: Mapping[str, Tensor]) -> Tensor:
    # Half precision is for layers: a loss sums over many rows.
    return term.loss.of(outputs[term.output].float(), labels[term.labels])


def make_objective(
    recipe: Recipe, labels: Mapping[str, LabelArray], widths: Sequence[int]
) -> Objective:
    """Makes the objective of a recipe.

    Args:
        recipe: the run.
        labels: labels of the training rows, by name, which `balanced` counts.
        widths: the length of the last axis of every output.

    Raises:
        RecipeError: the number of a loss's weights is not that of the classes.
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
