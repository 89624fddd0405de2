"""Selects the artifacts of a version to load beside its default artifact.

In: a manifest, measurements, and the setting `keep_artifacts`. Out: names, and a log line for each
entry of the setting that matches nothing in the version.
"""

import logging
from collections.abc import Mapping, Sequence

from flambeau.protocol.accuracies import ACCURACIES
from flambeau.protocol.strict import nearest_name
from model_store.manifest import Artifact, Manifest
from model_store.metric import how_much_worse
from services.queueing.artifact_rules import fastest, gives

logger = logging.getLogger("flambeau.server")

ALL = "all"
"""Stands for every artifact that this machine can run."""


def accuracy_loss(manifest: Manifest, artifact: Artifact) -> float:
    """Returns how much worse an artifact's task metric is than the checkpoint's; 0 to 1.

    It is the metric that the version is judged by: a difference for shares, a relative increase for
    errors; for older versions the worst metric. If no metric of the two can be compared, it is the
    share of golden rows for which the artifact's answer differs from the checkpoint's.
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
    """Returns True if an artifact meets an accuracy, one of `ACCURACIES`."""
    return gives(accuracy, artifact.precision, accuracy_loss(manifest, artifact))


def kept_names(
    manifest: Manifest,
    keep: Sequence[str],
    default: str,
    candidates: Sequence[Artifact],
    row_ms: Mapping[str, float],
) -> list[str]:
    """Returns the names of the artifacts to load beside the default one, without duplicates.

    Args:
        manifest: manifest of the version.
        keep: names of artifacts, accuracies (the fastest artifact that meets one), or `ALL`.
        default: name of the loaded default artifact.
        candidates: artifacts that this machine can run and has not refused.
        row_ms: milliseconds per row measured here; unmeasured artifacts come after, in the
            publisher's order.
    """
    measured = [a for a in candidates if a.name in row_ms]
    unmeasured = sorted((a for a in candidates if a.name not in row_ms), key=Artifact.speed_key)
    found: list[str] = []
    for word in keep:
        if word == ALL:
            found += [a.name for a in candidates]
        elif word in ACCURACIES:
            # The default artifact first: it keeps its place among equally fast ones.
            measured.sort(key=lambda a: (a.name != default, row_ms[a.name]))
            able = [a.name for a in measured if is_accurate(manifest, a, word)]
            rest = [a.name for a in unmeasured if is_accurate(manifest, a, word)]
            found += [fastest((name, row_ms[name]) for name in able)] if able else rest[:1]
        else:
            found += [a.name for a in candidates if a.name == word]
    return [name for name in dict.fromkeys(found) if name != default]


def log_unknown(manifest: Manifest, keep: Sequence[str]) -> None:
    """Logs each entry that matches nothing of a version; it may be another model's artifact.

    Args:
        manifest: manifest of the version.
        keep: the setting, as in `kept_names`.
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
