"""Which artifacts of a version are loaded beside the one that it is served by.

In: a manifest, what was measured, and the setting `keep_artifacts`. Out: names, and a log line for
each word that means nothing for the version.
"""

import logging
from collections.abc import Mapping, Sequence

from model_store.manifest import Artifact, Manifest
from model_store.metric import how_much_worse
from model_store.strict import nearest_name
from services.queueing.artifact_rules import ACCURACIES, fastest, gives

logger = logging.getLogger("flambeau.server")

ALL = "all"
"""Stands for every artifact that this machine can run."""


def accuracy_loss(manifest: Manifest, artifact: Artifact) -> float:
    """By how much an artifact's task metric is worse than the checkpoint's; 0 to 1.

    It is the one that the version says judges it: points of a share, a relative rise of an error;
    of older versions the worst of all. Where no metric of the two can be compared, it is the share
    of the golden rows that it answers otherwise than the checkpoint.
    """
    checkpoint, judged_by = manifest.lineage.metrics, artifact.verification.judged_by
    if judged_by is not None and f"test/{judged_by.name}" in checkpoint:
        before = checkpoint[f"test/{judged_by.name}"]
        return min(max(how_much_worse(judged_by.better, before, judged_by.value), 0.0), 1.0)
    losses = [
        checkpoint[f"test/{name}"] - value
        for name, value in artifact.verification.metrics.items()
        if f"test/{name}" in checkpoint
    ]
    return max(max(losses, default=1 - artifact.verification.agreement), 0.0)


def is_accurate(manifest: Manifest, artifact: Artifact, accuracy: str) -> bool:
    """Whether an artifact gives an accuracy, one of `ACCURACIES`."""
    return gives(accuracy, artifact.precision, accuracy_loss(manifest, artifact))


def kept_names(
    manifest: Manifest,
    keep: Sequence[str],
    default: str,
    candidates: Sequence[Artifact],
    row_ms: Mapping[str, float],
) -> list[str]:
    """Names of what is to be loaded beside the default one, each once.

    Args:
        manifest: of the version.
        keep: names of artifacts, accuracies (the fastest that gives one), or `ALL`.
        default: the name of the one that is loaded.
        candidates: what this machine can run and has not refused.
        row_ms: milliseconds a row as measured here; those that were not measured come after, in
            the publisher's order.
    """
    measured = [a for a in candidates if a.name in row_ms]
    unmeasured = sorted((a for a in candidates if a.name not in row_ms), key=Artifact.speed_key)
    found: list[str] = []
    for word in keep:
        if word == ALL:
            found += [a.name for a in candidates]
        elif word in ACCURACIES:
            # The default one first: it keeps its place among those that are as fast.
            measured.sort(key=lambda a: (a.name != default, row_ms[a.name]))
            able = [a.name for a in measured if is_accurate(manifest, a, word)]
            rest = [a.name for a in unmeasured if is_accurate(manifest, a, word)]
            found += [fastest((name, row_ms[name]) for name in able)] if able else rest[:1]
        else:
            found += [a.name for a in candidates if a.name == word]
    return [name for name in dict.fromkeys(found) if name != default]


def log_unknown(manifest: Manifest, keep: Sequence[str]) -> None:
    """Names each word that keeps nothing of a version; it may be another model's artifact.

    Args:
        manifest: of the version.
        keep: as of `kept_names`.
    """
    known = [artifact.name for artifact in manifest.artifacts] + [*ACCURACIES, ALL]
    for word in dict.fromkeys(keep):
        if word not in known:
            reason = f"keep_artifacts: the version has no such artifact{nearest_name(word, known)}"
            logger.warning(
                "artifact not kept",
                extra={"model": manifest.model, "version": manifest.version, "artifact": word,
                       "reason": reason},
            )  # fmt: skip
