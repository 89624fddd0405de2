"""Determines the semantic version bump that is required between two versions of a model. Pure.

    major   the signature changes: programs of callers may break
    minor   the same signature and different answers: another network or other weights
    patch   the same network and weights: exported again, quantized, measured again

In: the identities of two versions, as callers observe them. Out: the smallest bump, and the reason.

Rule: if in doubt, the larger bump. Weights without a file in the version may have changed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flambeau.protocol.called_signature import for_callers
from flambeau.protocol.signature import Signature, TensorSpec
from model_store.manifest import Draft, PythonStep
from model_store.pipelines.graph import Pipeline
from model_store.semver.semver import Bump

if TYPE_CHECKING:
    from model_store.golden import GoldenRows

WEIGHT_FILES = ("checkpoint.safetensors", "checkpoint.qat.safetensors")
"""Files of a version that hold trained weights: the network's, and its 8-bit (QAT) form's."""
RELATIVE, ABSOLUTE = 1e-3, 1e-3
"""Tolerances for the outputs of one network on two machines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Properties of a version that determine its answers."""

    signature: Signature
    weights: Mapping[str, str]
    """The sha256 of each file of `WEIGHT_FILES` that the version has."""
    network_sha256: str | None
    """See `Lineage.network_sha256`."""
    python_step: PythonStep | None
    pipeline: Pipeline | None = None


@dataclass(frozen=True, slots=True)
class Need:
    """The smallest bump that is required, and the reason."""

    bump: Bump
    reason: str


def identity_of(version: Draft) -> Identity:
    """Returns the properties of a version or a draft that determine its answers."""
    files = {name: version.file(name) for name in WEIGHT_FILES}
    return Identity(
        signature=for_callers(version.signature),
        weights={name: entry.sha256 for name, entry in files.items() if entry is not None},
        network_sha256=version.lineage.network_sha256,
        python_step=version.python_step,
        pipeline=None if version.pipeline is None else version.pipeline.graph,
    )


def needed_bump(old: Identity, new: Identity) -> Need:
    """Returns the smallest bump that is required from one version to the next."""
    if breaks := _what_breaks(old.signature, new.signature):
        return Need("major", breaks)
    if (old.pipeline is None) != (new.pipeline is None):
        kind = "a model" if new.pipeline is None else "a pipeline"
        return Need("major", f"it becomes {kind}, and pipelines contain models alone")
    if old.network_sha256 != new.network_sha256:
        return Need("minor", "the network changed (model or preprocess of the recipe)")
    if old.python_step != new.python_step:
        return Need("minor", "the python step changed")
    if old.pipeline != new.pipeline:
        return Need("minor", "the steps of the pipeline changed")
    if not new.weights or old.weights != new.weights:
        return Need("minor", "the weights changed")
    if new.signature != old.signature and (change := _what_widens(old.signature, new.signature)):
        return Need("minor", change)
    rows = old.signature.max_batch_size, new.signature.max_batch_size
    if rows[0] != rows[1]:
        return Need("minor", f"max_batch_size rises from {rows[0]} to {rows[1]}")
    return Need("patch", "network, weights and signature are the same")


def what_breaks(old: Draft, new: Draft) -> str:
    """Returns the first difference that may break callers of a version; empty if there is none."""
    need = needed_bump(identity_of(old), identity_of(new))
    return need.reason if need.bump == "major" else ""


def answers_differ(old: "GoldenRows", new: "GoldenRows") -> bool:
    """Returns True if two checkpoints gave different outputs for the same golden rows.

    Code that a recipe references by name may have changed under the same weights. Different inputs
    cannot be compared and count as no difference.
    """
    import numpy as np

    same_rows = old.inputs.keys() == new.inputs.keys() and all(
        np.array_equal(array, new.inputs[name]) for name, array in old.inputs.items()
    )
    return same_rows and not all(
        old.outputs[name].shape == array.shape
        and (
            np.array_equal(old.outputs[name], array)
            if array.dtype.hasobject
            else np.allclose(old.outputs[name], array, RELATIVE, ABSOLUTE, equal_nan=True)
        )
        for name, array in new.outputs.items()
    )


def _what_breaks(old: Signature, new: Signature) -> str:
    """Returns the first difference that may break callers; empty if there is none."""
    for what, before, after in (
        ("input", old.inputs, new.inputs),
        ("output", old.outputs, new.outputs),
    ):
        if text := _tensors_differ(what, before, after):
            return text
    if new.max_batch_size < old.max_batch_size:
        return f"max_batch_size falls from {old.max_batch_size} to {new.max_batch_size}"
    if (old.sequence is None) != (new.sequence is None):
        return f"it {'keeps' if new.sequence else 'no longer keeps'} state over a sequence"
    for name in ("dynamic", "limits", "labels", "padding"):
        if getattr(old, name) != getattr(new, name):
            return f"{name} of the signature changes"
    return ""


def _tensors_differ(
    what: str, before: tuple[TensorSpec, ...], after: tuple[TensorSpec, ...]
) -> str:
    had, has = ({spec.name: spec for spec in specs} for specs in (before, after))
    moved = [f"{what} '{name}' is removed" for name in had if name not in has]
    moved += [f"{what} '{s.name}' is new" for s in after if s.name not in had and not s.optional]
    if moved:
        return ", ".join(moved)
    for name in had:
        if had[name] not in (has[name], has[name].model_copy(update={"optional": False})):
            return f"{what} '{name}' changes from {_text(had[name])} to {_text(has[name])}"
    kept = [spec.name for spec in after if spec.name in had]
    return "" if [*had] == kept else f"the {what}s are in a different order"


def _what_widens(old: Signature, new: Signature) -> str:
    """Returns the first input that callers may omit from now on; empty if there is none."""
    had = {spec.name: spec.optional for spec in old.inputs}
    for spec in new.inputs:
        if spec.optional and not had.get(spec.name, False):
            return f"input '{spec.name}' is optional"
    return ""


def _text(spec: TensorSpec) -> str:
    batch = "" if spec.batch_axis == 0 else f" with batch axis {spec.batch_axis}"
    optional = "optional " if spec.optional else ""
    return f"{optional}{spec.datatype} {list(spec.shape)}{batch}"
