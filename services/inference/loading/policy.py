"""Serving policy: which models of a store to serve, and how. Plain values, set by `config.py`."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from model_store.manifest import Manifest
from services.inference.backends.device import Device
from services.inference.loading.loader import LoadOptions
from services.inference.model_control import ControlMode
from services.low_priority_thread import NICENESS, STEPS_BELOW_LOOP

RUNS_OF_GPU = 2
"""One batch is joined and copied while the GPU runs another (docs/adr/0065)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LanePolicy:
    """Options for running the versions of one model."""

    load: LoadOptions = field(default_factory=LoadOptions)
    batch_wait_s: float = 0.0
    """Longest time that the first request of a batch waits for a fuller batch."""
    execution_timeout_s: float = 60.0
    """Timeout of one run of a backend, after which its instance is replaced."""
    is_apart: bool = False
    """True for an archive of TorchServe's: its handler is initialized in a process of its own."""

    def for_version(self, manifest: Manifest) -> "LanePolicy":
        """Returns the policy of a version, which may say itself how it is run."""
        folder = next((one.folder for one in manifest.artifacts if one.folder), None)
        if folder is None:
            return self
        return replace(
            self,
            load=replace(
                self.load,
                instances=folder.instances,
                open_time_limit_s=folder.open_time_limit_s,
            ),
            execution_timeout_s=folder.execution_timeout_s,
            is_apart=True,
        )


def load_niceness(is_starting: bool, is_awaited: bool) -> int:
    """Returns the steps of niceness of a load beside the models that are served.

    Args:
        is_starting: True if nothing is served yet.
        is_awaited: True if callers asked for the version, which had made room for another one. At
            the lowest priority it would not come while other processes keep the cores busy.
    """
    if is_starting:
        return 0
    return STEPS_BELOW_LOOP if is_awaited else NICENESS


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingPolicy:
    """Models of a store to serve, and options for running them."""

    models: tuple[str, ...] = ()
    """Models to serve; empty for every model of the store."""
    pinned: Mapping[str, int] = field(default_factory=dict)
    """The only version to serve, by model; others follow the pointers."""
    newest_versions: int
    """Number of newest versions to keep loaded beside those that a pointer names."""
    poll_interval_s: float
    """Pause between passes: the delay before a moved pointer is noticed."""
    retry_failed_s: float
    """Delay before a version that failed to load is retried."""
    lane: LanePolicy = field(default_factory=LanePolicy)
    """Policy of every model without its own."""
    by_model: Mapping[str, LanePolicy] = field(default_factory=dict)
    max_memory_bytes: int = 0
    """Memory limit of a device; 0 for nine tenths of its memory."""
    unload_idle: bool = False
    """True if a version that does not fit may evict the least recently used idle one."""
    control: ControlMode = "poll"
    """`poll` follows the store, `none` serves what was there at the start, and with `explicit`
    callers load and unload models."""
    max_concurrent_runs: int = 0
    """Maximum number of concurrent batches on a device; 0 for a default by its cores."""

    def lane_of(self, model: str) -> LanePolicy:
        """Returns the policy of a model."""
        return self.by_model.get(model, self.lane)

    def slots(self, device: Device) -> int:
        """Returns the concurrent batches of a device: cores divided by threads, or 2 on a GPU."""
        if self.max_concurrent_runs:
            return self.max_concurrent_runs
        if device.kind == "cuda":
            return RUNS_OF_GPU
        return max(len(os.sched_getaffinity(0)) // self.lane.load.backend.threads, 1)
