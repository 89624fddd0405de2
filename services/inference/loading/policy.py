"""What of a store to serve, and how. Plain values; the defaults are in `config.py`."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from services.inference.backends.device import Device
from services.inference.loading.loader import LoadOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class LanePolicy:
    """How the versions of one model are run."""

    load: LoadOptions = field(default_factory=LoadOptions)
    batch_wait_s: float = 0.0
    """How long the first request of a batch may wait for company."""
    execution_timeout_s: float = 60.0
    """How long one run of a backend may take before its worker is replaced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingPolicy:
    """What of a store to serve, and how."""

    models: tuple[str, ...] = ()
    """Only these; empty for every model of the store."""
    newest_versions: int
    """How many of the newest versions to keep loaded beside those a pointer names."""
    poll_interval_s: float
    """Pause between passes: how late a moved pointer is seen."""
    retry_failed_s: float
    """How long a version that failed to load is left alone."""
    lane: LanePolicy = field(default_factory=LanePolicy)
    """For every model without its own."""
    by_model: Mapping[str, LanePolicy] = field(default_factory=dict)
    max_memory_bytes: int = 0
    """The most a device may use; 0 for nine tenths of what it has."""
    unload_idle: bool = False
    """Whether a version that does not fit may push out the idle one used longest ago."""
    max_concurrent_runs: int = 0
    """Batches that run at once on a device; 0 chooses by its cores."""

    def lane_of(self, model: str) -> LanePolicy:
        """How a model is run."""
        return self.by_model.get(model, self.lane)

    def slots(self, device: Device) -> int:
        """Batches that run at once on a device: as many as it has cores for, or one on a GPU."""
        if self.max_concurrent_runs:
            return self.max_concurrent_runs
        if device.kind == "cuda":
            return 1
        return max(len(os.sched_getaffinity(0)) // self.lane.load.backend.threads, 1)
