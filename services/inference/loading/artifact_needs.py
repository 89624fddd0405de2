"""Memory and time that artifacts need, measured before they are opened in the server's process.

In: an artifact that is about to be opened in this process. Out: nothing, a refusal with the
figures, or `UnprobedError`: then it is probed first, with limits (`isolation/probe.py`).

Rules:
- an artifact is opened here only after a probe opened and ran it on this machine, keyed by the
  digests of its files: its manifest's figures are as untrusted as the artifact itself;
- most artifacts are fast and small: those are probed concurrently, with tight limits; an artifact
  that exceeds them is probed again, one at a time, with its full limits, so that it delays none;
- an artifact that exceeds its limits is refused by name, and the next best artifact is tried.
"""

import asyncio
import functools
import hashlib
import json
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata

from model_store.host.memory_limit import GIB
from model_store.manifest import Artifact, Manifest
from services.errors import BackendError
from services.inference.backends.device import CPU
from services.inference.backends.device_memory import device_memory_bytes
from services.inference.backends.open_options import OpenOptions
from services.inference.backends.served_kinds import runtime_distributions
from services.inference.isolation.probe import ProbeFiles, ProbeHosts, ProbeLimits
from services.inference.loading.needs_memory import MemoryNeed, NeedsMemory
from services.low_priority_thread import STEPS_BELOW_LOOP, start_at_low_priority

logger = logging.getLogger("flambeau.loader")

MEBIBYTE = 2**20
SHARE = 0.25
"""Default limit of one artifact, as a share of the total memory."""
SHARE_OF_FREE = 0.9
"""Limit of a probe, as a share of the free memory."""
MOST_BYTES = 4 * GIB
"""Cap of the default limit: one model must not take the memory of a machine that serves many."""
TIMES_ITS_FILES = 3
"""Least default limit, as a multiple of the files: a large model may fill the memory."""
FAULT_COUNTS_S = 10.0
"""A failed probe is not repeated for this long, while the version's other artifacts are probed."""
QUICK_BYTES = GIB
QUICK_S = 2.0
"""Limits of concurrent probes."""


class ArtifactNeedsError(BackendError):
    """An artifact exceeds its limits; the message has the figures."""


class UnprobedError(Exception):
    """The needs of an artifact are unknown: probe it, then load the version again."""

    def __init__(self, case: "Case") -> None:
        super().__init__(f"artifact {case.artifact.name} has not been tried on this machine yet")
        self.case = case


Place = tuple[str, int, str, str]
"""Model, version, artifact, and the key of its needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """An artifact to probe."""

    key: str
    manifest: Manifest
    artifact: Artifact
    options: OpenOptions
    read: Callable[[], ProbeFiles]
    """Returns its files; raises the errors of reading them."""
    allowed_bytes: int

    @property
    def place(self) -> "Place":
        """Its place: among equal files, only some may be readable or signed."""
        return _place(self.manifest, self.artifact, self.key)


class ArtifactNeeds:
    """Probes artifacts, and caches their needs.

    Args:
        limit_bytes: memory limit of one artifact; 0 for a share of the total memory.
        limit_s: limit of CPU time for opening and running one artifact.
        file: file that needs are cached in; empty for none.
    """

    def __init__(self, limit_bytes: int, limit_s: float, file: str) -> None:
        self._limit_bytes = limit_bytes
        self.limit_s = limit_s
        self._memory = NeedsMemory(file)
        self._hosts = ProbeHosts()
        self._total_bytes = device_memory_bytes(CPU).total_bytes
        self._cores = len(os.sched_getaffinity(0))
        self._side_by_side = asyncio.Semaphore(self._cores)
        self._one_at_a_time = asyncio.Semaphore(1)
        self._faults: dict[Place, tuple[float, Exception]] = {}
        """Time and error of failed probes, by artifact."""

    def allowed_bytes(self, artifact: Artifact) -> int:
        """Returns the memory limit of an artifact, regardless of the memory that is free now."""
        if self._limit_bytes:
            return self._limit_bytes
        share = min(int(self._total_bytes * SHARE), MOST_BYTES)
        return max(share, TIMES_ITS_FILES * artifact.size_bytes)

    def check(
        self,
        manifest: Manifest,
        artifact: Artifact,
        options: OpenOptions,
        read: Callable[[], ProbeFiles],
    ) -> None:
        """Checks that an artifact may be opened in this process.

        Args:
            manifest: manifest of its version.
            artifact: artifact to open.
            options: options to run it with.
            read: reader of its files, for a probe.

        Raises:
            UnprobedError: its needs are not known yet; see `find_out`.
            ArtifactNeedsError: it exceeds its limits.
            Exception: the error of a recent probe.
        """
        allowed = self.allowed_bytes(artifact)
        key = _key(manifest, artifact, options)
        at, fault = self._faults.get(_place(manifest, artifact, key), (0.0, None))
        if fault is not None and time.monotonic() - at < FAULT_COUNTS_S:
            raise fault
        need = self._memory.recall(key)
        if need is None or _may_fit_now(need, allowed, self.limit_s):
            raise UnprobedError(
                Case(
                    key=key,
                    manifest=manifest,
                    artifact=artifact,
                    options=options,
                    read=read,
                    allowed_bytes=allowed,
                )
            )
        if need.over_s:
            raise ArtifactNeedsError(
                f"opening it and running its golden rows takes more than {need.over_s:g} s of CPU "
                "time (open_time_limit_s); raise the limit, or serve another artifact"
            )
        if need.peak_bytes is None or need.peak_bytes > allowed:
            took = f"more than {_mebibytes(need.over_bytes)}"
            if need.peak_bytes is not None:
                took = _mebibytes(need.peak_bytes)
            raise ArtifactNeedsError(
                f"opening it and running its largest batch takes {took} of memory, and it may have "
                f"{_mebibytes(allowed)} (max_model_memory_mib); raise the limit or give the server "
                "more memory, serve it with isolate, or lower its max_batch_size"
            )

    async def find_out(self, case: Case) -> None:
        """Probes an artifact and records the result for `check`."""
        self._faults.pop(case.place, None)
        # A container that is out of memory may be killed as a whole, not its largest process only.
        used, total = device_memory_bytes(CPU)
        free = max(int((total - used) * SHARE_OF_FREE), MEBIBYTE)
        full = ProbeLimits(
            memory_bytes=min(case.allowed_bytes, free), cpu_s=self.limit_s, low_priority=True
        )
        quick = ProbeLimits(
            memory_bytes=min(full.memory_bytes, QUICK_BYTES, free // (2 * self._cores)),
            cpu_s=min(self.limit_s, QUICK_S),
        )
        for turns, limits in ((self._side_by_side, quick), (self._one_at_a_time, full)):
            async with turns:
                # In a daemon thread: a server that stops does not wait for it.
                work = functools.partial(self._probe, case, limits, is_last=limits is full)
                if await asyncio.wrap_future(start_at_low_priority(work, STEPS_BELOW_LOOP)):
                    return

    def close(self) -> None:
        """Ends the processes that run probes; they end with this process at the latest."""
        self._hosts.close()

    def _probe(self, case: Case, limits: ProbeLimits, is_last: bool) -> bool:
        """Probes an artifact. Returns True if the result is final."""
        try:
            files = case.read()
            probed = self._hosts.probe(case.manifest, files, case.options, limits)
        except Exception as error:  # its files are untrusted
            self._faults[case.place] = time.monotonic(), error
            return True
        need = MemoryNeed(
            peak_bytes=probed.peak_bytes,
            over_bytes=limits.memory_bytes if probed.over_memory else 0,
            over_s=limits.cpu_s if probed.over_time else 0.0,
        )
        is_known = probed.peak_bytes is not None or probed.over_memory or probed.over_time
        on_gpu = case.options.device != CPU
        if not is_last and (probed.over_memory or probed.over_time or probed.crashed):
            return False
        if probed.over_memory and limits.memory_bytes < case.allowed_bytes:
            self._faults[case.place] = (
                time.monotonic(),
                ArtifactNeedsError(
                    f"opening it and running its largest batch takes more memory than is free now, "
                    f"{_mebibytes(limits.memory_bytes)}; serve fewer models or give the server more"
                ),
            )
            return True
        if not is_known and not on_gpu:
            fault = ArtifactNeedsError(f"tried in a process of its own: {probed.fault}")
            self._faults[case.place] = time.monotonic(), fault
            return True
        if not is_known:  # the CPU may not support what a GPU does; nothing was harmed
            need = MemoryNeed(peak_bytes=0)
        logger.info(
            "artifact tried",
            extra={"model": case.manifest.model, "version": case.manifest.version,
                   "artifact": case.artifact.name, **need.model_dump()},
        )  # fmt: skip
        self._memory.remember(case.key, need)
        return True


def _may_fit_now(need: MemoryNeed, allowed_bytes: int, limit_s: float) -> bool:
    """Returns True if it exceeded a limit that has been raised since."""
    return 0 < need.over_bytes < allowed_bytes or 0 < need.over_s < limit_s


def _place(manifest: Manifest, artifact: Artifact, key: str) -> Place:
    return manifest.model, manifest.version, artifact.name, key


def _key(manifest: Manifest, artifact: Artifact, options: OpenOptions) -> str:
    """Returns a digest of everything that determines an artifact's needs."""
    step = manifest.python_step
    facts = [
        [entry.sha256 for entry in artifact.all_files()],
        [artifact.kind, artifact.precision],
        step.model_dump(mode="json") if step else None,
        manifest.signature.model_dump(mode="json"),
        [manifest.golden.file.sha256, manifest.golden.rows],
        str(options.device),
        _library_versions(),
    ]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


@functools.cache
def _library_versions() -> list[str]:
    known = {found.name.lower(): found.version for found in metadata.distributions()}
    return [f"{name} {known.get(name)}" for name in runtime_distributions()]


def _mebibytes(count: int) -> str:
    return f"{count / MEBIBYTE:,.0f} MiB"
