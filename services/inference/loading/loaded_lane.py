"""One loaded lane: its worker, its artifact, and the memory that it took."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from flambeau.protocol.called_signature import for_callers
from flambeau.protocol.signature import Signature
from model_store.manifest import Manifest
from services.inference.backends.device import Device
from services.inference.loading.kept_artifacts import accuracy_loss
from services.inference.loading.loader import LoadedVersion
from services.inference.loading.policy import LanePolicy
from services.inference.loading.warm_up import row_ms
from services.inference.scheduling.worker import Worker
from services.queueing.records import Execution, Lane, ServedArtifact, ServedVersion


@dataclass(frozen=True, slots=True)
class LoadedLane:
    """A lane that accepts requests; `Lanes` owns it."""

    worker: Worker
    device: Device
    facts: ServedArtifact
    platform: str
    is_decoupled: bool
    """True if its backend gives any number of answers."""
    manifest: Manifest
    row_ms: Mapping[str, float]
    """Milliseconds per row of the version's artifacts that were measured before this load."""
    task: asyncio.Task[None]
    """Task that ends when the worker's backends are closed."""
    taken_bytes: int
    is_chosen: bool
    """True if no artifact of the version remains to be measured."""
    execution: Execution
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


def execution_of(version: LoadedVersion, policy: LanePolicy) -> Execution:
    """Returns the facts of how a version is run."""
    load = policy.load
    return Execution(
        instances=len(version.backends),
        device=str(load.backend.device),
        file=version.artifact.file.file,
        batch_wait_us=round(policy.batch_wait_s * 1e6),
        preferred_rows=load.backend.preferred_batch_sizes,
    )


def served_version(lane: Lane, lanes: Mapping[Lane, LoadedLane]) -> ServedVersion:
    """Returns the announcement of a version that is ready.

    Args:
        lane: its default lane.
        lanes: all of its loaded lanes, the default one first.
    """
    default = lanes[lane]
    return ServedVersion(
        lane=lane,
        state="ready",
        signature=default.called_signature,
        platform=default.platform,
        artifact=default.facts.name,
        artifacts=tuple(own.facts for own in lanes.values()),
        semver=default.manifest.semver or "",
        is_decoupled=default.is_decoupled,
        execution=default.execution,
    )


async def close_backends(version: LoadedVersion) -> None:
    """Closes the backends of a version that will not be served after all."""
    for backend in version.backends:
        await asyncio.to_thread(backend.close)
