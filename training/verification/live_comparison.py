"""Compares a new version with the live one on the same test rows.

In: the trained model, its test split, and the store. Out: both values, the confidence of the
difference, and the verdict on the recipe's condition. An impossible comparison is reported and is
no error: the new version is verified, and a person can still inspect it.

Rules: the live version runs as its artifact nearest to its checkpoint, in a separate process with
the limits of exports; nothing is opened before its digest is checked, and no code is run from a
store that others can write to.
"""

import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from flambeau.protocol.signature import Signature
from flambeau.protocol.tensors import Array
from model_store.arrays.golden_replay import run_in_batches
from model_store.artifact_kinds import STORED_KINDS
from model_store.errors import StoreError
from model_store.manifest import Artifact, Manifest
from model_store.pointers import PRODUCTION
from model_store.python_step import PythonStepError
from model_store.store import ModelStore
from training.errors import IsolationError
from training.loading.label_arrays import IGNORED_LABEL
from training.loading.splits import Split, Splits
from training.loop.evaluation import evaluate
from training.loop.loop import Trained
from training.metrics.confidence import paired_interval, wilson_interval
from training.metrics.task_metric import TaskMetric
from training.network.python_step import Step
from training.process.isolated_run import run_limited
from training.recipe.kinds.export_kinds import EXPORT_KINDS
from training.recipe.parts.promotion_condition import Condition
from training.recipe.recipe import Recipe
from training.reporting.report import LiveComparison
from training.verification.gate import no_difference
from training.verification.runners import file_runner
from training.verification.verify import Reference

ACCURACY = "test/accuracy"


class _NotComparableError(Exception):
    """The live version cannot be compared; the message says why."""


def compare_with_live(
    recipe: Recipe,
    trained: Trained,
    splits: Splits,
    expected: Reference,
    metrics: dict[str, float],
    store: ModelStore,
    step: Step | None = None,
) -> LiveComparison | None:
    """Compares the versions by the recipe's `publish.if`.

    Args:
        recipe: the run.
        trained: the new model.
        splits: the data, after the Python step.
        expected: the new checkpoint's outputs.
        metrics: the new checkpoint's metrics.
        store: the store of the live version.
        step: the recipe's Python step.

    Returns:
        The comparison; None if the recipe compares nothing.

    Raises:
        StorageError: the store cannot be reached.
    """
    condition = recipe.publish.rule().live
    if condition is None:
        return None
    pointers = store.pointers(recipe.publish.model)
    live = None if pointers is None else pointers.aliases.get(PRODUCTION)
    found = LiveComparison(
        condition=str(condition), version=live, new=metrics.get(condition.metric), met=live is None
    )
    if live is None:
        return found
    try:
        return _compared(found, condition, recipe, trained, splits, expected, store, live, step)
    except (_NotComparableError, IsolationError, StoreError, PythonStepError) as error:
        return found.model_copy(update={"refusal": str(error)})


def _compared(
    found: LiveComparison,
    condition: Condition,
    recipe: Recipe,
    trained: Trained,
    splits: Splits,
    expected: Reference,
    store: ModelStore,
    live: int,
    step: Step | None,
) -> LiveComparison:
    """Makes the comparison with figures."""
    if found.new is None:
        raise _NotComparableError(f"this run has no {condition.metric}")
    manifest = store.manifest(recipe.publish.model, live)
    _check_comparable(manifest, trained.signature, step)
    artifact = _nearest_to_checkpoint(manifest, store.is_local)
    outputs = _outputs(recipe, manifest, artifact, store, splits.test)
    theirs = _value(condition.metric, recipe, trained, outputs, splits.test)
    rounding = no_difference(condition.metric, recipe.loss.judged_task, splits.test.labels, theirs)
    figures: dict[str, object] = {
        "artifact": artifact.name,
        "live": theirs,
        "met": condition.met(found.new, theirs, rounding),
    }
    if condition.metric == ACCURACY:
        ours = expected.test_outputs[trained.signature.outputs[0].name]
        figures |= _intervals(ours, outputs, splits.test, found.new, theirs)
    return found.model_copy(update=figures)


def _value(metric: str, recipe: Recipe, trained: Trained, outputs: Array, test: Split) -> float:
    """Returns a metric of the live version.

    Raises:
        _NotComparableError: the metric needs more than the first output.
    """
    name = metric.rpartition("/")[2]
    if name != "loss":
        return TaskMetric.of(recipe).metrics(outputs, test.labels)[name]
    first = recipe.model.outputs[0]
    if any(term.output not in (None, first) for term in recipe.loss.terms):
        raise _NotComparableError("the loss is about several outputs; compare another metric")
    return evaluate(_Replayed(outputs), test, recipe, "test", trained.loss)[metric]


def _check_comparable(manifest: Manifest, signature: Signature, step: Step | None) -> None:
    """Checks that the live version has the same inputs and the same meaning of outputs.

    Raises:
        _NotComparableError: it has not.
    """
    theirs = manifest.python_step
    steps = (
        None if theirs is None else (theirs.file.sha256, theirs.name, theirs.args),
        None if step is None else (step.source_sha256(), step.name, step.args),
    )
    if steps[0] != steps[1]:
        raise _NotComparableError("its Python step differs")
    pairs = (
        ("takes", manifest.artifact_inputs(), signature.inputs),
        ("gives", manifest.signature.outputs, signature.outputs),
    )
    for verb, live, new in pairs:
        if live != new:
            texts = [
                ", ".join(f"{s.name} {s.datatype} {list(s.shape)}" for s in specs)
                for specs in (live, new)
            ]
            raise _NotComparableError(f"it {verb} {texts[0]}, and the new version {texts[1]}")
    if manifest.signature.labels != signature.labels:
        raise _NotComparableError("the names of its classes differ")


def _nearest_to_checkpoint(manifest: Manifest, store_is_local: bool) -> Artifact:
    """Returns the artifact in FP32, or else of the baseline, first; none that is remote code."""
    kinds = EXPORT_KINDS
    exported = [a for a in manifest.artifacts if STORED_KINDS[a.kind].is_exported]
    allowed = [artifact for artifact in exported if store_is_local or not artifact.is_code]
    if not allowed:
        raise _NotComparableError(
            "it is a Python model, or has only artifacts that are code and the store is remote"
        )
    return min(
        allowed,
        key=lambda a: (a.precision != "fp32", not kinds[a.kind].is_baseline, a.speed_key()),
    )


def _outputs(
    recipe: Recipe, manifest: Manifest, artifact: Artifact, store: ModelStore, test: Split
) -> Array:
    """Returns the first output of the live version for every test row."""
    signature = manifest.signature.model_copy(update={"inputs": manifest.artifact_inputs()})
    with tempfile.TemporaryDirectory(prefix="flambeau-live-") as folder:
        for entry in artifact.all_files():
            data = store.read_file(manifest, entry)
            if entry == artifact.file:
                artifact.check_file(data)
            (Path(folder) / entry.file).write_bytes(data)
        return run_limited(
            _run_file,
            artifact,
            Path(folder) / artifact.file.file,
            signature,
            test.inputs,
            limits=recipe.export_limits,
        )


def _run_file(
    artifact: Artifact, path: Path, signature: Signature, inputs: dict[str, Array]
) -> Array:
    """Runs an artifact's file; called in a separate process."""
    run = file_runner(artifact.kind, artifact.precision, path, signature)
    found = run_in_batches(run, inputs, signature.max_batch_size)
    return found[signature.outputs[0].name]


class _Replayed(nn.Module):
    """Returns known outputs in order, so that one function measures all models.

    Args:
        outputs: the outputs of every row, [rows, ...].
    """

    def __init__(self, outputs: Array) -> None:
        super().__init__()
        self._outputs, self._next = outputs, 0

    def forward(self, *inputs: Tensor) -> Tensor:
        """Returns the outputs of the next rows, as many as there are in the inputs."""
        start, self._next = self._next, self._next + len(inputs[0])
        return torch.from_numpy(np.ascontiguousarray(self._outputs[start : self._next]))


def _intervals(
    ours: Array, theirs: Array, test: Split, new: float, live: float
) -> dict[str, object]:
    """Returns 95 % intervals of both accuracies and their difference; none without labels."""
    counts = test.labels != IGNORED_LABEL
    if ours.shape[:-1] != test.labels.shape or ours.shape != theirs.shape:
        return {}
    right = [(logits.argmax(axis=-1) == test.labels)[counts] for logits in (ours, theirs)]
    labels = int(counts.sum())
    return {
        "new_interval": wilson_interval(new, labels),
        "live_interval": wilson_interval(live, labels),
        "difference_interval": paired_interval(right[0].astype(float) - right[1].astype(float)),
    }
