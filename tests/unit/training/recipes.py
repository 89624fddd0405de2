"""Small recipes and splits for tests that need some."""

from typing import Any

import numpy as np

from training.datasets import Split, Splits
from training.recipe import Recipe

CLASSES = 3
DATA = "0" * 64
"""Stands for the digest of the data."""


def recipe(**changes: Any) -> Recipe:
    """A recipe for SmallCnn on `splits`."""
    document: dict[str, Any] = {
        "name": "small",
        "model": {
            "target": "training.networks:SmallCnn",
            "args": {"width": 4, "classes": CLASSES},
        },
        "data": {"target": "unused:unused", "batch_size": 16},
        "publish": {"model": "small"},
        **changes,
    }
    return Recipe.model_validate(document)


def splits(rows: int = 80) -> Splits:
    """Images whose class is written into one of their corners."""

    def split(seed: int) -> Split:
        random = np.random.default_rng(seed)
        labels = random.integers(0, CLASSES, rows)
        images = random.random((rows, 1, 8, 8), np.float32)
        images[np.arange(rows), 0, 0, labels] += 2
        return Split({"image": images}, labels)

    return Splits(split(1), split(2), split(3))
