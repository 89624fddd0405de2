"""Every family of networks, tiny and untrained, with data that fits it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flambeau.protocol.tensors import Array
from tests.unit.training.recipes import CLASSES, recipe
from training.datasets import Split, Splits
from training.recipe.recipe import Recipe

LONGEST = 8


def images(rows: int, seed: int) -> dict[str, Array]:
    """FP32 [rows, 1, 8, 8]."""
    return {"image": np.random.default_rng(seed).random((rows, 1, 8, 8), np.float32)}


def columns(rows: int, seed: int) -> dict[str, Array]:
    """FP32 [rows, T, 8] and INT64 [rows]: as long as the longest row, which differs by seed."""
    random = np.random.default_rng(seed)
    lengths = random.integers(1, LONGEST, rows, endpoint=True)
    real = np.arange(LONGEST) < lengths[:, None]
    elements = random.random((rows, LONGEST, 8), np.float32) * real[:, :, None].astype(np.float32)
    # A part of a larger array, as rows that are cut often are.
    return {"columns": elements[:, : lengths.max()], "lengths": lengths}


def tokens(rows: int, seed: int) -> dict[str, Array]:
    """INT64 [rows, T] and BOOL [rows, T]: as long as the longest row, which differs by seed."""
    random = np.random.default_rng(seed)
    lengths = random.integers(1, LONGEST, rows, endpoint=True)
    real = np.arange(lengths.max()) < lengths[:, None]
    return {"tokens": random.integers(0, 20, real.shape) * real, "mask": real}


@dataclass(frozen=True)
class Family:
    """Factory of one family, and rows for it."""

    target: str
    args: dict[str, Any]
    rows: Callable[[int, int], dict[str, Array]] = images
    """Rows by their number and a seed."""
    varies: dict[str, Any] = field(default_factory=dict)
    """Variable axes, in the recipe's notation."""
    label_shape: tuple[int, ...] = ()

    def recipe(self, *exports: dict[str, Any]) -> Recipe:
        """Returns a recipe that makes these artifacts."""
        model = {"target": self.target, "args": self.args}
        return recipe(model=model, export=list(exports), max_batch_size=32, **self.varies)

    def splits(self, rows: int = 80) -> Splits:
        """Rows with labels that mean nothing."""
        labels = np.random.default_rng(0).integers(0, CLASSES, (rows, *self.label_shape))
        train, validation, test = (Split(self.rows(rows, seed), labels) for seed in (1, 2, 3))
        return Splits(train, validation, test)


_LENGTHS = {"padding": {"inputs": {"columns": 1}, "lengths": "lengths", "buckets": [4, LONGEST]}}
FAMILIES = {
    "mlp": Family(
        "training.models.mlp:Mlp",
        {"features": 64, "hidden": [16], "classes": CLASSES},
        lambda rows, seed: {"features": images(rows, seed)["image"].reshape(rows, 64)},
    ),
    "cnn": Family(
        "training.models.residual_cnn:ResidualCnn",
        {"width": 8, "classes": CLASSES},
        varies={"dynamic": {"image": {2: [6, 12], 3: [8, 16]}}},
    ),
    "lstm": Family(
        "training.models.recurrent:RecurrentClassifier",
        {"hidden": 8, "classes": CLASSES},
        columns,
        _LENGTHS,
    ),
    "transformer": Family(
        "training.models.encoder:EncoderClassifier",
        {"vocabulary": 20, "longest": LONGEST, "width": 16, "heads": 2, "layers": 1, "classes": 3},
        tokens,
        {"padding": {"inputs": {"tokens": 1}, "mask": "mask", "buckets": [4, LONGEST]}},
    ),
    "seq2seq": Family(
        "training.models.seq2seq:Seq2Seq",
        {"symbols": 5, "longest": 3, "hidden": 8},
        columns,
        _LENGTHS,
        (3,),
    ),
    "swish": Family("training.models.swish:SwishClassifier", {"hidden": 16, "classes": CLASSES}),
    "early exit": Family(
        "training.models.early_exit:EarlyExit",
        {"hidden": 16, "classes": CLASSES, "stages": 3, "threshold": 0.4},
    ),
}
