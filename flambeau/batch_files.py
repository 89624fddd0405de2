"""Input files of a batch of jobs: their items, and the files of the results.

In: a folder of `.npy` and `.npz` files, a `.jsonl` file, or a `.npy` file that is a stack of rows.
Out: named items, in order; a `.npz` file of outputs for each item.

Rules: an item with an existing result is not run again; a result file is complete or absent;
nothing is unpickled; items are read lazily, so a batch may be larger than memory.
"""

import hashlib
import json
import os
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from flambeau.errors import InvalidRequestError
from flambeau.wire import Array

Values = Mapping[str, Any]
"""Arrays, or values from JSON, by input name."""
NPY, ZIP = b"\x93NUMPY", b"PK"
"""Magic bytes of files with one array, and of files with several (`.npz`)."""
_ROWS = re.compile(r"(.+)-(\d{9})-(\d{9})")
"""Name of a slice of a stack: its first row, and the row after its last."""


@dataclass(frozen=True, slots=True)
class Item:
    """The input of one job."""

    name: str
    read: Callable[[], Values]
    """Reads its inputs; raises `InvalidRequestError` if they are unreadable."""


def key_of(item: Item, inputs: Values, model: str, version: str) -> str:
    """Returns an idempotency key: equal work that is submitted again is the same job."""
    digest = hashlib.sha256(f"{model}\n{version}\n{item.name}\n".encode())
    for name, value in sorted(inputs.items()):
        digest.update(name.encode())
        if isinstance(value, np.ndarray):
            digest.update(f"{value.dtype}{value.shape}".encode() + value.tobytes())
        else:
            digest.update(json.dumps(value).encode())
    return digest.hexdigest()


def read_items(source: Path, only_input: str, rows: int) -> Iterator[Item]:
    """Yields the items of a file or a folder.

    Args:
        source: a folder of `.npy` and `.npz` files, a `.jsonl` file, or a `.npy` file.
        only_input: the model's only input, which a `.npy` file is for; empty if it has several.
        rows: rows of a stack per item.

    Raises:
        InvalidRequestError: the source has another form, or cannot be read.
    """
    if source.is_dir():
        files = sorted(path for path in source.iterdir() if path.suffix in (".npy", ".npz"))
        if not files:
            raise InvalidRequestError(f"{source} holds no .npy or .npz file")
        stem, count = Counter(path.stem for path in files).most_common(1)[0]
        if count > 1:
            raise InvalidRequestError(
                f"{source} holds {stem}.npy and {stem}.npz, whose results would have one name; "
                "rename one"
            )
        for path in files:
            yield Item(path.stem, partial(_read_arrays, path, only_input))
    elif source.suffix == ".jsonl":
        yield from _lines(source)
    elif source.suffix == ".npy":
        stack = _read_stack(source, only_input)
        if not stack.ndim:
            raise InvalidRequestError(f"{source} is a single number; give a stack of rows")
        for start in range(0, len(stack), rows):
            end = min(start + rows, len(stack))
            name = f"{source.stem}-{start:09d}-{end:09d}"
            yield Item(name, partial(_read_rows, stack, only_input, start, end))
    else:
        raise InvalidRequestError(f"{source}: give a folder, a .jsonl file or a .npy file")


def check_folder(folder: Path, source: Path, names: frozenset[str]) -> None:
    """Rejects an output folder with results of the same stack sliced differently.

    Args:
        folder: folder of the results.
        source: the stack, or another source, which is always accepted.
        names: names of all its items.

    Raises:
        InvalidRequestError: some rows would be run twice, or never.
    """
    for path in folder.glob("*.npz"):
        cut = _ROWS.fullmatch(path.stem)
        if cut and cut[1] == source.stem and source.suffix == ".npy" and path.stem not in names:
            raise InvalidRequestError(
                f"{path} has rows {int(cut[2])} to {int(cut[3]) - 1}, and this batch is cut "
                "differently (--rows, or the model's largest batch); give the same --rows, or "
                "another --output-dir"
            )


def result_path(folder: Path, name: str) -> Path:
    """Returns the path of the result of the named item."""
    return folder / f"{name}.npz"


def write_arrays(path: Path, arrays: Mapping[str, Array]) -> None:
    """Writes arrays to an `.npz` file atomically."""
    partial_path = path.with_suffix(".partial")
    # Unlike numpy.savez this accepts any name, and pickles nothing.
    with zipfile.ZipFile(partial_path, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, array, allow_pickle=False)
    os.replace(partial_path, path)


def _lines(source: Path) -> Iterator[Item]:
    with source.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            yield Item(f"{source.stem}-{number:09d}", partial(_read_line, source, number, line))


def _read_line(source: Path, number: int, line: bytes) -> Values:
    try:
        inputs = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"{source}, line {number}: not JSON ({error})") from error
    if not isinstance(inputs, dict):
        raise InvalidRequestError(f"{source}, line {number}: give an object of inputs by name")
    return inputs


def _read_rows(stack: Array, only_input: str, start: int, end: int) -> Values:
    return {only_input: np.array(stack[start:end])}


def _read_stack(path: Path, only_input: str) -> Array:
    """Memory-maps a file's array, so that only the rows in use are read."""
    with _readable(path):
        with path.open("rb") as file:
            _check_start(path, file, NPY)
        return _one_array(path, np.load(path, allow_pickle=False, mmap_mode="r"), only_input)


def _read_arrays(path: Path, only_input: str) -> dict[str, Array]:
    with _readable(path), path.open("rb") as file:
        _check_start(path, file, NPY, ZIP)
        found = np.load(file, allow_pickle=False)
        if isinstance(found, np.ndarray):
            return {only_input: _one_array(path, found, only_input)}
        return dict(found)


def _check_start(path: Path, file: BinaryIO, *starts: bytes) -> None:
    """Rejects a file of another format, which NumPy would treat as a pickle."""
    if not file.read(len(NPY)).startswith(starts):
        raise ValueError(f"not a {path.suffix} file; write one with numpy.save or numpy.savez")
    file.seek(0)


def _one_array(path: Path, array: Array, only_input: str) -> Array:
    if not only_input:
        raise InvalidRequestError(
            f"{path} is one array and the model has several inputs; give .npz files"
        )
    return array


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        # NumPy suggests allow_pickle, which would run code from the file.
        holds_objects = any(word in str(error) for word in ("pickle", "Python objects"))
        why = "it holds Python objects; save numbers" if holds_objects else error
        raise InvalidRequestError(f"{path} cannot be read: {why}") from error
