"""Files full of work for a model: the items in them, and where their results go.

In: a folder of `.npy` and `.npz` files, a `.jsonl` file, or a `.npy` file that is a stack of rows.
Out: items with a name each, in order; a `.npz` file of outputs for each item.

Rules kept here: an item whose result is there is not run again; a result appears whole or not at
all; nothing is unpickled; an item is read when it is wanted, so a batch may be larger than memory.
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
"""Arrays, or values out of JSON, by input name."""
NPY, ZIP = b"\x93NUMPY", b"PK"
"""How files of one array begin, and files of several (`.npz`)."""
_ROWS = re.compile(r"(.+)-(\d{9})-(\d{9})")
"""The name of some rows of a stack: the first, and the one after the last."""


@dataclass(frozen=True, slots=True)
class Item:
    """One job's worth of work."""

    name: str
    read: Callable[[], Values]
    """Gives its inputs; raises `InvalidRequestError` for what cannot be read."""


def key_of(item: Item, inputs: Values, model: str, version: str) -> str:
    """The same for the same work: what is submitted again is the same job."""
    digest = hashlib.sha256(f"{model}\n{version}\n{item.name}\n".encode())
    for name, value in sorted(inputs.items()):
        digest.update(name.encode())
        if isinstance(value, np.ndarray):
            digest.update(f"{value.dtype}{value.shape}".encode() + value.tobytes())
        else:
            digest.update(json.dumps(value).encode())
    return digest.hexdigest()


def read_items(source: Path, only_input: str, rows: int) -> Iterator[Item]:
    """The items of a file or a folder.

    Args:
        source: a folder of `.npy` and `.npz` files, a `.jsonl` file, or a `.npy` file.
        only_input: the model's only input, which a `.npy` file is for; empty if it has several.
        rows: of a stack, how many make one item.

    Raises:
        InvalidRequestError: it is none of these, or cannot be read.
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
    """Refuses a folder with results of the same stack cut into other items.

    Args:
        folder: where results go.
        source: the stack, or anything else, which is never refused.
        names: of all its items.

    Raises:
        InvalidRequestError: some rows would be run twice, or never.
    """
    for path in folder.glob("*.npz"):
        cut = _ROWS.fullmatch(path.stem)
        if cut and cut[1] == source.stem and source.suffix == ".npy" and path.stem not in names:
            raise InvalidRequestError(
                f"{path} holds rows {int(cut[2])} to {int(cut[3]) - 1}, and this batch is cut "
                "differently (--rows, or the model's largest batch); give the same --rows, or "
                "another --output-dir"
            )


def result_path(folder: Path, name: str) -> Path:
    """Where the result of an item of a name goes."""
    return folder / f"{name}.npz"


def write_arrays(path: Path, arrays: Mapping[str, Array]) -> None:
    """Writes arrays to an `.npz` file; a reader sees all of it or nothing."""
    partial_path = path.with_suffix(".partial")
    # Unlike numpy.savez this takes any name, and pickles nothing.
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
    except ValueError as error:
        raise InvalidRequestError(f"{source}, line {number}: no JSON ({error})") from error
    if not isinstance(inputs, dict):
        raise InvalidRequestError(f"{source}, line {number}: give an object of inputs by name")
    return inputs


def _read_rows(stack: Array, only_input: str, start: int, end: int) -> Values:
    return {only_input: np.array(stack[start:end])}


def _read_stack(path: Path, only_input: str) -> Array:
    """A file's array, of which only what is used is read."""
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
    """Refuses a file of another kind, which NumPy takes for a pickle."""
    if not file.read(len(NPY)).startswith(starts):
        raise ValueError(f"it is no {path.suffix} file; write one with numpy.save or numpy.savez")
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
        # NumPy's advice is allow_pickle, which would run code of the file.
        holds_objects = any(word in str(error) for word in ("pickle", "Python objects"))
        why = "it holds Python objects; save numbers" if holds_objects else error
        raise InvalidRequestError(f"{path} cannot be read: {why}") from error
