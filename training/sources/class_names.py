"""Replaces labels that are text by numbers of classes. Pure.

Rules: the recipe's own names set the order; without any, names are sorted; all splits use the same
numbers, from the names of the training rows.
"""

from collections.abc import Mapping

import numpy as np

from flambeau.protocol.strict import nearest_name
from flambeau.protocol.tensors import Array
from training.errors import DataError
from training.sources.rows import Rows

MAX_CLASSES = 100_000
"""Maximum number of names; more are free text, not classes."""
LONGEST_NAME = 200


def numbered(
    rows: Mapping[str, Rows], told: tuple[str, ...]
) -> tuple[dict[str, Rows], tuple[str, ...]]:
    """Returns the rows with integers in place of names.

    Args:
        rows: rows by split, or all of them as `train`.
        told: names of the classes in the recipe, in order; empty if it has none.

    Returns:
        The rows, and the names; no names if labels are numbers.

    Raises:
        DataError: some splits have names and others numbers, or a row has a class that is unknown
            to the others.
    """
    named = {split: found.labels.dtype.kind == "O" for split, found in rows.items()}
    if told and all(_written(found.labels) <= set(told) for found in rows.values()):
        names = told
    elif not any(named.values()):
        return dict(rows), ()
    elif not all(named.values()):
        raise DataError(
            f"data: labels of '{_first(named, True)}' are text, those of '{_first(named, False)}' "
            "numbers; give one or the other"
        )
    else:
        names = told or tuple(sorted(set(rows["train"].labels.ravel().tolist())))
        _check_names(names)
    number = {name: place for place, name in enumerate(names)}
    return {split: _numbered(found, number) for split, found in rows.items()}, names


def _written(labels: Array) -> set[str]:
    """Returns the texts of label values; none that can be a name if they are fractions."""
    if labels.dtype.kind not in "OiuU":
        return {""}
    return {str(value) for value in np.unique(labels).tolist()}


def _numbered(rows: Rows, number: Mapping[str, int]) -> Rows:
    flat = [str(value) for value in rows.labels.ravel().tolist()]
    columns = rows.labels.size // max(len(rows.labels), 1)
    for place, name in enumerate(flat):
        if name not in number:
            row = rows.place(place // columns)
            raise DataError(
                f"data: {row} has the class {name[:LONGEST_NAME]!r}, which is not among those of "
                f"the training rows or of labels{nearest_name(name, number)}"
            )
    labels = np.array([number[name] for name in flat], np.int64).reshape(rows.labels.shape)
    return Rows(rows.inputs, labels, rows.place)


def _check_names(names: tuple[str, ...]) -> None:
    if len(names) > MAX_CLASSES:
        raise DataError(
            f"data: the label has {len(names):,} different texts; {MAX_CLASSES:,} classes are the "
            "most: is it the right column?"
        )
    for name in names:
        if not name or len(name) > LONGEST_NAME:
            raise DataError(
                f"data: a class is called {name[:LONGEST_NAME]!r}; a name has 1 to {LONGEST_NAME} "
                "characters"
            )


def _first(named: Mapping[str, bool], wanted: bool) -> str:
    return next(split for split, found in named.items() if found is wanted)
