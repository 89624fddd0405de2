"""Selects an artifact of a version by the request parameters `artifact` and `accuracy`.

In: the parameters' values as an edge decoded them, and the version's loaded artifacts. Out: one
artifact, or a refusal that names the others. Rule: never an artifact less accurate than requested.
"""

from typing import NamedTuple

from flambeau.protocol.accuracies import ACCURACIES
from services.errors import InvalidRequestError, UnknownArtifactError
from services.queueing.artifact_rules import NOISE, fastest, gives
from services.queueing.records import Lane, ServedArtifact, ServedVersion


class ArtifactPreference(NamedTuple):
    """A caller's choice of artifact; one of the two fields is empty."""

    artifact: str
    accuracy: str

    @property
    def is_strict(self) -> bool:
        """True if no other artifact may answer, whatever the load."""
        return bool(self.artifact) or self.accuracy == "exact"


def checked_preference(artifact: object, accuracy: object) -> ArtifactPreference | None:
    """Checks both parameters; an absent one is an empty string.

    Returns:
        The preference; None if neither was given.

    Raises:
        InvalidRequestError: one is not a string or not a known value, or both are given.
    """
    if artifact == "" and accuracy == "":
        return None
    if not isinstance(artifact, str):
        raise InvalidRequestError(
            f"parameter 'artifact' must be the name of an artifact, and is {artifact!r:.60}"
        )
    if accuracy not in ("", *ACCURACIES):
        raise InvalidRequestError(
            f"parameter 'accuracy' must be one of {', '.join(ACCURACIES)}, and is {accuracy!r:.60}"
        )
    if artifact and accuracy:
        raise InvalidRequestError("parameters 'artifact' and 'accuracy' are both given; keep one")
    return ArtifactPreference(artifact, str(accuracy))


def find_artifact(served: ServedVersion, preference: ArtifactPreference) -> ServedArtifact:
    """Finds the loaded artifact that a preference names, or the fastest one as accurate.

    Raises:
        UnknownArtifactError: none is loaded; the message names those that are.
    """
    if preference.artifact:
        found = next((a for a in served.artifacts if a.name == preference.artifact), None)
        if found is None:
            raise UnknownArtifactError(
                f"artifact '{preference.artifact[:128]}' of model {served.lane} is not loaded; "
                f"loaded: {_loaded(served)}; ask for one of these, or have the server keep it "
                "(keep_artifacts)"
            )
        return found
    able = [a for a in served.artifacts if gives(preference.accuracy, a.precision, a.accuracy_loss)]
    found = _fastest(able)
    if found is None:
        raise UnknownArtifactError(
            f"no artifact of model {served.lane} that is loaded gives accuracy "
            f"'{preference.accuracy}'; loaded: {_loaded(served)}; ask for less, or have the server "
            f"keep one (keep_artifacts={preference.accuracy})"
        )
    return found


def faster_artifact(served: ServedVersion, lane: Lane) -> ServedArtifact | None:
    """Returns the fastest loaded artifact if it beats that of a lane by more than noise."""
    own = next((a for a in served.artifacts if a.lane == lane), None)
    found = _fastest(served.artifacts)
    if own is None or found is None or found.row_ms >= own.row_ms * (1 - NOISE):
        return None
    return found


def _fastest(
    artifacts: "list[ServedArtifact] | tuple[ServedArtifact, ...]",
) -> ServedArtifact | None:
    """Returns the default artifact, or the fastest if that beats it by more than noise."""
    first = artifacts[:1]
    others = sorted(artifacts[1:], key=lambda a: a.row_ms)
    name = fastest((a.name, a.row_ms) for a in (*first, *others))
    return next((a for a in artifacts if a.name == name), None)


def _loaded(served: ServedVersion) -> str:
    return ", ".join(f"{a.name} ({a.precision})" for a in served.artifacts) or "none"
