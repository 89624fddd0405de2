"""One loaded lane: its worker, its artifact, and the memory that it took."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from flambeau.protocol.called_signature import for_callers
from flambeau.protocol.signature import Signature
from model_store.manifest import Artifact, Manifest
from services.inference.backends.device import Device
from services.inference.loading.kept_artifacts import accuracy_loss
from services.inference.loading.loader import LoadedVersion
from services.inference.loading.warm_up import row_ms
from services.inference.scheduling.worker import Worker
from services.queueing.records import Lane, ServedArtifact


@dataclass(frozen=True, slots=True)
class LoadedLane:
    """A lane that accepts requests; `Lanes` owns it."""

    worker: Worker
    device: Device
    facts: ServedArtifact
    platform: str
    manifest: Manifest
    row_ms: Mapping[str, float]
    """Milliseconds per row of the version's artifacts that were measured before this load."""
    task: asyncio.Task[None]
    """Task that ends when the worker's backends are closed."""
    taken_bytes: int
    is_chosen: bool
    """True if no artifact of the version remains to be measured."""
    refused: set[str] = field(default_factory=set)
    """Names of further artifacts that could not be loaded."""

    @property
    def called_signature(self) -> Signature:
        """Signature of its requests."""
        return for_callers(self.manifest.signature)


def served_facts(version: LoadedVersion, lane: Lane) -> ServedArtifact:
    """Returns the facts of an artifact that are announced to gateways."""
    artifact = version.artifact
    return ServedArtifact(
        name=artifact.name,
        precision=artifact.precision,
        accuracy_loss=accuracy_loss(version.manifest, artifact),
        row_ms=row_ms(version.latency_s),
        lane=lane,
    )


def size_bytes(artifact: Artifact) -> int:
    """Returns the total size of its files."""
    return sum(entry.size_bytes for entry in artifact.all_files())


async def close_backends(version: LoadedVersion) -> None:
    """Closes the backends of a version that will not be served after all."""
    for backend in version.backends:
        await asyncio.to_thread(backend.close)
