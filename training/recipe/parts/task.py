"""The task of a model, and the metrics of its answers. Pure.

The recipe's loss determines the task; the labels, the metrics and the gate follow from it.
"""

from typing import Literal

Task = Literal["classes", "multi_label", "regression", "counts"]
"""`classes`: one of K, whole numbers. `multi_label`: each of K independently, 0 or 1. `regression`:
numbers. `counts`: event counts, numbers from 0."""

METRICS: dict[Task, tuple[str, ...]] = {
    "classes": ("accuracy", "macro_f1", "exact_match"),
    "multi_label": ("f1", "accuracy", "exact_match"),
    "regression": ("rmse", "mae", "r2"),
    "counts": ("rmse", "mae", "r2"),
}
"""Metrics of each task over a split. The first one verifies artifacts."""

LABELS_IN_WORDS: dict[Task, str] = {
    "classes": "whole numbers [rows] or [rows, T]",
    "multi_label": "0 and 1, [rows, K]",
    "regression": "numbers [rows], [rows, D] or [rows, T, D]",
    "counts": "numbers from 0, [rows], [rows, D] or [rows, T, D]",
}
"""Labels of each task, as text for messages."""
