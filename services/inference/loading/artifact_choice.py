"""Chooses the fastest artifact of a version on this machine: measured once, then cached.

In: the artifacts in the publisher's order, and a function that measures one. Out: the order to try
them in, the chosen one first. (`background_choice.py` measures, while the server is serving.)

Rules: an artifact counts only if it passes its replay; the publisher's first choice keeps its place
unless another is faster by more than the noise; once the budget is spent no further artifact is
measured, but at least one that passes is; a choice is cached for exactly the same files,
processor, device, driver, threads and libraries. With a required accuracy, the fastest artifact
that meets it is chosen, and no other is tried.
"""

import hashlib
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import NamedTuple

from model_store.host.cpu_features import cpu_features
from model_store.manifest import Artifact, Manifest
from services.inference.backends.open_options import OpenOptions
from services.inference.backends.served_kinds import runtime_distributions
from services.inference.loading.choice_memory import Choice
from services.queueing.artifact_rules import NOISE, fastest

logger = logging.getLogger("flambeau.loader")

Measure = Callable[[Artifact], float]
"""Returns ms per row at the best batch size; raises if the artifact does not open or pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceRules:
    """Settings of the choice of an artifact; the defaults use the publisher's order."""

    budget_s: float = 0.0
    """Time after which measuring of no further artifact starts; 0 measures nothing."""
    file: str = ""
    """File that choices are cached in; empty for none."""


class Ranked(NamedTuple):
    """Artifacts to try, and their measured speed."""

    artifacts: list[Artifact]
    """Artifacts to try, the best first."""
    row_ms: Mapping[str, float]
    """Milliseconds per row of all measured artifacts, including those not to be tried."""


def ranked(
    candidates: Sequence[Artifact],
    choice: Choice | None,
    wanted: Callable[[Artifact], bool] = lambda _: True,
) -> Ranked:
    """Returns the wanted artifacts, the chosen one first, the others in the publisher's order.

    Args:
        candidates: artifacts in the publisher's order.
        choice: measurements and choice; None if nothing was measured.
        wanted: predicate of the artifacts to try.
    """
    allowed = [artifact for artifact in candidates if wanted(artifact)]
    if choice is None:
        return Ranked(allowed, {})
    name = choice.artifact
    if all(artifact.name != name for artifact in allowed):
        measured = [a.name for a in allowed if a.name in choice.row_ms]
        name = fastest((one, choice.row_ms[one]) for one in measured)
    best = [artifact for artifact in allowed if artifact.name == name]
    return Ranked([*best, *(a for a in allowed if a not in best)], choice.row_ms)


def choose(
    manifest: Manifest,
    candidates: Sequence[Artifact],
    measure: Measure,
    budget_s: float,
    clock: Callable[[], float] = time.monotonic,
    stopped: Callable[[], bool] = lambda: False,
) -> Choice | None:
    """Measures the artifacts one after the other.

    Args:
        manifest: manifest of the version, for the log.
        candidates: artifacts in the publisher's order.
        measure: function that measures one artifact.
        budget_s: time after which no further measurement starts, once an artifact has passed.
        clock: clock of the budget.
        stopped: predicate that stops further measurements.

    Returns:
        The best of those measured; None if none passes, or if there was time for only one.
    """
    row_ms: dict[str, float] = {}
    best, failed = "", 0
    begun = clock()
    for artifact in candidates:
        if stopped() or (row_ms and clock() - begun >= budget_s):
            break
        try:
            found = measure(artifact)
        except Exception as error:  # a runtime may raise anything on a file it cannot run
            logger.warning(
                "artifact not measured",
                extra={"model": manifest.model, "version": manifest.version,
                       "artifact": artifact.name, "reason": str(error) or repr(error)},
            )  # fmt: skip
            failed += 1
            continue
        row_ms[artifact.name] = found
        if not best or found < row_ms[best] * (1 - NOISE):
            best = artifact.name
    is_compared = len(row_ms) > 1 or len(row_ms) + failed == len(candidates)
    return Choice(artifact=best, row_ms=row_ms) if best and is_compared else None


def choice_key(manifest: Manifest, candidates: Sequence[Artifact], options: OpenOptions) -> str:
    """Returns a digest of everything that a choice depends on.

    Args:
        manifest: manifest of the version.
        candidates: artifacts that fit this machine.
        options: options of the backends; the digest includes a GPU's model and driver.
    """
    step = manifest.python_step  # it is a part of every run, and determines the artifact's inputs
    facts = {
        "artifacts": [[a.name, *(f.sha256 for f in a.all_files())] for a in candidates],
        "python_step": step.model_dump(mode="json") if step else None,
        "golden": manifest.golden.file.sha256,
        "max_batch_size": manifest.signature.max_batch_size,
        "device": str(options.device),
        "gpu": _gpu(options) if options.device.kind == "cuda" else None,
        "cpu_features": cpu_features(),
        "threads": options.threads,
        "libraries": {name: _version(name) for name in runtime_distributions()},
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _gpu(options: OpenOptions) -> list[str]:
    from services.inference.backends.gpu.cuda_device import gpu_name_and_driver

    sizes = map(str, options.preferred_batch_sizes)  # engines and graphs are built for them
    return [*gpu_name_and_driver(options.device), *options.onnx_on_gpu.providers, *sizes]
