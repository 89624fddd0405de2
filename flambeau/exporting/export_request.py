"""A version to export, and what came of it. Plain values."""

from dataclasses import dataclass, field
from pathlib import Path

from model_store.host.memory_limit import GIB
from model_store.manifest import Manifest
from model_store.store import ModelStore
from services.inference.trust import Trust


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRequest:
    """A version to export."""

    store: ModelStore
    manifest: Manifest
    artifact: str = ""
    """Name of the artifact to export; empty for the fastest that the format can have."""
    max_batch_delay_ms: int = 1
    """Longest wait for a batch, for servers that wait."""
    trust: Trust = field(default_factory=Trust)
    time_limit_s: float = 300.0
    """Time limit of the check."""
    memory_limit_bytes: int = int(16 * GIB)
    """Memory limit of the check."""

    @property
    def title(self) -> str:
        """The version in messages."""
        return f"{self.manifest.model} {self.manifest.version_text}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """A file or folder that was written and checked."""

    path: Path
    size_bytes: int
    artifact: str = ""
    """Name of its artifact; empty if it has all files of the version."""
    rows: int | None = None
    """Golden rows that it answered; None if it has the version's own file for a runtime."""
    max_abs_difference: float | None = None
    """Largest difference of those answers from the version's own, in the outputs' unit."""
