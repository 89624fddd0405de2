"""Selects an artifact of a version by the request parameters `artifact` and `accuracy`.

In: the parameters' values as an edge decoded them, and the version's loaded artifacts. Out: one
artifact, or a refusal that names the others. Rule: never an artifact less accurate than requested.
"""

from typing import NamedTuple

from flambeau.protocol.accuracies import ACCURACIES
from services.errors import InvalidRequestError, UnknownArtifactError
from services.queueing.artifact_rules import (
    NOISE,
    accurate_artifact,
    fastest_artifact,
    loaded_artifacts,
)
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


def find_lane(served: ServedVersion, preference: ArtifactPreference | None) -> Lane:
    """Returns the lane of a request. That of a pipeline applies an accuracy to each step.

    Raises:
        UnknownArtifactError: the requested artifact is not loaded, or the model is a pipeline.
    """
    if preference is None:
        return served.lane
    if not served.is_pipeline:
        return find_artifact(served, preference).lane
    if preference.artifact:
        raise UnknownArtifactError(
            f"artifact '{preference.artifact[:128]}' was asked for, and model {served.lane} is a "
            "pipeline, which has none of its own; leave out 'artifact', or give 'accuracy', which "
            "holds for each of its steps"
        )
    return served.lane


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
                f"loaded: {loaded_artifacts(served)}; ask for one of these, or have the server "
                "keep it (keep_artifacts)"
            )
        return found
    return accurate_artifact(served, preference.accuracy)


def faster_artifact(served: ServedVersion, lane: Lane) -> ServedArtifact | None:
    """Returns the fastest loaded artifact if it beats that of a lane by more than noise."""
    own = next((a for a in served.artifacts if a.lane == lane), None)
    found = fastest_artifact(served.artifacts)
    if own is None or found is None or found.row_ms >= own.row_ms * (1 - NOISE):
        return None
    return found
