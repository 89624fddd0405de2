"""Analyses the checkpoint's answers to the test split for the report. Imports no torch.

In: outputs, labels and their input rows. Out: an `Examination`, of bounded size.

Shapes: N rows, T labels per row (absent for one label per row), K classes or labels, D numeric
columns, M labels that count in total.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flambeau.protocol.tensors import Array
from training.loading.label_arrays import LabelArray, counted, spreads
from training.metrics.task_metric import TaskMetric
from training.reporting.examination import (
    CALIBRATION_BINS,
    MAX_COLUMNS,
    MAX_CONFUSED_PAIRS,
    MAX_LABELS,
    MAX_MATRIX_CLASSES,
    MAX_RESIDUALS,
    MAX_WORST_ROWS,
    Calibration,
    CalibrationBin,
    ConfusedPair,
    Confusion,
    Examination,
    LabelFigures,
    Residuals,
    WorstRow,
    cut,
)
from training.reporting.row_preview import preview

NUMBERS_AT_ONCE = 1 << 20
"""Logits converted to probabilities at once."""
LARGEST_LOSS = 1e9
"""Replacement for a loss that is not finite."""
MAX_NAMES = 16
"""Most labels of one row that are written out."""

Numbers = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]
Truths = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class _Rows:
    """Loss, confidence and texts of each row, in the order of the split."""

    loss: Numbers
    """Loss [N]; below 0 if no label counts."""
    confidence: Numbers | None
    """Confidence [N]"""
    truth: Callable[[int], str]
    answer: Callable[[int], str]


def examine(
    metric: TaskMetric,
    outputs: Array,
    labels: LabelArray,
    names: Sequence[str] = (),
    inputs: Mapping[str, Array] | None = None,
) -> Examination | None:
    """Analyses answers.

    Args:
        metric: metric of the task.
        outputs: for classes logits [N, K] or [N, T, K]; otherwise in the labels' shape, where [N,
            1] is accepted for [N].
        labels: labels as in `training.datasets.Split`.
        names: names of the classes or labels, in order; without them numbers are used.
        inputs: raw inputs by name, each [N, ...], as a client would send them.

    Returns:
        None if the outputs do not have these shapes.
    """
    if metric.task == "classes":
        if outputs.shape[:-1] != labels.shape or not counted(labels).any():
            return None
        found, rows = _classes(outputs, labels, _named(names, outputs.shape[-1], ""))
    elif outputs.size != labels.size or len(outputs) != len(labels):
        return None
    elif metric.task == "multi_label":
        logits = outputs.reshape(len(labels), -1).astype(np.float64)
        told = labels.reshape(len(labels), -1) == 1
        found, rows = _multi_label(logits, told, _named(names, told.shape[1], "label "))
    else:
        found, rows = _numbers(metric.predicted(outputs, labels), labels)
    return found.model_copy(update={"worst": _worst(rows, inputs or {})})


def _named(names: Sequence[str], count: int, before: str) -> list[str]:
    if len(names) == count:
        return [cut(name) for name in names]
    return [f"{before}{place}" for place in range(count)]


def _classes(logits: Array, labels: LabelArray, names: Sequence[str]) -> tuple[Examination, _Rows]:
    counts = counted(labels)
    answers, confidence, loss = _answers(logits, labels)
    told, given = labels[counts].astype(np.int64), answers[counts]
    found = Examination(
        rows=len(labels),
        confusion=_confusion(told, given, names),
        calibration=calibration(confidence[counts], told == given),
    )

    def text(numbers: Array, row: int) -> str:
        taken = numbers[row][counts[row]].ravel()
        return _joined([names[place] for place in taken.tolist()], " ")

    return found, _Rows(
        loss=_row_means(loss, counts, -1.0),
        confidence=_row_means(confidence, counts, 0.0),
        truth=lambda row: text(labels, row),
        answer=lambda row: text(answers, row),
    )


def _answers(logits: Array, labels: LabelArray) -> tuple[Places, Numbers, Numbers]:
    """Returns the top class, its probability, and the true class's loss, each in labels' shape."""
    answers = np.zeros(labels.shape, np.int64)
    confidence, loss = np.zeros((2, *labels.shape))
    right = np.where(counted(labels), labels, 0).astype(np.int64)
    step = max(1, NUMBERS_AT_ONCE // max(1, logits[:1].size))
    for start in range(0, len(labels), step):
        rows = slice(start, start + step)
        with np.errstate(invalid="ignore", over="ignore"):
            shifted = logits[rows].astype(np.float64)
            shifted -= shifted.max(axis=-1, keepdims=True)
            log_p = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
        answers[rows] = logits[rows].argmax(axis=-1)
        confidence[rows] = np.exp(np.take_along_axis(log_p, answers[rows][..., None], -1))[..., 0]
        loss[rows] = -np.take_along_axis(log_p, right[rows][..., None], -1)[..., 0]
    return answers, np.nan_to_num(confidence), _finite(loss)


def _finite(loss: Numbers) -> Numbers:
    """Replaces losses that are not finite by the largest."""
    return np.minimum(np.nan_to_num(loss, nan=LARGEST_LOSS, posinf=LARGEST_LOSS), LARGEST_LOSS)


def _row_means(numbers: Numbers, counts: Truths, without: float) -> Numbers:
    """Returns the mean over the counting labels of each row, [N]; `without` if none counts."""
    rows = counts.reshape(len(counts), -1)
    sums = np.where(rows, numbers.reshape(rows.shape), 0).sum(axis=1)
    return np.where(rows.any(axis=1), sums / np.maximum(rows.sum(axis=1), 1), without)


def _confusion(told: Places, given: Places, names: Sequence[str]) -> Confusion:
    classes = len(names)
    if classes <= MAX_MATRIX_CLASSES:
        counts = np.bincount(told * classes + given, minlength=classes**2)
        rows = counts.reshape(classes, classes).tolist()
        return Confusion(classes=tuple(names), counts=tuple(map(tuple, rows)))
    wrong = told != given
    pairs, counts = np.unique(told[wrong] * classes + given[wrong], return_counts=True)
    labels = np.bincount(told, minlength=classes)
    most = np.argsort(-counts, kind="stable")[:MAX_CONFUSED_PAIRS]
    return Confusion(
        pairs=tuple(
            ConfusedPair(
                truth=names[pair // classes],
                answer=names[pair % classes],
                count=count,
                labels=int(labels[pair // classes]),
            )
            for pair, count in zip(pairs[most].tolist(), counts[most].tolist(), strict=True)
        )
    )


def calibration(confidence: Numbers, right: Truths) -> Calibration:
    """Computes bins of equal width and the expected calibration error; see `Calibration`.

    Args:
        confidence: confidence of each answer, 0 to 1, [M].
        right: correctness of each answer, [M].
    """
    # A bin includes its upper bound, as in the paper; 0 belongs to the first.
    places = np.clip(np.ceil(confidence * CALIBRATION_BINS).astype(int) - 1, 0, None)
    bins = []
    for place in np.unique(places).tolist():
        within = places == place
        bins.append(
            CalibrationBin(
                low=place / CALIBRATION_BINS,
                high=(place + 1) / CALIBRATION_BINS,
                count=int(within.sum()),
                confidence=float(confidence[within].mean()),
                accuracy=float(right[within].mean()),
            )
        )
    gaps = sum(one.count * abs(one.accuracy - one.confidence) for one in bins)
    return Calibration(bins=tuple(bins), expected_error=gaps / max(1, len(right)))


def _multi_label(logits: Numbers, told: Truths, names: Sequence[str]) -> tuple[Examination, _Rows]:
    """Analyses logits [N, K] and labels [N, K]."""
    given = logits > 0
    confidence = np.nan_to_num(1 / (1 + np.exp(-np.minimum(np.abs(logits), 700))))
    with np.errstate(invalid="ignore"):
        loss = _finite(np.logaddexp(0, logits) - np.where(told, logits, 0))
    figures = sorted(
        (_label_figures(name, told[:, k], given[:, k]) for k, name in enumerate(names)),
        key=lambda one: one.f1,
    )
    found = Examination(
        rows=len(told),
        calibration=calibration(confidence.ravel(), (told == given).ravel()),
        label_figures=tuple(figures[:MAX_LABELS]),
        left_out=max(0, len(figures) - MAX_LABELS),
    )

    def text(ones: Truths, row: int) -> str:
        return _joined([names[k] for k in np.flatnonzero(ones[row]).tolist()], ", ") or "none"

    return found, _Rows(
        loss=loss.mean(axis=1),
        confidence=confidence.mean(axis=1),
        truth=lambda row: text(told, row),
        answer=lambda row: text(given, row),
    )


def _label_figures(name: str, told: Truths, given: Truths) -> LabelFigures:
    """Computes the figures of one label from arrays [N]."""
    rows, answered, both = int(told.sum()), int(given.sum()), int((told & given).sum())
    return LabelFigures(
        name=name,
        rows=rows,
        precision=both / answered if answered else None,
        recall=both / rows if rows else None,
        f1=2 * both / (rows + answered) if rows + answered else 0.0,
    )


def _numbers(predicted: Numbers, labels: LabelArray) -> tuple[Examination, _Rows]:
    """Analyses arrays [N], [N, D] or [N, T, D]; NaN marks labels that do not count."""
    columns = 1 if labels.ndim == 1 else labels.shape[-1]
    told = labels.reshape(len(labels), -1, columns).astype(np.float64)  # [N, T, D]
    given = predicted.reshape(told.shape)
    counts = ~np.isnan(told)
    residuals = tuple(
        _residuals(f"column {k}" if columns > 1 else "", told[..., k], given[..., k])
        for k in range(min(columns, MAX_COLUMNS))
    )
    found = Examination(
        rows=len(labels), residuals=residuals, left_out=max(0, columns - MAX_COLUMNS)
    )

    def text(numbers: Numbers, row: int) -> str:
        return _joined([f"{number:.4g}" for number in numbers[row][counts[row]].tolist()], ", ")

    return found, _Rows(
        loss=_row_means(_finite(np.abs(given - told) / spreads(labels)), counts, -1.0),
        confidence=None,
        truth=lambda row: text(told, row),
        answer=lambda row: text(given, row),
    )


def _residuals(column: str, told: Numbers, given: Numbers) -> Residuals:
    """Analyses one column, [N, T] each."""
    counts = ~np.isnan(told)
    told, given = told[counts], given[counts]
    shown = np.linspace(0, len(told) - 1, min(len(told), MAX_RESIDUALS)).round().astype(int)
    return Residuals(
        column=column,
        points=tuple(zip(told[shown].tolist(), given[shown].tolist(), strict=True)),
        labels=len(told),
        mean_error=float((given - told).mean()) if len(told) else 0.0,
    )


def _worst(rows: _Rows, inputs: Mapping[str, Array]) -> tuple[WorstRow, ...]:
    """Returns the rows with the largest loss; of equal ones the first."""
    order = np.argsort(-rows.loss, kind="stable")[:MAX_WORST_ROWS].tolist()
    found = []
    for row in order:
        if rows.loss[row] < 0:
            continue
        picture, values = preview({name: array[row, ...] for name, array in inputs.items()})
        found.append(
            WorstRow(
                row=row,
                loss=float(rows.loss[row]),
                truth=rows.truth(row),
                answer=rows.answer(row),
                confidence=None if rows.confidence is None else float(rows.confidence[row]),
                picture=picture,
                values=values,
            )
        )
    return tuple(found)


def _joined(names: list[str], between: str) -> str:
    more = ["…"] if len(names) > MAX_NAMES else []
    return cut(between.join(names[:MAX_NAMES] + more))
