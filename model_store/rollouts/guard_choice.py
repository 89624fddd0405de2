"""Guards of a rollout, by what training has written into the manifests. Pure.

In: the manifests of both versions, and what the user sets. Out: `Guards`.

Rules: shares of classes are judged where an output's classes are known. Two answers that differ
are not both right, so two versions with test errors of 1% may differ on 2% of the requests; and
artifacts may differ from their own checkpoint by what their gates allow. A limit of disagreement
below that would roll a good version back. The candidate's own error does not widen its limit.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError

from flambeau.protocol.signature import Signature
from flambeau.protocol.strict import explain
from model_store.errors import InvalidRolloutError
from model_store.manifest import Draft
from model_store.metric import SHARES
from model_store.rollouts.guards import DisagreementGuard, Guards, OutputGuard

MAX_CLASSES = 1000
"""Classes of an output whose shares are judged, as many as `OutputGuard.values` may be."""
ACCURACY = "test/accuracy"
LARGEST_LIMIT = 0.5
"""Largest disagreement that is taken from the manifests; a larger one says nothing."""
_OF_SHARES = ("top1", "exact", "iou", "cosine")
"""Measures of gates that are 1 for equal answers."""

Changes = Mapping[str, Mapping[str, Any] | None]
"""Fields by guard that the user sets; None for a guard that is not judged."""


def chosen_guards(
    live: Draft, candidate: Draft, mirrored: float, risk: float, changes: Changes
) -> Guards:
    """Returns the guards of a rollout.

    Args:
        live: the manifest of the version in production.
        candidate: the manifest of the other one.
        mirrored: share of the requests that both answer; without any, nothing is compared.
        risk: risk of all guards together.
        changes: what the user sets.

    Raises:
        InvalidRolloutError: a change names no guard, or a value that its field cannot have.
    """
    chosen = Guards(
        risk=risk,
        disagreement=DisagreementGuard(limit=disagreement_limit(live, candidate)),
        outputs=output_guard(candidate),
    )
    document = chosen.model_dump()
    for name, fields in changes.items():
        before = document.get(name)
        document[name] = None if fields is None else {**(before or {}), **fields}
    if not mirrored and not changes.get("disagreement"):
        document["disagreement"] = None
    try:
        guards = Guards.model_validate(document)
    except ValidationError as error:
        raise InvalidRolloutError(f"guards: {explain(error, Guards)}") from error
    if guards.disagreement is not None and not mirrored:
        raise InvalidRolloutError(
            "guards: 'disagreement' compares mirrored requests, and none are; set mirrored "
            "(--mirror) above 0"
        )
    return guards


def output_guard(version: Draft) -> OutputGuard | None:
    """Returns the guard of the distribution of outputs; None if no output has known classes."""
    found = class_output(version)
    return None if found is None else OutputGuard(kind="classes", values=found[1])


def class_output(version: Draft) -> tuple[str, int] | None:
    """Returns the output whose largest element along the last axis is the class, and their number.

    It is the first with labels; or else the only output, [rows, classes], of a version that was
    measured by a metric of classes.
    """
    signature: Signature = version.signature
    outputs = {spec.name: spec for spec in signature.outputs}
    for name, labels in signature.labels.items():
        if len(outputs[name].shape) == 2:
            return (name, len(labels)) if 2 <= len(labels) <= MAX_CLASSES else None
    (only, *others) = signature.outputs
    if others or len(only.shape) != 2 or not only.datatype.startswith(("FP", "BF")):
        return None
    measured = {name.rpartition("/")[2] for name in _metrics(version)}
    is_class = bool(measured & (SHARES - {"exact_match"}))
    return (only.name, only.shape[1]) if is_class and 2 <= only.shape[1] <= MAX_CLASSES else None


def disagreement_limit(live: Draft, candidate: Draft) -> float:
    """Returns the tolerated share of mirrored pairs that differ."""
    usual = DisagreementGuard().limit
    found = [usual, *_allowed_by_gates(candidate), *_allowed_by_gates(live)]
    if (accuracy := live.lineage.metrics.get(ACCURACY)) is not None:
        found.append(2 * (1 - accuracy))
    return round(max(one for one in found if one <= LARGEST_LIMIT), 6)


def _allowed_by_gates(version: Draft) -> Iterable[float]:
    """Yields how far the answers of artifacts may differ from those of their checkpoint."""
    for artifact in version.artifacts:
        for gate in artifact.verification.tolerance.single_gates.values():
            yield from (1 - limit for name, limit in gate.limits().items() if name in _OF_SHARES)


def _metrics(version: Draft) -> Iterable[str]:
    yield from version.lineage.metrics
    for artifact in version.artifacts:
        yield from artifact.verification.metrics
