"""Converts columns of a pyarrow table to named tensors and labels.

In: a table whose cells are numbers, text, or lists of numbers of one length. Out: rows.

Rules: an error about a cell that is missing, or no number, has its row and column; a column has one
type throughout; a number written as text is a number.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from flambeau.protocol.strict import nearest_name
from flambeau.protocol.tensors import Array
from training.errors import DataError
from training.recipe.parts.data_parts import Columns, Table
from training.sources.data_files import DataReach
from training.sources.paths import SPLITS
from training.sources.rows import Rows

if TYPE_CHECKING:
    import pyarrow as pa

MISSING = ("", "NA", "N/A", "NaN", "nan", "null", "NULL")
"""Texts of a cell without a value."""
DTYPES = {
    "fp32": np.float32, "fp64": np.float64, "int64": np.int64, "int32": np.int32,
    "uint8": np.uint8, "bool": np.bool_,
}  # fmt: skip
Place = Callable[[int], str]


def columns_read(part: Table, known: list[str], path: str) -> list[str] | None:
    """Returns the columns that a recipe needs; None for all columns.

    Raises:
        DataError: one of them is missing; the message has the nearest name.
    """
    groups = part.inputs.values()
    named = dict.fromkeys([*part.special(), *(name for group in groups for name in group.names())])
    for name in named:
        if name not in known:
            raise DataError(f"data: {path} has no column {name!r}{nearest_name(name, known)}")
    return list(named) if part.inputs else None


def rows_by_split(
    tables: Iterable[tuple[str, str, "pa.Table"]],
    part: Table,
    reach: DataReach,
    row_name: Callable[[int], str] = "row {}".format,
) -> dict[str, Rows]:
    """Returns the rows of each table, or by the split column if the recipe names one.

    Args:
        tables: (split, path of its file, cells) each.
        part: the columns of inputs and labels.
        reach: limit of the number of rows.
        row_name: name of a row within its file, for messages.

    Raises:
        DataError: a file has too many rows, or a cell has a wrong value.
    """
    found = {}
    for split, path, table in tables:
        reach.check_rows(table.num_rows, f"data: {path}")

        def place(row: int, path: str = path) -> str:
            return f"{path}, {row_name(row)}"

        found[split] = rows_of(table, part, place, path)
        if part.split_column is not None:
            return rows_put_apart(found[split], table, part.split_column, path)
    return found


def rows_of(table: "pa.Table", part: Table, place: Place, path: str) -> Rows:
    """Returns the inputs and labels of a table.

    Args:
        table: the cells, with the columns of `columns_read`.
        part: the columns of inputs and labels.
        place: describes the place of a row, for messages.
        path: path of the file, for messages.

    Raises:
        DataError: a cell has a wrong value, or no column is left for the inputs.
    """
    if not table.num_rows:
        raise DataError(f"data: {path} has columns and no row; give rows to learn from")
    groups = dict(part.inputs)
    if not groups:
        others = tuple(name for name in table.column_names if name not in part.special())
        if not others:
            raise DataError(
                f"data: {path} has no columns beside {list(part.special())}; nothing to learn from"
            )
        groups = {"features": Columns(columns=others)}
    inputs = {
        tensor: _tensor(table, group, part.missing, place) for tensor, group in groups.items()
    }
    labels = [_label(table, name, place) for name in part.labels()]
    if len({label.dtype.kind == "O" for label in labels}) > 1:
        raise DataError(f"data: {path}: of the labels {list(part.labels())} some are text only")
    return Rows(inputs, labels[0] if isinstance(part.label, str) else np.stack(labels, 1), place)


def rows_put_apart(rows: Rows, table: "pa.Table", column: str, path: str) -> dict[str, Rows]:
    """Splits the rows by the values of a column.

    Raises:
        DataError: a cell has another value, or no row is for training.
    """
    said = np.array([str(value) for value in table[column].to_pylist()], np.object_)
    wrong = np.flatnonzero(~np.isin(said.astype(str), SPLITS)) if len(said) else np.array([], int)
    if wrong.size:
        row = int(wrong[0])
        raise DataError(
            f"data: {rows.place(row)}: split_column '{column}' says {said[row][:80]!r}; it may be "
            f"{', '.join(SPLITS)}"
        )
    if "train" not in said:
        raise DataError(f"data: {path}: no row of split_column '{column}' says 'train'")
    return {split: rows.taken(np.flatnonzero(said == split)) for split in SPLITS if split in said}


def _tensor(table: "pa.Table", group: Columns, missing: float | None, place: Place) -> Array:
    if isinstance(group.columns, str):
        return _column(table, group.columns, group.dtype, missing, place)
    first = _column(table, group.columns[0], group.dtype, missing, place)
    if first.ndim > 1:
        raise DataError(
            f"data: column '{group.columns[0]}' holds lists; make it an input of its own, as in "
            f"{{{group.columns[0]}: {group.columns[0]}}}"
        )
    tensor = np.empty((len(first), len(group.columns)), first.dtype)
    for index, name in enumerate(group.columns):
        found = first if index == 0 else _column(table, name, group.dtype, missing, place)
        if found.ndim > 1:
            raise DataError(f"data: column '{name}' holds lists; make it an input of its own")
        tensor[:, index] = found
    return tensor


def _column(table: "pa.Table", name: str, dtype: str, missing: float | None, place: Place) -> Array:
    """Returns a column as [rows], or [rows, T] if its cells are lists."""
    import pyarrow as pa

    cells = _plain(table, name)
    if pa.types.is_list(cells.type) or pa.types.is_large_list(cells.type):
        return _lists(cells, name, dtype, missing, place)
    if pa.types.is_fixed_size_list(cells.type):
        as_lists = cells.cast(pa.list_(cells.type.value_type))
        return _lists(as_lists, name, dtype, missing, place)
    return _numbers(cells, name, dtype, missing, place)


def _lists(cells: Any, name: str, dtype: str, missing: float | None, place: Place) -> Array:
    import pyarrow.compute as pc

    lengths = _array(pc.list_value_length(cells).fill_null(-1)).astype(np.int64)
    if not len(lengths):
        return np.empty((0, 0), DTYPES.get(dtype, np.object_))
    odd = np.flatnonzero((lengths != lengths[0]) | (lengths < 0))
    if odd.size:
        row = int(odd[0])
        what = "is missing" if lengths[row] < 0 else f"has {lengths[row]} elements"
        raise DataError(
            f"data: {place(row)}: column '{name}' {what}, and the first row has {lengths[0]}; "
            "give lists of one length"
        )
    length = int(lengths[0])
    flat = _numbers(cells.flatten(), name, dtype, missing, lambda row: place(row // max(length, 1)))
    return flat.reshape(len(lengths), length)


def _plain(table: "pa.Table", name: str) -> Any:
    """Returns a column as one chunk, without a dictionary."""
    import pyarrow as pa

    column = table[name]
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    return column.combine_chunks()


def _numbers(cells: Any, name: str, dtype: str, missing: float | None, place: Place) -> Array:
    """Returns cells as a flat array of one type."""
    import pyarrow as pa

    if dtype == "text":
        return _texts(cells, name, place)
    whole = dtype in ("int64", "int32", "uint8")
    target = pa.int64() if whole else pa.bool_() if dtype == "bool" else pa.float64()
    cells = _cast(_with_nulls(cells), target, name, place)
    if cells.null_count:
        cells = _filled(cells, missing, name, dtype, place)
    found = _array(cells)
    if whole:
        _check_range(found.astype(np.int64), name, dtype, place)
    with np.errstate(over="ignore"):  # values beyond FP32 are refused with their row later
        return found.astype(DTYPES[dtype])


def _check_range(numbers: npt.NDArray[np.int64], name: str, dtype: str, place: Place) -> None:
    limits = np.iinfo(DTYPES[dtype])
    wrong = np.flatnonzero((numbers < limits.min) | (numbers > limits.max))
    if wrong.size:
        row = int(wrong[0])
        raise DataError(
            f"data: {place(row)}: column '{name}' has {numbers[row]}, and {dtype} holds "
            f"{limits.min} to {limits.max}; take another dtype"
        )


def _filled(cells: Any, missing: float | None, name: str, dtype: str, place: Place) -> Any:
    import pyarrow as pa

    row = _first_null(cells)
    if missing is None:
        raise DataError(
            f"data: {place(row)}: column '{name}' has no value; fill it, or say in `missing` what "
            "stands for it"
        )
    if not pa.types.is_floating(cells.type) and not missing.is_integer():
        raise DataError(
            f"data: {place(row)}: column '{name}' has no value, and `missing` is {missing}, which "
            f"{dtype} does not hold; give a whole number"
        )
    value = pa.scalar(missing if pa.types.is_floating(cells.type) else int(missing))
    return cells.fill_null(value.cast(cells.type))


def _with_nulls(cells: Any) -> Any:
    """Replaces every text for a missing value by null; strips text."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_large_string(cells.type):
        cells = cells.cast(pa.string())
    if pa.types.is_string(cells.type):
        cells = pc.utf8_trim_whitespace(cells)
        empty = pc.is_in(cells, value_set=pa.array(MISSING))
        return pc.if_else(empty, pa.scalar(None, pa.string()), cells)
    if pa.types.is_floating(cells.type):
        return pc.if_else(pc.is_nan(cells), pa.scalar(None, cells.type), cells)
    return cells


def _cast(cells: Any, target: Any, name: str, place: Place) -> Any:
    import pyarrow as pa

    if not (
        pa.types.is_string(cells.type)
        or pa.types.is_integer(cells.type)
        or pa.types.is_floating(cells.type)
        or pa.types.is_boolean(cells.type)
        or pa.types.is_decimal(cells.type)
    ):
        raise DataError(
            f"data: column '{name}' holds {cells.type}, which is neither number nor text; leave it "
            "out of inputs, or make numbers of it"
        )
    if pa.types.is_boolean(cells.type):
        cells = cells.cast(pa.int8())
    try:
        return cells.cast(target)
    except pa.ArrowException:
        row = _first_that_fails(cells, target)
        raise DataError(
            f"data: {place(row)}: column '{name}' has {str(cells[row])[:80]!r}, which is not a "
            f"{'whole number' if pa.types.is_integer(target) else 'number'}; correct it, leave the "
            "column out of inputs, or take another dtype"
        ) from None


def _first_that_fails(cells: Any, target: Any) -> int:
    """Finds the first cell that cannot be cast, by bisection: few cells are cast twice."""
    import pyarrow as pa

    start, stop = 0, len(cells)
    while stop - start > 1:
        middle = (start + stop) // 2
        try:
            cells.slice(start, middle - start).cast(target)
        except pa.ArrowException:
            stop = middle
        else:
            start = middle
    return start


def _first_null(cells: Any) -> int:
    return int(np.flatnonzero(_array(cells.is_null()))[0])


def _array(cells: Any) -> Array:
    """Returns cells as NumPy; copies if the types differ in memory."""
    found: Array = cells.to_numpy(zero_copy_only=False)
    return found


def _texts(cells: Any, name: str, place: Place) -> Array:
    import pyarrow as pa

    if not (pa.types.is_string(cells.type) or pa.types.is_large_string(cells.type)):
        raise DataError(f"data: column '{name}' holds {cells.type}, and dtype is text")
    return _objects(cells, name, place)


def _objects(cells: Any, name: str, place: Place) -> Array:
    found = np.empty(len(cells), np.object_)
    found[:] = cells.to_pylist()
    if cells.null_count:
        raise DataError(f"data: {place(_first_null(cells))}: column '{name}' has no value; fill it")
    return found


def _label(table: "pa.Table", name: str, place: Place) -> Array:
    """Returns labels as integers if all are, as fractions if all are numbers, else as text."""
    import pyarrow as pa

    cells = _with_nulls(_plain(table, name))
    if cells.null_count:
        raise DataError(
            f"data: {place(_first_null(cells))}: the label '{name}' has no value; fill it, or drop "
            "the row"
        )
    if pa.types.is_string(cells.type):
        for target in (pa.int64(), pa.float64()):
            try:
                return _array(cells.cast(target))
            except pa.ArrowException:
                continue
        return _objects(cells, name, place)
    if pa.types.is_floating(cells.type) or pa.types.is_decimal(cells.type):
        return _array(cells.cast(pa.float64()))
    if pa.types.is_integer(cells.type) or pa.types.is_boolean(cells.type):
        return _array(_cast(cells, pa.int64(), name, place))
    raise DataError(
        f"data: the label '{name}' holds {cells.type}; give numbers, or text that names classes"
    )
