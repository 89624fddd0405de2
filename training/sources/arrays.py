"""Arrays by name: `.npz` files, folders of `.npy` files, safetensors.

Rules: no pickle is ever opened; the header of an array is checked against its number of bytes
before memory is allocated.
"""

import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from flambeau.protocol.strict import nearest_name
from flambeau.protocol.tensors import Array
from training.errors import DataError
from training.recipe.parts.data_parts import Arrays, Numpy, Safetensors
from training.sources.data_files import DataFiles, DataReach
from training.sources.paths import by_split, text_of
from training.sources.rows import Rows

Open = Callable[[str], Mapping[str, Callable[[], Array]]]
"""Returns the arrays of a path by name, each with a function that reads it."""
NPY = ".npy"


def read_numpy(part: Numpy, files: DataFiles) -> dict[str, Rows]:
    """Reads the rows of `.npz` files or of folders of `.npy` files.

    Raises:
        DataError: a file or an array is missing or damaged, or it contains Python objects.
    """

    def open_path(path: str) -> Mapping[str, Callable[[], Array]]:
        if files.is_folder(path):
            return _npy_folder(*files.folder(path), path, files.reach)
        return _npz(files.file(path), path, files.reach)

    return _rows(part, open_path)


def read_safetensors(part: Safetensors, files: DataFiles) -> dict[str, Rows]:
    """Reads the rows of safetensors files.

    Raises:
        DataError: a file or a tensor is missing or damaged, or NumPy has no such type.
    """

    def open_path(path: str) -> Mapping[str, Callable[[], Array]]:
        return _safetensors(files.file(path), path)

    return _rows(part, open_path)


def _rows(part: Arrays, open_path: Open) -> dict[str, Rows]:
    opened: dict[str, Mapping[str, Callable[[], Array]]] = {}

    def read(told: Any, split: str, path: str, what: str) -> Array:
        name = text_of(told, split)
        if name is None:
            raise DataError(f"data: '{split}' has no {what}; give its array, or drop the split")
        if path not in opened:
            opened[path] = open_path(path)
        known = opened[path]
        if name not in known:
            raise DataError(f"data: {path} has no array {name!r}{nearest_name(name, known)}")
        return known[name]()

    found = {}
    for split in by_split(part.path, part.label, *part.inputs.values()):
        path = text_of(part.path, split)
        if path is None:
            raise DataError(f"data: '{split}' has arrays and no path; give one in path.{split}")
        inputs = {
            tensor: read(told, split, path, f"input '{tensor}'")
            for tensor, told in part.inputs.items()
        }
        labels = _labels(read(part.label, split, path, "label"), path)

        def place(row: int, path: str = path, split: str = split) -> str:
            return f"{path}, row {row} of '{split}'"

        found[split] = Rows(inputs, labels, place)
    return found


def _labels(labels: Array, path: str) -> Array:
    """Converts text to objects of type `str`, and booleans to numbers."""
    if labels.ndim == 0:
        raise DataError(f"data: {path}: the labels are a single value; give one for each row")
    if labels.dtype.kind == "b":
        return labels.astype(np.int64)
    if labels.dtype.kind not in "US":
        return labels
    flat = labels.ravel().tolist()
    texts = np.empty(len(flat), np.object_)
    texts[:] = [e.decode("utf-8", "replace") if isinstance(e, bytes) else e for e in flat]
    return texts.reshape(labels.shape)


def _npz(file: Path, path: str, reach: DataReach) -> Mapping[str, Callable[[], Array]]:
    def reader(member: str) -> Callable[[], Array]:
        def read() -> Array:
            where = f"{path}, array '{member.removesuffix(NPY)}'"
            try:
                with zipfile.ZipFile(file) as archive:
                    size = archive.getinfo(member).file_size
                    reach.check_size(size, f"data: {where}")
                    with archive.open(member) as stream:
                        return _npy(stream, size, where)
            except (zipfile.BadZipFile, OSError, RuntimeError, NotImplementedError) as error:
                raise DataError(f"data: {where} cannot be read: {error}") from error

        return read

    try:
        with zipfile.ZipFile(file) as archive:
            names = [name for name in archive.namelist() if name.endswith(NPY)]
    except (zipfile.BadZipFile, OSError) as error:
        raise DataError(
            f"data: {path} is not a .npz file ({error}); give one, or a folder of .npy files"
        ) from error
    return {name.removesuffix(NPY): reader(name) for name in names}


def _npy_folder(
    folder: Path, names: list[str], path: str, reach: DataReach
) -> Mapping[str, Callable[[], Array]]:
    def reader(file: Path) -> Callable[[], Array]:
        def read() -> Array:
            size = file.stat().st_size
            reach.check_size(size, f"data: {path}/{file.name}")
            with file.open("rb") as stream:
                return _npy(stream, size, f"{path}/{file.name}")

        return read

    return {n.removesuffix(NPY): reader(folder / n) for n in names if n.endswith(NPY)}


def _npy(stream: IO[bytes], size_bytes: int, where: str) -> Array:
    """Reads an array in the format of `numpy.lib.format`; its header must match its size."""
    from numpy.lib import format as npy_format

    try:
        version = npy_format.read_magic(stream)
        readers = {
            (1, 0): npy_format.read_array_header_1_0,
            (2, 0): npy_format.read_array_header_2_0,
        }
        if version not in readers:
            raise ValueError(f"version {version} of the format")
        shape, in_columns, dtype = readers[version](stream)
        begin = stream.tell()
    except (ValueError, EOFError) as error:
        raise DataError(f"data: {where} is not a NumPy array: {error}") from error
    if dtype.kind not in "biufSU":
        raise DataError(
            f"data: {where} holds {dtype}; Python objects are never opened: give numbers, or text "
            "of a fixed length"
        )
    count = 1
    for length in shape:
        count *= length
    if count * dtype.itemsize != size_bytes - begin:
        raise DataError(
            f"data: {where} says {dtype} {list(shape)}, and has {size_bytes - begin:,} bytes; the "
            "file is damaged"
        )
    if count == 0:
        return np.empty(shape, dtype)
    flat = np.frombuffer(stream.read(count * dtype.itemsize), dtype)
    array = flat.reshape(shape[::-1]).T if in_columns else flat.reshape(shape)
    return np.ascontiguousarray(array).reshape(shape)  # keeps the shape of a single value


def _safetensors(file: Path, path: str) -> Mapping[str, Callable[[], Array]]:
    from safetensors import SafetensorError, safe_open

    def reader(name: str) -> Callable[[], Array]:
        def read() -> Array:
            try:
                with safe_open(file, framework="numpy") as opened:
                    array: Array = opened.get_tensor(name)
            except (SafetensorError, OSError, TypeError, KeyError, AttributeError) as error:
                raise DataError(
                    f"data: {path}, tensor '{name}' cannot be read into NumPy: {error!r}"
                ) from error
            return array

        return read

    try:
        with safe_open(file, framework="numpy") as opened:
            return {name: reader(name) for name in opened.keys()}  # noqa: SIM118 - no mapping
    except (SafetensorError, OSError) as error:
        raise DataError(f"data: {path} is not a safetensors file: {error}") from error
