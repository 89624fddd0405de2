"""Measures, while the server is serving, the fastest artifact of each version on this machine.

In: lanes that were loaded by the publisher's figures. Out: each lane runs the fastest artifact,
and the choice is cached; see `artifact_choice.py`.

Rules: live traffic has priority: one version is measured at a time, each of its artifacts in a
separate process of the lowest priority, whose crash has no effect; an artifact is verified before
it is measured, and replays the golden rows again before it serves; a version switches to another
artifact without a failed request (`Lanes.exchange`), and keeps its own if that cannot be loaded; no
measurement starts after `MOST_MEASURING_S` were spent: the next start of the server continues.
"""

import asyncio
import logging
import threading
import time
from dataclasses import dataclass

from model_store.golden import GoldenRows, read_golden
from model_store.manifest import Artifact, Manifest
from model_store.store import ModelStore
from services.inference.loading.artifact_choice import choose, ranked
from services.inference.loading.artifact_files import read_artifact
from services.inference.loading.choice_memory import Choice, ChoiceMemory
from services.inference.loading.lanes import Lanes
from services.inference.loading.loader import (
    Candidates,
    LoadError,
    LoadOptions,
    candidates_of,
    memory_limit_bytes,
    replay_golden,
)
from services.inference.loading.model_failure import guarded, reason_of
from services.inference.loading.warm_up import row_ms, warm_up
from services.low_priority_thread import STEPS_BELOW_LOOP, start_at_low_priority
from services.queueing.records import Lane

logger = logging.getLogger("flambeau.loader")

MEASURED_RUNS = 3
"""Measured runs of each batch size, when artifacts are compared: the fastest counts."""
MEASURE_BUDGET_S = 1.0
"""Time budget for the runs of one artifact, without starting its process and opening it."""
MOST_MEASURING_S = 1800.0
"""Time budget of one server process for all its versions. Three artifacts of a tiny model took 6 s
beside other work on both cores (`make bench-start`), so it suffices for about 300 models."""


@dataclass(frozen=True, slots=True)
class Found:
    """Measurements of one version, new or cached."""

    best: Artifact
    choice: Choice
    candidates: Candidates
    remembered: bool
    """True if the measurements were cached, as for another version of the same files."""


class BackgroundChoice:
    """Chooses artifacts for one lane after the other. Runs on the event loop; measures in a thread.

    Args:
        store: store of the versions.
        lanes: the loaded lanes.
    """

    def __init__(self, store: ModelStore, lanes: Lanes) -> None:
        self._store = store
        self._lanes = lanes
        self._spent_s = 0.0

    async def run(self, tasks: asyncio.TaskGroup) -> None:
        """Chooses artifacts for every lane that waits for it; ends when there is none."""
        while (lane := self._lanes.next_unchosen()) is not None:
            self._lanes.set_chosen(lane)
            if self._spent_s >= MOST_MEASURING_S:
                logger.warning(
                    "artifact not chosen: the time budget for measurements is spent",
                    extra={"model": lane.model, "version": lane.version},
                )
                continue
            await self._choose_for(lane, tasks)

    async def _choose_for(self, lane: Lane, tasks: asyncio.TaskGroup) -> None:
        manifest, options = self._lanes.plan_of(lane)
        begun, stopped = time.monotonic(), threading.Event()
        # The thread computes little, as artifacts run in other processes, but it takes the GIL.
        work = start_at_low_priority(
            lambda: guarded(find_fastest, self._store, manifest, options, stopped),
            STEPS_BELOW_LOOP,
        )
        try:
            found = await asyncio.wrap_future(work)
            if found is not None:
                figures = found.choice.row_ms
                exchanged = await self._lanes.exchange(lane, found.best.name, figures, tasks)
                log_choice(manifest, found, exchanged, time.monotonic() - begun)
        except Exception as error:  # no failure here affects the artifact that serves
            logger.warning(
                "artifact not chosen",
                extra={"model": lane.model, "version": lane.version,
                       "reason": reason_of(error)},
            )  # fmt: skip
        finally:
            stopped.set()
            self._spent_s += time.monotonic() - begun


def find_fastest(
    store: ModelStore, manifest: Manifest, options: LoadOptions, stopped: threading.Event
) -> Found | None:
    """Measures the artifacts of a version, unless a choice is cached, and caches the choice.

    Args:
        store: store of the version.
        manifest: manifest of the version.
        options: options that it runs with.
        stopped: set when the result is no longer needed.

    Returns:
        None if no artifact could be measured, or there was time for only one.

    Raises:
        StoreError: the golden file is invalid or unavailable.
        LoadError: no artifact is wanted.
    """
    candidates = candidates_of(manifest, options)
    memory = ChoiceMemory(options.choice.file)
    remembered = choice = memory.recall(candidates.key)
    if choice is None:
        golden = read_golden(store, manifest)

        def measured(artifact: Artifact) -> float:
            return measure(store, manifest, golden, options, artifact)

        choice = choose(
            manifest, candidates.fitting, measured, options.choice.budget_s, stopped=stopped.is_set
        )
        if choice is not None and not stopped.is_set():
            memory.remember(candidates.key, choice)
    order = ranked(candidates.fitting, choice, candidates.wanted).artifacts
    if choice is None or not order:
        return None
    return Found(order[0], choice, candidates, remembered is not None)


def measure(
    store: ModelStore,
    manifest: Manifest,
    golden: GoldenRows,
    options: LoadOptions,
    artifact: Artifact,
) -> float:
    """Measures an artifact's milliseconds per row at its best batch size, in a separate process.

    With one thread on the CPU it measures the process's CPU time, which excludes other work.

    Raises:
        LoadError: it misses its tolerance here, or no run was long enough for the clock.
        Exception: any other exception of its runtime.
    """
    from services.inference.isolation.isolated_backend import open_isolated_backend

    backend = open_isolated_backend(
        read_artifact(store, manifest, artifact, options.backend.device, options.trust),
        options.backend,
        low_priority=True,
        memory_limit_bytes=memory_limit_bytes(artifact, options),
    )
    own_time = options.backend.runs_in_the_calling_thread
    try:
        replay_golden(backend, golden, manifest, artifact)
        latency_s = warm_up(
            backend,
            golden,
            manifest.signature,
            backend.cpu_seconds if own_time else time.monotonic,
            repeats=MEASURED_RUNS,
            budget_s=MEASURE_BUDGET_S,
        )
    finally:
        backend.close()
    if not latency_s:
        raise LoadError("its runs are too short for this machine's CPU clock, which measured 0")
    return row_ms(latency_s)


def log_choice(manifest: Manifest, found: Found, exchanged: bool, seconds: float) -> None:
    """Logs the choice and its measurements, once the chosen artifact serves."""
    figures = found.choice.row_ms
    logger.info(
        "artifact chosen",
        extra={"model": manifest.model, "version": manifest.version, "artifact": found.best.name,
               "row_ms": {name: round(ms, 6) for name, ms in figures.items()},
               "unmeasured": [a.name for a in found.candidates.fitting if a.name not in figures],
               "remembered": found.remembered, "exchanged": exchanged,
               "choice_s": round(seconds, 3)},
    )  # fmt: skip
