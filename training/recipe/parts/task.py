"""The task of a model, and the metrics of its answers. Pure.

The recipe's loss determines the task; the labels, the metrics and the gate follow from it.
"""

from typing import Literal

Task = Literal["classes", "multi_label", "regression", "counts"]
"""`classes`: one of K, whole numbers. `multi_label`: each of K independently, 0 or 1. `regression`:
numbers. `counts`: event counts, numbers from 0."""

OUTPUTS: Literal["outputs"] = "outputs"
"""Task of a model that was brought without labels: it has no metric, and no loss is about it."""
JudgedTask = Task | Literal["outputs"]

METRICS: dict[JudgedTask, tuple[str, ...]] = {
    "classes": ("accuracy", "macro_f1", "exact_match"),
    "multi_label": ("f1", "accuracy", "exact_match"),
    "regression": ("rmse", "mae", "r2"),
    "counts": ("rmse", "mae", "r2"),
}
"""Metrics of each task over a split. The first one verifies artifacts. `outputs` has none."""

LABELS_IN_WORDS: dict[JudgedTask, str] = {
    "classes": "whole numbers [rows] or [rows, T]",
    "multi_label": "0 and 1, [rows, K]",
    "regression": "numbers [rows], [rows, D] or [rows, T, D]",
    "counts": "numbers from 0, [rows], [rows, D] or [rows, T, D]",
}
"""Labels of each task, as text for messages."""
