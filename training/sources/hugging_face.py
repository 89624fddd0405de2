"""Reads data sets of Hugging Face's `save_to_disk` as tables, by pyarrow alone.

The format is that of `datasets` since 2.0: a folder with `state.json`, which names Arrow streams in
it, and `dataset_info.json`, which has the types; or a folder with `dataset_dict.json`, which names
a folder for each split.

Rules: no code of a data set runs, nothing is downloaded, and only files in the folder itself are
opened.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from training.errors import DataError
from training.recipe.parts.data_parts import HuggingFace
from training.sources.data_files import DataFiles, DataReach
from training.sources.paths import SPLITS, paths_by_split
from training.sources.rows import Rows
from training.sources.table import columns_read, rows_by_split
from training.sources.table_files import arrow

if TYPE_CHECKING:
    import pyarrow as pa

STATE, INFO, SPLITS_FILE = "state.json", "dataset_info.json", "dataset_dict.json"
MAX_DOCUMENT_BYTES = 10_000_000


def read_hugging_face(part: HuggingFace, files: DataFiles) -> dict[str, Rows]:
    """Reads the rows of one data set, by its own splits if it has some, or of one a split.

    Raises:
        DataError: the folder contains no data set, a column is missing, a cell is no number, ...
    """
    folders = {}
    for split, path in paths_by_split(part.path).items():
        folder = files.folder(path)[0]
        if (folder / SPLITS_FILE).is_file():
            if not isinstance(part.path, str):
                raise DataError(f"data: {path} has splits of its own; give the folder of one")
            folders = _own_splits(folder, path)
        else:
            folders[split] = (folder, path)
    tables = (
        (split, path, _table(folder, path, part, files.reach))
        for split, (folder, path) in folders.items()
    )
    return rows_by_split(tables, part, files.reach)


def _own_splits(folder: Path, path: str) -> dict[str, tuple[Path, str]]:
    """Returns the folders of a run's splits; skips others, such as rows without labels."""
    found = _document(folder / SPLITS_FILE, path).get("splits")
    if not isinstance(found, list) or "train" not in found:
        raise DataError(f"data: {path} has the splits {found}; one must be 'train'")
    return {split: (folder / split, f"{path}/{split}") for split in SPLITS if split in found}


def _table(folder: Path, path: str, part: HuggingFace, reach: DataReach) -> "pa.Table":
    """Returns all cells that the recipe needs; named classes as text."""
    pa = arrow("huggingface")
    state, features = _document(folder / STATE, path), _document(folder / INFO, path)["features"]
    if state.get("_indices_data_files"):
        raise DataError(f"data: {path} was saved by datasets before 2.0; save it again by another")
    pieces = []
    for entry in state.get("_data_files") or []:
        name = str(entry.get("filename")) if isinstance(entry, dict) else ""
        if not name or name != Path(name).name or name == "..":
            raise DataError(f"data: {path}/{STATE} names {name!r}, which lies elsewhere")
        try:
            with pa.OSFile(str(folder / name)) as file, pa.ipc.open_stream(file) as stream:
                piece = stream.read_all()
            piece.validate(full=True)  # offsets of a damaged file may point anywhere
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"data: {path}/{name} cannot be read as Arrow: {error}") from error
        wanted = columns_read(part, piece.column_names, path)
        pieces.append(piece if wanted is None else piece.select(wanted))
    if not pieces:
        raise DataError(f"data: {path} holds no rows; save a data set there that has some")
    table = pa.concat_tables(pieces).replace_schema_metadata(None)
    for label in part.labels():
        names = features.get(label, {}).get("names") if isinstance(features, dict) else None
        if isinstance(names, list) and label in table.column_names:
            table = _named(table, label, names, path)
    reach.check_size(table.nbytes, f"data: {path}")
    return table


def _named(table: "pa.Table", label: str, names: list[Any], path: str) -> "pa.Table":
    """Returns the table with the names of its classes in place of their numbers."""
    import pyarrow as pa

    numbers = table[label].to_pylist()
    for row, number in enumerate(numbers):
        if not isinstance(number, int) or not 0 <= number < len(names):
            raise DataError(
                f"data: {path}, row {row}: the label '{label}' is {number}, and there are "
                f"{len(names)} classes; leave the row out"
            )
    texts = pa.array([str(names[number]) for number in numbers], pa.string())
    return table.set_column(table.column_names.index(label), label, texts)


def _document(file: Path, path: str) -> dict[str, Any]:
    what = f"data: {path} holds no data set that save_to_disk wrote: {file.name}"
    if not file.is_file() or file.stat().st_size > MAX_DOCUMENT_BYTES:
        raise DataError(f"{what} is missing or too large")
    try:
        document = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise DataError(f"{what} is damaged: {error}") from error
    if not isinstance(document, dict) or (file.name == INFO and "features" not in document):
        raise DataError(f"{what} is damaged")
    return document
