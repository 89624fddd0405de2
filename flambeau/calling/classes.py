"""The best classes of each row of an output, with their labels and scores."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from flambeau.wire import Array

SUM_TOLERANCE = 1e-3
"""Deviation from 1 of the sum of a row's probabilities, by rounding to 16 bits."""


class Classified(NamedTuple):
    """One class of a row."""

    label: str
    """Name of the class, or its index if the model has no labels."""
    score: float
    """Probability, 0 to 1."""


def best_classes(
    values: Array, labels: Sequence[str], top: int, softmax: bool | None
) -> list[list[Classified]]:
    """Returns the best classes of each row, the best first.

    Args:
        values: probabilities or logits [rows, classes].
        labels: names of the classes; none for their indices.
        top: number of classes for each row; more than there are returns all.
        softmax: True makes probabilities of logits; None does so unless the numbers of each row
            are non-negative and sum to 1.
    """
    scores: Array = values.astype(np.float64)
    if not _are_probabilities(scores) if softmax is None else softmax:
        # The largest logit becomes 0, so that no exponential overflows.
        exponentials = np.exp(scores - scores.max(axis=1, keepdims=True))
        scores = exponentials / exponentials.sum(axis=1, keepdims=True)
    best = np.argsort(-scores, axis=1, kind="stable")[:, :top]
    return [
        [Classified(labels[i] if labels else str(i), float(row[i])) for i in chosen]
        for row, chosen in zip(scores, best.tolist(), strict=True)
    ]


def _are_probabilities(values: Array) -> bool:
    sums = values.sum(axis=1)
    return bool((values >= 0).all() and (np.abs(sums - 1) < SUM_TOLERANCE).all())
