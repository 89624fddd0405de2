"""Reads CSV and Parquet files as tables of pyarrow (docs/adr/0020).

In: paths of a recipe. Out: rows by split. Rules: the error for a line with another number of cells
than the first has its line number, and the unpacked size of a file is checked before it is read.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from model_store.host.install_advice import install_command
from training.errors import DataError
from training.recipe.parts.data_parts import Csv, Parquet
from training.sources.data_files import DataFiles
from training.sources.paths import paths_by_split
from training.sources.rows import Rows
from training.sources.table import columns_read, rows_by_split

if TYPE_CHECKING:
    import pyarrow as pa

MAX_COLUMNS = 100_000


def read_csv(part: Csv, files: DataFiles) -> dict[str, Rows]:
    """Reads the rows of one file, or of one for each split.

    Raises:
        DataError: a line has another number of cells than the first, a cell is no number, ...
    """
    tables = (
        (split, path, _csv_table(files.file(path), path, part))
        for split, path in paths_by_split(part.path).items()
    )
    return rows_by_split(tables, part, files.reach, lambda row: f"data row {row + 1}")


def read_parquet(part: Parquet, files: DataFiles) -> dict[str, Rows]:
    """Reads the rows of one file, or of one for each split.

    Raises:
        DataError: it is no Parquet file, a column is missing, a cell is no number, ...
    """
    tables = (
        (split, path, _parquet_table(files.file(path), path, part, files))
        for split, path in paths_by_split(part.path).items()
    )
    return rows_by_split(tables, part, files.reach)


def arrow(what: str) -> Any:
    """Returns the module `pyarrow`.

    Raises:
        DataError: it is not installed.
    """
    try:
        import pyarrow
    except ImportError as error:
        raise DataError(f"data: {what} needs pyarrow: {install_command('data')}") from error
    return pyarrow


def _csv_table(file: Path, path: str, part: Csv) -> "pa.Table":
    """Reads all cells as text, so that an error about a cell can name its row."""
    pa = arrow("csv")
    from pyarrow import csv

    ragged: list[Any] = []

    def refuse(row: Any) -> str:
        ragged.append(row)
        return "error"

    # On one thread, since only then a ragged row has its number.
    reading = csv.ReadOptions(use_threads=False)
    parsing = csv.ParseOptions(
        delimiter=part.delimiter, newlines_in_values=True, invalid_row_handler=refuse
    )
    try:
        with file.open("rb") as stream:
            header = csv.open_csv(stream, reading, parsing).schema.names
        if len(set(header)) != len(header) or len(header) > MAX_COLUMNS:
            twice = next((name for name in header if header.count(name) > 1), None)
            what = f"two columns {twice!r}" if twice else f"{len(header):,} columns"
            raise DataError(f"data: {path} has {what}; give every column a name of its own")
        convert = csv.ConvertOptions(
            column_types=dict.fromkeys(header, pa.string()),
            include_columns=columns_read(part, header, path) or [],
            strings_can_be_null=False,
        )
        return csv.read_csv(file, reading, parsing, convert)
    except (pa.ArrowInvalid, UnicodeDecodeError) as error:
        if ragged:
            row = ragged[0]
            raise DataError(
                f"data: {path}, line {row.number}: {row.actual_columns} cells, and the first line "
                f"names {row.expected_columns} columns; the line is {row.text[:80]!r}"
            ) from error
        raise DataError(
            f"data: {path} cannot be read as CSV in UTF-8 with the delimiter "
            f"{part.delimiter!r}: {error}"
        ) from error


def _parquet_table(file: Path, path: str, part: Parquet, files: DataFiles) -> "pa.Table":
    pa = arrow("parquet")
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(file) as opened:
            known = opened.schema_arrow.names
            wanted = columns_read(part, known, path)
            if len(known) > MAX_COLUMNS or len(set(known)) != len(known):
                raise DataError(
                    f"data: {path} has {len(known):,} columns, or two of one name; give every "
                    "column a name of its own"
                )
            # Compressed data may be large: the same value a million times takes a few bytes.
            rows = opened.metadata.num_rows
            files.reach.check_rows(rows, f"data: {path}")
            files.reach.check_size(8 * rows * len(wanted or known), f"data: {path}, unpacked,")
            table = opened.read(columns=wanted, use_threads=True)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"data: {path} cannot be read as Parquet: {error}") from error
    files.reach.check_size(table.nbytes, f"data: {path}, unpacked,")
    return table
