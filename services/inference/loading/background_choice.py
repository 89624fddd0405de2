"""Measures, beside what is served, which artifact of each version is the fastest on this machine.

In: lanes that were loaded by the publisher's figures. Out: each lane runs the fastest artifact,
and the choice is remembered; see `artifact_choice.py`.

Rules kept here: live traffic comes first: one version is measured at a time, each of its artifacts
in a process of its own at the lowest priority, whose end harms nobody; what is measured was proven
first, and replays the golden inputs again before it serves; a version goes over to another artifact
without a failed request (`Lanes.exchange`), and stays with the one it has if that cannot be loaded;
no version is begun once `MOST_MEASURING_S` were spent: the next start goes on where this one ended.
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
from services.inference.loading.choice_memory import Choice, ChoiceMemory
from services.inference.loading.lanes import Lanes
from services.inference.loading.loader import (
    Candidates,
    LoadOptions,
    candidates_of,
    memory_limit_bytes,
    prove,
    read_artifact,
)
from services.inference.loading.model_failure import guarded, told
from services.inference.loading.warm_up import row_ms, warm_up
from services.low_priority_thread import STEPS_BELOW_LOOP, start_at_low_priority
from services.queueing.records import Lane

logger = logging.getLogger("flambeau.loader")

MEASURED_RUNS = 3
"""Of each batch size, when artifacts are compared: the fastest counts."""
MEASURE_BUDGET_S = 1.0
"""How long the runs of one of them may take; starting its process and opening it come first."""
MOST_MEASURING_S = 1800.0
"""Of one process, over all its versions. Three artifacts of one tiny model took 6 s beside other
work on both cores (`make bench-start`), so it is enough for some 300 models."""


@dataclass(frozen=True, slots=True)
class Found:
    """Measurements of one version, now or before."""

    best: Artifact
    choice: Choice
    candidates: Candidates
    remembered: bool
    """Whether another version of the same files has been measured here."""


class BackgroundChoice:
    """Chooses for one lane after the other. Runs on the event loop; measures in a thread.

    Args:
        store: where the versions lie.
        lanes: what is loaded.
    """

    def __init__(self, store: ModelStore, lanes: Lanes) -> None:
        self._store = store
        self._lanes = lanes
        self._spent_s = 0.0

    async def run(self, tasks: asyncio.TaskGroup) -> None:
        """Chooses for every lane that waits for it; ends when there is none."""
        while (lane := self._lanes.next_unchosen()) is not None:
            self._lanes.set_chosen(lane)
            if self._spent_s >= MOST_MEASURING_S:
                logger.warning(
                    "artifact not chosen: enough time was spent measuring since the start",
                    extra={"model": lane.model, "version": lane.version},
                )
                continue
            await self._choose_for(lane, tasks)

    async def _choose_for(self, lane: Lane, tasks: asyncio.TaskGroup) -> None:
        manifest, options = self._lanes.plan_of(lane)
        begun, stopped = time.monotonic(), threading.Event()
        # The thread hardly computes, for the artifacts run elsewhere; but it is Python.
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
        except Exception as error:  # what is served goes on as it is, whatever this was
            logger.warning(
                "artifact not chosen",
                extra={"model": lane.model, "version": lane.version,
                       "reason": told(error)},
            )  # fmt: skip
        finally:
            stopped.set()
            self._spent_s += time.monotonic() - begun


def find_fastest(
    store: ModelStore, manifest: Manifest, options: LoadOptions, stopped: threading.Event
) -> Found | None:
    """Measures the artifacts of a version, unless it is remembered, and remembers the choice.

    Args:
        store: where it lies.
        manifest: of the version.
        options: how it runs.
        stopped: set when the outcome is not wanted any more.

    Returns:
        None if none could be measured, or there was time for one alone.

    Raises:
        StoreError: the golden file is broken or out of reach.
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
    """Milliseconds a row of an artifact at its best batch size, in a process of its own.

    With one thread on the CPU it is the process's own time, which nobody else's work adds to.

    Raises:
        LoadError: it misses its tolerance here.
        Exception: whatever else its runtime raises.
    """
    from services.inference.isolation.isolated_backend import open_isolated_backend

    data, weights, code = read_artifact(store, manifest, artifact, options)
    backend = open_isolated_backend(
        artifact,
        data,
        manifest.signature,
        options.backend,
        weights=weights,
        code=code,
        gently=True,
        memory_limit_bytes=memory_limit_bytes(artifact, options),
    )
    own_time = options.backend.runs_in_the_calling_thread
    try:
        prove(backend, golden, manifest, artifact)
        latency_s = warm_up(
            backend,
            golden,
            manifest.signature.max_batch_size,
            backend.cpu_seconds if own_time else time.monotonic,
            repeats=MEASURED_RUNS,
            budget_s=MEASURE_BUDGET_S,
        )
    finally:
        backend.close()
    return row_ms(latency_s)


def log_choice(manifest: Manifest, found: Found, exchanged: bool, seconds: float) -> None:
    """Says what was chosen, by which figures, once it serves."""
    figures = found.choice.row_ms
    logger.info(
        "artifact chosen",
        extra={"model": manifest.model, "version": manifest.version, "artifact": found.best.name,
               "row_ms": {name: round(ms, 6) for name, ms in figures.items()},
               "unmeasured": [a.name for a in found.candidates.fitting if a.name not in figures],
               "remembered": found.remembered, "exchanged": exchanged,
               "choice_s": round(seconds, 3)},
    )  # fmt: skip
