"""Loads the data that a recipe names: reads, checks and splits it.

In: the `data` part of a recipe. Out: the three splits as a custom data set would return them
(`training.datasets`), the names of the classes, and the files they were read from.

Rules: an error names the first row, column or file that shows it; nothing is skipped silently.
"""

from dataclasses import dataclass

import numpy as np

from flambeau.protocol.tensors import Array
from model_store.manifest import DataFile
from training.errors import DataError
from training.recipe.parts.data_parts import DataPart, Shares
from training.sources.arrays import read_numpy, read_safetensors
from training.sources.class_names import numbered
from training.sources.data_files import DataFiles, DataReach
from training.sources.hugging_face import read_hugging_face
from training.sources.image_folder import read_image_folder
from training.sources.rows import Rows
from training.sources.scikit_learn import read_scikit_learn
from training.sources.shares import put_apart
from training.sources.table_files import read_csv, read_parquet


@dataclass(frozen=True, slots=True)
class Loaded:
    """The data of a source."""

    splits: dict[str, tuple[dict[str, Array], Array]]
    """Inputs by name and labels, by split."""
    class_names: tuple[str, ...]
    """In the order of their numbers; empty if labels are no classes, or have no names."""
    files: tuple[DataFile, ...]
    """The files that were read."""


def load_source(
    data: DataPart, seed: int, told: tuple[str, ...], reach: DataReach, classes: bool
) -> Loaded:
    """Reads the recipe's source.

    Args:
        data: the recipe's part, without a target of its own.
        seed: the seed of the run.
        told: names of the classes in the recipe; empty if it has none.
        reach: files and sizes that may be read.
        classes: True if the loss is about classes; other labels are split without regard to
            their values.

    Raises:
        DataError: the data has any fault.
    """
    files = DataFiles(reach)
    rows, own_names = _read(data, files)
    for split, found in rows.items():
        _check(found, split)
    rows, names = numbered(rows, told)
    if classes:
        rows = {split: _whole(found) for split, found in rows.items()}
    classes = classes and all(found.labels.dtype.kind in "iu" for found in rows.values())
    apart = put_apart(rows, data.chosen, seed, names or own_names, classes)
    splits = {split: (found.inputs, found.labels) for split, found in apart.items()}
    return Loaded(splits, names or own_names if classes else (), files.noted)


def _read(data: DataPart, files: DataFiles) -> tuple[dict[str, Rows], tuple[str, ...]]:
    """Reads rows by split, or all as `train`; and names of classes that are already numbers."""
    if data.csv is not None:
        return read_csv(data.csv, files), ()
    if data.parquet is not None:
        return read_parquet(data.parquet, files), ()
    if data.image_folder is not None:
        return read_image_folder(data.image_folder, files), ()
    if data.numpy is not None:
        return read_numpy(data.numpy, files), ()
    if data.safetensors is not None:
        return read_safetensors(data.safetensors, files), ()
    if data.huggingface is not None:
        return read_hugging_face(data.huggingface, files), ()
    assert isinstance(data.chosen, Shares), "what is left ships with scikit-learn"
    rows, names = read_scikit_learn(data.choice)
    return {"train": rows}, names


def _check(rows: Rows, split: str) -> None:
    """Checks that rows exist, in equal numbers, and that every number is finite."""
    count = len(rows.labels)
    if count == 0:
        raise DataError(f"data: '{split}' has no rows; give some, or leave the split to shares")
    for name, array in rows.inputs.items():
        if array.ndim == 0 or len(array) != count:
            raise DataError(
                f"data: input '{name}' of '{split}' has shape {list(array.shape)} and there are "
                f"{count} labels; give one row for each"
            )
        _check_finite(array, rows, f"input '{name}'")
    _check_finite(rows.labels, rows, "the label")


def _check_finite(array: Array, rows: Rows, what: str) -> None:
    if array.dtype.kind != "f" or np.isfinite(array).all():
        return
    wrong = ~np.isfinite(array).reshape(len(array), -1)
    row = int(np.flatnonzero(wrong.any(axis=1))[0])
    value = array.reshape(len(array), -1)[row][wrong[row]][0]
    raise DataError(
        f"data: {rows.place(row)}: {what} has {value}, which is not a number; correct it, or leave "
        "the row out"
    )


def _whole(rows: Rows) -> Rows:
    """Converts classes that are written as 1.0 to integers; returns others unchanged."""
    labels = rows.labels
    if labels.dtype.kind == "f" and np.array_equal(labels, np.trunc(labels)):
        return Rows(rows.inputs, labels.astype(np.int64), rows.place)
    return rows
