"""Makes the reference of a model that was brought, from recorded inputs and outputs.

In: example inputs, the outputs that the original gave for them, and perhaps labels and gates. Out:
the `Reference` that `verify_apart` compares artifacts with, as it does with a trained model's.
"""

from collections.abc import Mapping

import numpy as np

from flambeau.protocol.signature import Signature
from flambeau.protocol.strict import nearest_name
from flambeau.protocol.tensors import Array
from model_store.gates import parse_gates
from training.errors import DataError
from training.loading.label_arrays import LabelArray
from training.loading.splits import GOLDEN_ROWS, Split
from training.metrics.task_metric import TaskMetric
from training.recipe.parts.task import LABELS_IN_WORDS, METRICS, OUTPUTS, JudgedTask
from training.verification.verify import Reference


def imported_reference(
    signature: Signature,
    inputs: Mapping[str, Array],
    outputs: Mapping[str, Array],
    labels: Array | None = None,
    task: str | None = None,
    gates: object = None,
) -> Reference:
    """Returns the reference for artifacts of a model that was brought.

    Args:
        signature: inputs and outputs of the model.
        inputs: example inputs by name, each [rows, ...]; the first `GOLDEN_ROWS` become golden.
        outputs: the original's outputs for them by name, each [rows, ...].
        labels: labels of the rows, which the first output answers; None if there are none.
        task: meaning of the labels, such as `classes`, or the metric that judges it, such as
            `accuracy`; None to tell by the labels.
        gates: gates that the user gave, see `model_store.gates.parse_gates`; outputs without one
            have a gate by what they look like.

    Raises:
        GateError: a gate names no output or measure, or has a limit that cannot be kept.
        DataError: the labels do not fit the first output, or there are no rows.
    """
    told = parse_gates(gates, signature.outputs)
    rows = len(next(iter(inputs.values())))
    if rows == 0:
        raise DataError("the examples have 0 rows, so they prove nothing; give at least one")
    first = outputs[signature.outputs[0].name]
    if labels is None and task is not None:
        raise DataError(f"metric {task!r} compares outputs with labels; give the examples' labels")
    found: JudgedTask = OUTPUTS
    fitting: LabelArray = np.zeros((rows, 0), np.float32)
    if labels is not None:
        found = _task(np.asarray(labels), first, task)
        fitting = _labels(np.asarray(labels), first, found)
    return Reference(
        signature=signature,
        golden_inputs={name: array[:GOLDEN_ROWS] for name, array in inputs.items()},
        golden_outputs={name: array[:GOLDEN_ROWS] for name, array in outputs.items()},
        test=Split(inputs=dict(inputs), labels=fitting),
        test_outputs=dict(outputs),
        metric=TaskMetric(found),
        gates=told,
    )


def _task(labels: Array, first: Array, told: str | None) -> JudgedTask:
    """Returns the task that labels are about.

    Raises:
        DataError: there is no such task or metric.
    """
    if told is None:
        is_class = labels.dtype.kind in "iu" and labels.shape == first.shape[:-1]
        return "classes" if is_class else "regression"
    for task, metrics in METRICS.items():
        if told in (task, metrics[0]):
            return task
    known = [name for task, metrics in METRICS.items() for name in (task, metrics[0])]
    raise DataError(f"no metric or task {told!r}{nearest_name(told, known)}")


def _labels(labels: Array, first: Array, task: JudgedTask) -> LabelArray:
    """Returns labels in the types that metrics take.

    Raises:
        DataError: they do not fit the first output.
    """
    what = (
        f"labels are {labels.dtype} {list(labels.shape)}, and the first output is "
        f"{first.dtype} {list(first.shape)}"
    )
    if first.dtype.kind not in "fiu" or labels.dtype.kind not in "fiub":
        raise DataError(f"{what}; a metric is about numbers, so leave the labels out")
    if task == "classes":
        if labels.dtype.kind not in "iu" or labels.shape != first.shape[:-1]:
            raise DataError(f"{what}; give {LABELS_IN_WORDS[task]}, one for each place of classes")
        return labels.astype(np.int64)
    if len(labels) != len(first) or labels.size != first.size:
        raise DataError(f"{what}; give {LABELS_IN_WORDS[task]}, one for each number")
    return labels.astype(np.float32)
