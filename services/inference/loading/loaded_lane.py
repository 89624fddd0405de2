"""One loaded lane: its worker, what it runs, and what it took."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from model_store.manifest import Artifact, Manifest
from services.inference.backends.device import Device
from services.inference.loading.kept_artifacts import accuracy_loss
from services.inference.loading.loader import LoadedVersion
from services.inference.loading.warm_up import row_ms
from services.inference.scheduling.worker import Worker
from services.queueing.records import Lane, ServedArtifact


@dataclass(frozen=True, slots=True)
class LoadedLane:
    """A lane that takes requests; `Lanes` owns it."""

    worker: Worker
    device: Device
    facts: ServedArtifact
    platform: str
    manifest: Manifest
    row_ms: Mapping[str, float]
    """Of the version's artifacts, as far as they were measured when this one was loaded."""
    task: asyncio.Task[None]
    """Ends when the worker's backends are closed."""
    taken_bytes: int
    is_chosen: bool
    """Whether nothing is left to be measured of it."""
    refused: set[str] = field(default_factory=set)
    """Names of further artifacts that could not be loaded."""


def served_facts(version: LoadedVersion, lane: Lane) -> ServedArtifact:
    """What gateways are told of an artifact."""
    artifact = version.artifact
    return ServedArtifact(
        name=artifact.name,
        precision=artifact.precision,
        accuracy_loss=accuracy_loss(version.manifest, artifact),
        row_ms=row_ms(version.latency_s),
        lane=lane,
    )


def size_bytes(artifact: Artifact) -> int:
    """Of all its files."""
    return sum(entry.size_bytes for entry in artifact.all_files())


async def close_backends(version: LoadedVersion) -> None:
    """Closes what was opened of a version that is not to serve after all."""
    for backend in version.backends:
        await asyncio.to_thread(backend.close)
