"""The rows of a run: inputs and labels of its splits. Does not import torch."""

import hashlib
from dataclasses import dataclass, field

import numpy as np

from flambeau.protocol.tensors import Array, datatype_of, encode_bytes_elements
from model_store.manifest import DataOrigin
from training.loading.label_arrays import LabelArray
from training.loading.lazy_rows import LazyRows
from training.recipe.parts.loss_parts import LABELS
from training.sources.paths import SPLITS

GOLDEN_ROWS = 64
"""Held-out rows that every server replays when it loads the version."""


@dataclass(frozen=True, slots=True)
class Split:
    """Inputs and labels of one split."""

    inputs: dict[str, Array]
    """By tensor name, each [rows, ...]."""
    labels: LabelArray
    """Labels that evaluate the model. INT64 for classes: of each row, [rows], or of each of T
    positions, [rows, T], with `IGNORED_LABEL` at positions without a label. FP32 otherwise: 0 or 1
    of each of K labels, [rows, K]; numbers or counts, [rows], [rows, D], or [rows, T, D] with NaN
    at positions without a label."""
    others: dict[str, LabelArray] = field(default_factory=dict)
    """Further labels, by the name that terms of `loss.sum` use; each shaped as `labels` are."""

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(self.labels)

    def golden_inputs(self) -> dict[str, Array]:
        """Returns the first rows of the inputs."""
        return {name: array[:GOLDEN_ROWS] for name, array in self.inputs.items()}

    def every_labels(self) -> dict[str, LabelArray]:
        """Returns all labels by name: `labels`, and the others."""
        return {LABELS: self.labels, **self.others}

    def arrays(self) -> list[tuple[str, Array]]:
        """Returns inputs and labels by name; names of other labels cannot equal names of inputs."""
        others = [(f"labels.{name}", array) for name, array in sorted(self.others.items())]
        return [*sorted(self.inputs.items()), (LABELS, self.labels), *others]


@dataclass(frozen=True, slots=True)
class Splits:
    """The three splits of a run: for training, for choosing the best epoch, and for the test."""

    train: Split
    """All training rows, or a sample of them if `lazy_train` is given."""
    validation: Split
    test: Split
    lazy_train: LazyRows | None = None
    """Training rows that are read on demand."""
    origin: DataOrigin | None = None
    """The source of the rows; None for rows that were generated."""
    class_names: tuple[str, ...] = ()
    """Names of the label's classes, in order, if the data has them."""

    @property
    def train_labels(self) -> dict[str, LabelArray]:
        """All labels of the training rows by name; only those of `train` if no more are known."""
        known = None if self.lazy_train is None else self.lazy_train.labels
        if known is None:
            return self.train.every_labels()
        return {LABELS: known.astype(self.train.labels.dtype)}  # type: ignore[dict-item]

    def sha256(self) -> str:
        """Returns a digest of every name, type, shape and byte, in a fixed order."""
        digest = hashlib.sha256()
        if self.lazy_train is not None:
            digest.update(f"{self.lazy_train.sha256}\n".encode())
        for name, split in zip(SPLITS, (self.train, self.validation, self.test), strict=True):
            for tensor, array in split.arrays():
                digest.update(f"{name} {tensor} {array.dtype.str} {array.shape}\n".encode())
                text = datatype_of(array) == "BYTES"
                rows = np.ascontiguousarray(array)
                digest.update(encode_bytes_elements(rows) if text else rows.tobytes())
        return digest.hexdigest()
