"""Which artifacts of a version give the accuracy asked for, and which of them is the fastest. Pure.

In: what is known of each artifact. Out: names. A worker chooses by these rules what it loads, and
a gateway, among what is loaded, what answers a request: both mean the same by the same word.

| accuracy   | artifacts that give it                                                            |
|------------|-----------------------------------------------------------------------------------|
| `exact`    | those that compute in fp32, as the checkpoint does: they differ by rounding alone  |
| `balanced` | those, and any whose task metric is at most `BALANCED_LOSS` below the checkpoint's |
| `fast`     | all: each has passed the gate of its recipe                                        |
"""

from collections.abc import Iterable
from typing import Literal, get_args

Accuracy = Literal["exact", "balanced", "fast"]
ACCURACIES: tuple[str, ...] = get_args(Accuracy)

BALANCED_LOSS = 0.005
"""Half a percentage point: about the noise of a test set of some thousand rows."""
NOISE = 0.05
"""By how much of its time another has to beat the best so far."""


def gives(accuracy: str, precision: str, accuracy_loss: float) -> bool:
    """Whether an artifact gives an accuracy, one of `ACCURACIES`.

    Args:
        accuracy: what is asked for.
        precision: what the artifact computes in, as its manifest says.
        accuracy_loss: by how much its task metric lies below the checkpoint's, 0 to 1.
    """
    if accuracy == "fast" or precision == "fp32":
        return True
    return accuracy == "balanced" and accuracy_loss <= BALANCED_LOSS


def fastest(row_ms: Iterable[tuple[str, float]]) -> str:
    """The name of the fastest; an earlier one keeps its place unless beaten by more than noise.

    Args:
        row_ms: names and milliseconds a row, those to be preferred first; empty gives no name.
    """
    best, best_ms = "", float("inf")
    for name, ms in row_ms:
        if not best or ms < best_ms * (1 - NOISE):
            best, best_ms = name, ms
    return best
