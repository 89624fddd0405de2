"""Which artifact of a version is the fastest on this machine: measured once, then remembered.

In: the artifacts in the publisher's order, and a way to measure one. Out: the order in which to
try them, the chosen one first. (`background_choice.py` measures, beside what is served.)

Rules kept here: an artifact is measured only if it passes its replay; the publisher's favourite
keeps its place unless another is faster by more than the noise; once the budget is spent no
further one is measured, but at least one is that passes; what was chosen is remembered for the
very same files, processor, device, its driver, threads and libraries. Where an accuracy is asked
for, the fastest of those that give it is chosen, and no other is tried.
"""

import functools
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
from services.inference.backends.backend_options import BackendOptions
from services.inference.loading.choice_memory import Choice
from services.queueing.artifact_rules import NOISE, fastest

logger = logging.getLogger("flambeau.loader")

LIBRARIES = ("onnxruntime", "onnxruntime-gpu", "openvino", "tensorrt", "torch")

Measure = Callable[[Artifact], float]
"""Milliseconds a row at the best batch size; raises if the artifact does not open or pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceRules:
    """How an artifact is chosen; the defaults take the publisher's order."""

    budget_s: float = 0.0
    """How long measuring may go on before no further artifact is begun; 0 measures nothing."""
    file: str = ""
    """Where choices are remembered; empty for nowhere."""


class Ranked(NamedTuple):
    """What to try, and what is known of its speed."""

    artifacts: list[Artifact]
    """The best first."""
    row_ms: Mapping[str, float]
    """Milliseconds a row of all that were measured, those that were not to be tried among them."""


def ranked(
    candidates: Sequence[Artifact],
    choice: Choice | None,
    wanted: Callable[[Artifact], bool] = lambda _: True,
) -> Ranked:
    """Those that are wanted, the chosen one first, the others in the publisher's order.

    Args:
        candidates: in the publisher's order.
        choice: what was measured; None if nothing was.
        wanted: whether one may be tried.
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
    """Measures one artifact after the other.

    Args:
        manifest: of the version, for the log.
        candidates: in the publisher's order.
        measure: measures one.
        budget_s: no further one is begun after this, once one has passed.
        clock: what the budget is measured by.
        stopped: whether to begin no further one.

    Returns:
        The best of those measured; None if none passes, or if there was time for one alone.
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


def choice_key(manifest: Manifest, candidates: Sequence[Artifact], options: BackendOptions) -> str:
    """A digest of everything that a choice depends on.

    Args:
        manifest: of the version.
        candidates: those that fit this machine.
        options: how they run; of a GPU its model and driver count too.
    """
    step = manifest.python_step  # it is a part of every run, and gives what artifacts take
    facts = {
        "artifacts": [[a.name, *(f.sha256 for f in a.all_files())] for a in candidates],
        "python_step": step.model_dump(mode="json") if step else None,
        "golden": manifest.golden.file.sha256,
        "max_batch_size": manifest.signature.max_batch_size,
        "device": str(options.device),
        "gpu": _gpu(options) if options.device.kind == "cuda" else None,
        "cpu_features": cpu_features(),
        "threads": options.threads,
        "libraries": {name: _version(name) for name in LIBRARIES},
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


@functools.cache
def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _gpu(options: BackendOptions) -> list[str]:
    from services.inference.backends.cuda_device import gpu_name_and_driver

    sizes = map(str, options.preferred_batch_sizes)  # engines and graphs are built for them
    return [*gpu_name_and_driver(options.device), *options.onnx_on_gpu.providers, *sizes]
