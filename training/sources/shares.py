"""Splits rows by shares, with a seed; each class is in every split.

In: rows by split, of which `train` has those of the missing splits too. Out: all three splits.
"""

from collections.abc import Mapping

import numpy as np

from flambeau.protocol.tensors import Array
from training.errors import DataError
from training.recipe.parts.data_parts import Shares
from training.sources.rows import Rows


def put_apart(
    rows: Mapping[str, Rows], shares: Shares, seed: int, names: tuple[str, ...], classes: bool
) -> dict[str, Rows]:
    """Makes the three splits.

    Args:
        rows: rows by split; missing splits are cut off `train`.
        shares: the shares of the missing splits.
        seed: the seed of the run, for shares without one.
        names: names of the classes, for messages; may be empty.
        classes: True if labels are classes; with one a row, each split then keeps their shares.

    Raises:
        DataError: a split would be empty or miss a class.
    """
    found = dict(rows)
    seed = seed if shares.seed is None else shares.seed
    cuts = [
        (split, share)
        for split, share in (("test", shares.test_share), ("validation", shares.validation_share))
        if split not in rows
    ]
    stratified = classes and rows["train"].labels.ndim == 1
    if stratified:
        _check_classes(rows["train"], names, len(cuts) + 1)
    for split, share in cuts:
        found["train"], found[split] = _cut(found["train"], split, share, seed, stratified)
    if stratified:
        for split, _ in cuts:
            _check_none_missing(found[split], found["train"], names, split)
        for split in ("validation", "test"):
            _check_none_new(found[split], found["train"], names)
    return found


def _cut(rows: Rows, split: str, share: float, seed: int, stratified: bool) -> tuple[Rows, Rows]:
    from sklearn.model_selection import train_test_split

    labels = rows.labels if stratified else None
    try:
        kept, cut = train_test_split(
            np.arange(len(rows.labels)), test_size=share, stratify=labels, random_state=seed
        )
    except ValueError as error:
        raise DataError(
            f"data: {len(rows.labels)} rows cannot be split with {split}_share {share}: {error}; "
            "change the share, or give more rows"
        ) from error
    return rows.taken(kept), rows.taken(cut)


def _check_classes(rows: Rows, names: tuple[str, ...], least: int) -> None:
    """Checks that classes are numbered from 0 without gaps, each with a row for every split."""
    labels = rows.labels.astype(np.int64)
    if labels.min() < 0:
        row = int(np.flatnonzero(labels < 0)[0])
        raise DataError(f"data: {rows.place(row)} has the class {labels[row]}; classes begin at 0")
    found, counts = np.unique(labels, return_counts=True)
    classes = len(names) or int(labels.max()) + 1
    if len(found) < classes:
        gap = next(n for n, label in enumerate([*found.tolist(), -1]) if n != label)
        raise DataError(
            f"data: {_class(gap, names)} has no row to learn from, and classes go to "
            f"{classes - 1}; number them from 0 without gaps, have `labels` name those there are, "
            "or take a loss for numbers if they are not classes"
        )
    if counts.min() < least:
        rare = int(counts.argmin())
        row = int(np.flatnonzero(labels == found[rare])[0])
        raise DataError(
            f"data: {_class(int(found[rare]), names)} has {counts[rare]} rows (the first is "
            f"{rows.place(row)}), and {least} splits need one each; give more, or leave it out"
        )


def _check_none_missing(rows: Rows, train: Rows, names: tuple[str, ...], split: str) -> None:
    missing = _absent(train.labels, rows.labels)
    if missing:
        raise DataError(
            f"data: {_class(missing[0], names)} has no row in '{split}', which has "
            f"{len(rows.labels)}; raise {split}_share, or leave the class out"
        )


def _check_none_new(rows: Rows, train: Rows, names: tuple[str, ...]) -> None:
    new = _absent(rows.labels, train.labels)
    if new:
        row = int(np.flatnonzero(rows.labels == new[0])[0])
        raise DataError(
            f"data: {rows.place(row)} has {_class(new[0], names)}, which no training row has; "
            "give some to learn from, or leave it out"
        )


def _absent(labels: Array, among: Array) -> list[int]:
    return [int(label) for label in np.setdiff1d(labels, among)]


def _class(number: int, names: tuple[str, ...]) -> str:
    return f"class '{names[number]}'" if 0 <= number < len(names) else f"class {number}"
