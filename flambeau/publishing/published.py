"""The result of publishing: a version in a store, with the figures of its artifacts."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedArtifact:
    """One artifact of a published version."""

    name: str
    max_abs_difference: float
    """Largest difference of any output element from the model's own."""
    ms_per_row: float
    """Milliseconds a row at its best batch size, on one thread of this machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedVersion:
    """A version that is in the store, complete and verified.

    Attributes:
        model: name of the model.
        version: its number.
        semver: its semantic version.
        store: URL of the store.
        artifacts: verified artifacts, the fastest first.
        refused: reasons of artifacts that were not published, by name.
        alias: alias that points at the version now; None if none moved.
        notes: facts about the model that were found on the way.
    """

    model: str
    version: int
    semver: str | None
    store: str
    artifacts: tuple[PublishedArtifact, ...]
    refused: dict[str, str]
    alias: str | None
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        names = ": " * bool(self.artifacts) + ", ".join(one.name for one in self.artifacts)
        return f"{self.model} {self.version} ({self.semver or 'no semantic version'}){names}"
