"""Selects the artifacts of a version with a requested accuracy, and the fastest of them. Pure.

In: the facts of each artifact. Out: names. A worker uses these rules to choose the artifacts that
it loads, and a gateway to choose among the loaded ones: both define each accuracy alike.

| accuracy   | artifacts that give it                                                            |
|------------|-----------------------------------------------------------------------------------|
| `exact`    | those that compute in fp32, as the checkpoint does: they differ by rounding alone  |
| `balanced` | those, and any whose task metric is at most `BALANCED_LOSS` below the checkpoint's |
| `fast`     | all: each has passed the gate of its recipe                                        |
"""

from collections.abc import Iterable, Sequence

from services.errors import UnknownArtifactError
from services.queueing.records import ServedArtifact, ServedVersion

BALANCED_LOSS = 0.005
"""Half a percentage point: about the noise of a test set of some thousand rows."""
NOISE = 0.05
"""Fraction of its time by which another artifact must beat the best so far."""


def gives(accuracy: str, precision: str, accuracy_loss: float) -> bool:
    """Returns True if an artifact has an accuracy, one of `ACCURACIES`.

    Args:
        accuracy: requested accuracy.
        precision: precision of the artifact's computation, from its manifest.
        accuracy_loss: difference of its task metric to the checkpoint's, 0 to 1.
    """
    if accuracy == "fast" or precision == "fp32":
        return True
    return accuracy == "balanced" and accuracy_loss <= BALANCED_LOSS


def fastest(row_ms: Iterable[tuple[str, float]]) -> str:
    """Returns the name of the fastest; an earlier one wins unless beaten by more than noise.

    Args:
        row_ms: names and milliseconds a row, preferred ones first; empty returns no name.
    """
    best, best_ms = "", float("inf")
    for name, ms in row_ms:
        if not best or ms < best_ms * (1 - NOISE):
            best, best_ms = name, ms
    return best


def accurate_artifact(served: ServedVersion, accuracy: str) -> ServedArtifact:
    """Returns the fastest loaded artifact of a version that gives an accuracy.

    Raises:
        UnknownArtifactError: none does; the message names those that are loaded.
    """
    able = [a for a in served.artifacts if gives(accuracy, a.precision, a.accuracy_loss)]
    found = fastest_artifact(able)
    if found is None:
        raise UnknownArtifactError(
            f"no artifact of model {served.lane} that is loaded gives accuracy '{accuracy}'; "
            f"loaded: {loaded_artifacts(served)}; ask for less, or have the server keep one "
            f"(keep_artifacts={accuracy})"
        )
    return found


def fastest_artifact(artifacts: Sequence[ServedArtifact]) -> ServedArtifact | None:
    """Returns the first artifact, or the fastest if that beats it by more than noise."""
    first = artifacts[:1]
    others = sorted(artifacts[1:], key=lambda a: a.row_ms)
    name = fastest((a.name, a.row_ms) for a in (*first, *others))
    return next((a for a in artifacts if a.name == name), None)


def loaded_artifacts(served: ServedVersion) -> str:
    """Returns the names of the loaded artifacts with their precisions, for messages."""
    return ", ".join(f"{a.name} ({a.precision})" for a in served.artifacts) or "none"
