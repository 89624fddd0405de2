"""Checks that the files and CSV columns of a recipe exist. No pyarrow.

In: a recipe. Out: nothing, or an error with the nearest name.

Rule: it reads the first line of a file at most, so that a misspelt name is reported before packages
are requested and imported; other faults are reported when the file is read.
"""

import csv
import io
from pathlib import Path

from training.errors import DataError
from training.recipe.parts.data_parts import Arrays, Csv, ImageFolder, Table
from training.recipe.recipe import Recipe
from training.sources.data_files import DataFiles, DataReach
from training.sources.paths import paths_by_split
from training.sources.table import columns_read

MAX_HEADER_BYTES = 1024 * 1024
"""Limit of the first line; a longer one is left to the reader of the file."""


def check_named_files(recipe: Recipe, reach: DataReach | None = None) -> None:
    """Checks that every file exists, and every column of CSV files.

    Args:
        recipe: the run; files of a target of its own are not known.
        reach: files that may be read; None for any file.

    Raises:
        DataError: a path or a column does not exist, or a path is not permitted.
    """
    reach = reach or DataReach()
    if recipe.weights is not None:
        DataFiles(reach, "weights").place(recipe.weights)
    part = recipe.data.chosen
    if not isinstance(part, Table | ImageFolder | Arrays):
        return
    files = DataFiles(reach)
    for path in paths_by_split(part.path).values():
        found = files.place(path)
        header = _header(found, part.delimiter) if isinstance(part, Csv) else None
        if isinstance(part, Csv) and header is not None:
            columns_read(part, header, path)


def _header(file: Path, delimiter: str) -> list[str] | None:
    """Returns the names of the columns; None if the first line does not have them."""
    if not file.is_file():
        return None
    try:
        with file.open("rb") as stream:
            start = stream.read(MAX_HEADER_BYTES)
        text = start.decode("utf-8-sig", "ignore" if len(start) == MAX_HEADER_BYTES else "strict")
        rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
        names = next((row for row in rows if row), None)
        is_whole = len(start) < MAX_HEADER_BYTES or next(rows, None) is not None
    except (csv.Error, UnicodeDecodeError, TypeError):
        return None
    except OSError as error:
        raise DataError(f"data: {file} cannot be read: {error}") from error
    return names if is_whole else None
