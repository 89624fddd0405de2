"""How good answers are: the one place where logits meet labels. No torch.

Shapes: N rows, T labels of a row (or none: one label a row), K classes.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from model_store.tensors import Array
from training.datasets import IGNORED_LABEL


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Right answers of some rows; those of several batches are added."""

    labels: int = 0
    """Labels that count."""
    right: int = 0
    """Those whose class has the largest logit."""
    rows: int = 0
    """Rows with T labels; 0 where each row has only one."""
    exact: int = 0
    """Those whose every label is right."""

    def __add__(self, other: "Tally") -> Self:
        return type(self)(
            labels=self.labels + other.labels,
            right=self.right + other.right,
            rows=self.rows + other.rows,
            exact=self.exact + other.exact,
        )

    def metrics(self) -> dict[str, float]:
        """`accuracy`, the share of labels, and for rows of T labels `exact_match`, of rows."""
        found = {"accuracy": self.right / self.labels}
        if self.rows:
            found["exact_match"] = self.exact / self.rows
        return found


def tally(logits: Array, labels: npt.NDArray[np.int64]) -> Tally:
    """Counts right answers.

    Args:
        logits: [N, K], or [N, T, K]; anything else has no right answer.
        labels: [N], or [N, T]; `IGNORED_LABEL` does not count.
    """
    counts = labels != IGNORED_LABEL
    if logits.shape[:-1] == labels.shape:
        right = logits.argmax(axis=-1) == labels
    else:
        right = np.zeros_like(counts)
    sequences = labels.ndim == 2
    return Tally(
        labels=int(counts.sum()),
        right=int((right & counts).sum()),
        rows=len(labels) if sequences else 0,
        exact=int((right | ~counts).all(axis=1).sum()) if sequences else 0,
    )
