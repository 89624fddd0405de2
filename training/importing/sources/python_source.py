"""Python models: checks a class on its examples, and infers its signature.

In: the class's file, its settings, its side files and example inputs. Out: an `Original`, in a
folder with all its files.

Rules: the class runs in a separate process with limits. It is refused if its answers differ from
run to run, depend on the rows beside them, or change after they were returned. Axes that differ
between examples, or answers, vary in the signature; rows whose answers differ in shape run alone.
"""

import ast
import hashlib
import importlib.util
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from flambeau.protocol.signature import Signature, TensorSpec
from flambeau.protocol.strict import explain
from flambeau.protocol.tensors import Array, TensorError, datatype_of
from model_store.errors import BadNameError
from model_store.manifest import FileEntry, PythonModel, PythonProcess, check_name
from model_store.python_models.open_model import MAX_SOURCE_BYTES, OpenModel, PythonModelError
from training.errors import DataError, IsolationError, TargetError
from training.exporters.python_model import description_path, open_class
from training.importing.original import Original
from training.importing.request import limits_here
from training.network.row_dependence import ROUNDING_SHARE
from training.process.isolated_run import run_limited
from training.recipe.kinds.python_kind import PythonExport

FOLDER = "python"
"""Folder of the class in the staging folder."""
MAX_BATCH_SIZE = 32
ROWS_KEPT = 8
"""Rows of each example that run between an answer and the check that it is unchanged."""
RESERVED = frozenset(
    ("config.pbtxt", "golden.safetensors", "import.json", "report.html", "report.json")
)
"""Files that a version has of its own."""

Rows = Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class _Learned:
    outputs: tuple[TensorSpec, ...]
    max_batch_size: int
    notes: tuple[str, ...]


def python_original(
    file: Path,
    class_name: str,
    args: Mapping[str, Any],
    files: Mapping[str, Path],
    examples: Sequence[Rows] | Rows,
    staging: Path,
    *,
    max_batch_size: int = MAX_BATCH_SIZE,
    process: PythonProcess = "own",
    called: str = "",
) -> Original:
    """Returns a class as a model to publish.

    Args:
        file: its file.
        class_name: its name there.
        args: its settings, values of JSON.
        files: paths of its side files, by the names that it uses.
        examples: inputs by name, [rows, ...]; several with other sizes, if axes vary.
        staging: an existing folder, which gets a folder with the class and its files.
        max_batch_size: largest batch in rows.
        process: see `model_store.manifest.PythonModel`.
        called: its description in messages; empty for the name of the class.

    Raises:
        TargetError: a file or the class is unusable, or its answers cannot be verified.
        DataError: the examples contradict each other.
        OSError: a file cannot be read or written.
    """
    parts = [dict(part) for part in ([examples] if isinstance(examples, Mapping) else examples)]
    inputs, dynamic = _input_specs(parts)
    path = _staged(file, class_name, args, files, staging, process)
    limits = limits_here()
    try:
        learned = run_limited(
            _learn,
            *(path, called or class_name, parts, max_batch_size),
            limits=limits,
        )
    except IsolationError as error:
        learned = str(error)
    if isinstance(learned, str):
        raise TargetError(f"{called or f'class {class_name}'} cannot be published: {learned}")
    signature = Signature(
        inputs=inputs,
        outputs=learned.outputs,
        max_batch_size=learned.max_batch_size,
        dynamic=dynamic,
    )
    return Original(
        kind="python",
        precision="fp32",
        file=path,
        signature=signature,
        examples=parts[0],
        source=f"class {class_name} of {file.name}",
        notes=learned.notes,
    )


def _staged(
    file: Path,
    class_name: str,
    args: Mapping[str, Any],
    files: Mapping[str, Path],
    staging: Path,
    process: PythonProcess,
) -> Path:
    """Copies the class and its side files into a folder. Returns the path of the class's file."""
    source = _checked_source(file)
    folder = staging / FOLDER
    folder.mkdir()
    path = folder / PythonExport().file
    path.write_bytes(source)
    entries = []
    for name, side_file in files.items():
        _check_side_file(name, side_file, path)
        shutil.copyfile(side_file, folder / name)
        with (folder / name).open("rb") as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
        size_bytes = (folder / name).stat().st_size
        entries.append(FileEntry(file=name, sha256=digest, size_bytes=size_bytes))
    try:
        described = PythonModel(
            name=class_name, args=dict(args), files=tuple(entries), process=process
        )
    except ValidationError as error:
        raise TargetError(f"class {class_name}: {explain(error, PythonModel)}") from error
    description_path(path).write_text(described.model_dump_json())
    return path


def _checked_source(file: Path) -> bytes:
    try:
        source = file.read_bytes()
    except OSError as error:
        raise TargetError(f"cannot read {file}: {error.strerror}") from error
    if len(source) > MAX_SOURCE_BYTES:
        raise TargetError(
            f"{file} has {len(source):,} bytes, and at most {MAX_SOURCE_BYTES:,} are read; move "
            "data into side files"
        )
    try:
        ast.parse(source)
    except (SyntaxError, ValueError) as error:
        raise TargetError(f"{file} is no Python file: {error}") from error
    return source


def _check_side_file(name: str, file: Path, path: Path) -> None:
    try:
        check_name(name, "side file")
    except BadNameError as error:
        raise TargetError(str(error)) from error
    if name in RESERVED or name in (path.name, description_path(path).name):
        raise TargetError(f"a version has a file '{name}' of its own; rename the side file")
    if not file.is_file():
        raise TargetError(f"the side file '{name}' is to be read from {file}, which is no file")
    module = name.removesuffix(".py")
    if name.endswith(".py") and module.isidentifier() and importlib.util.find_spec(module):
        raise TargetError(
            f"the side file '{name}' has the name of an installed module, which would be imported "
            "in its place; rename it"
        )


def _input_specs(
    parts: Sequence[Rows],
) -> tuple[tuple[TensorSpec, ...], dict[str, dict[int, tuple[int, int]]]]:
    """Returns the inputs, and the sizes of those axes that differ between the examples.

    Raises:
        DataError: the examples have no rows, or differ in names, datatypes or dimensions, or in
            sizes one of which is 0.
    """
    if not parts or not parts[0]:
        raise DataError("a Python model needs examples: arrays by input name, each [rows, ...]")
    for part in parts:
        if part.keys() != parts[0].keys():
            raise DataError(f"one example has {sorted(parts[0])}, and another {sorted(part)}")
        rows = {name: array.shape[:1] for name, array in part.items()}
        if len(set(rows.values())) > 1 or rows[next(iter(rows))] in ((), (0,)):
            shapes = {name: list(array.shape) for name, array in part.items()}
            raise DataError(
                f"the examples have the shapes {shapes}; give each [rows, ...], with the same "
                "number of rows, at least 1"
            )
    specs, dynamic = [], {}
    for name in parts[0]:
        shape, sizes = _joint_shape(f"example '{name}'", [part[name] for part in parts])
        if empty := [axis for axis, (low, _) in sizes.items() if not low]:
            raise DataError(
                f"example '{name}' has size 0 along axis {empty[0]} here, and other sizes there; "
                "sizes that vary begin at 1, so leave out the example without elements"
            )
        specs.append(TensorSpec(name=name, datatype=_datatype(name, parts), shape=shape))
        if sizes:
            dynamic[name] = sizes
    return tuple(specs), dynamic


def _datatype(name: str, parts: Sequence[Rows]) -> str:
    try:
        found = {datatype_of(part[name]) for part in parts}
    except TensorError as error:
        raise DataError(f"example '{name}': {error}") from error
    if len(found) > 1:
        raise DataError(f"example '{name}' has the datatypes {' and '.join(sorted(found))}")
    return found.pop()


def _joint_shape(
    what: str, arrays: Sequence[Array]
) -> tuple[tuple[int, ...], dict[int, tuple[int, int]]]:
    """Returns a full shape, -1 along axes that differ, and the sizes of these."""
    if len({array.ndim for array in arrays}) > 1:
        raise DataError(f"{what} has different numbers of dimensions; give all the same")
    shape, sizes = [-1], {}
    for axis in range(1, arrays[0].ndim):
        found = {array.shape[axis] for array in arrays}
        shape.append(found.pop() if len(found) == 1 else -1)
        if shape[axis] == -1:
            found = {array.shape[axis] for array in arrays}
            sizes[axis] = (min(found), max(found))
    return tuple(shape), sizes


def _learn(path: Path, called: str, parts: Sequence[Rows], max_batch_size: int) -> _Learned | str:
    """Runs the class on the examples, in a separate process; returns the reason if it fails."""
    try:
        return _learned(open_class(path, None), called, parts, max_batch_size)
    except (PythonModelError, TargetError) as error:
        return str(error)
    except ValueError as error:
        return f"it refuses the examples: {error}"


def _learned(model: OpenModel, called: str, parts: Sequence[Rows], max_batch_size: int) -> _Learned:
    notes: list[str] = []
    _check_kept(called, model, parts)
    takes_one = model.gives_parts and model.answers_row_by_row
    compared = MAX_BATCH_SIZE if max_batch_size > 1 else None  # a later row has no other shape
    alone = [[model.run(row) for row in _single_rows(part, compared)] for part in parts]
    varies = any(_shapes_differ(rows) for rows in alone)
    largest = 1 if takes_one or varies else max_batch_size
    if varies:
        for part, rows in zip(parts, alone, strict=True):
            rows += [model.run(row) for row in _single_rows(part, None)[len(rows) :]]
        notes.append(
            "answers of different rows have different shapes, so requests have one row each "
            "(max_batch_size 1); servers replay the rows of the most frequent shape"
        )
    for part, rows in zip(parts, alone, strict=True):
        batch = {name: array[:largest] for name, array in part.items()}
        together = model.run(batch)
        _check_repeatable(called, together, model.run(batch))
        if largest > 1:
            _check_independent(called, together, rows)
    outputs = []
    for name in alone[0][0]:
        arrays = [row[name] for rows in alone for row in rows]
        filled = [array for array in arrays if array.size] or arrays  # an empty list has no type
        datatypes = {datatype_of(array) for array in filled}
        if len(datatypes) > 1:
            raise TargetError(
                f"output '{name}' is {' and '.join(sorted(datatypes))} for different rows; "
                "return one type"
            )
        shape, _ = _joint_shape(f"output '{name}'", arrays)
        outputs.append(TensorSpec(name=name, datatype=datatypes.pop(), shape=shape))
    return _Learned(tuple(outputs), largest, tuple(notes))


def _single_rows(part: Rows, most: int | None) -> list[dict[str, Array]]:
    rows = len(next(iter(part.values()))[:most])
    return [{name: array[row : row + 1] for name, array in part.items()} for row in range(rows)]


def _shapes_differ(rows: Sequence[Rows]) -> bool:
    return any(len({row[name].shape for row in rows}) > 1 for name in rows[0])


def _check_repeatable(name: str, once: Rows, again: Rows) -> None:
    for output, array in once.items():
        if not _same(array, again[output]):
            raise TargetError(
                f"output '{output}' of {name} differs between two runs of the same rows; a served "
                "model must be repeatable, so seed its random numbers in load, and use no clock"
            )


def _check_independent(name: str, together: Rows, alone: Sequence[Rows]) -> None:
    for output, array in together.items():
        for row, found in enumerate(alone):
            if not _same(array[row : row + 1], found[output], array):
                raise TargetError(
                    f"output '{output}' of {name} for row {row} depends on the rows beside it; "
                    "servers form batches of any requests, so let a row's answer depend on it alone"
                )


def _check_kept(name: str, model: OpenModel, parts: Sequence[Rows]) -> None:
    """Checks that an answer does not change when the model answers again."""
    rows = [row for part in parts for row in _single_rows(part, ROWS_KEPT)]
    found = model.run(rows[0])
    before = {output: array.copy() for output, array in found.items()}
    for row in rows[1:]:
        model.run(row)
    for output, array in found.items():
        if not _same(before[output], array):
            raise TargetError(
                f"output '{output}' of {name} changes after it was returned; return a new array "
                "for each call"
            )


def _same(right: Array, other: Array, scale: Array | None = None) -> bool:
    """Returns True if values are equal, floats but for rounding in batches of other sizes.

    Args:
        right: values.
        other: values to compare with them.
        scale: values whose largest sets the rounding; None for `right`.
    """
    if right.shape != other.shape or right.dtype != other.dtype:
        return False
    if right.dtype.kind != "f":
        return bool(np.array_equal(right, other))
    every = right if scale is None else scale
    largest = float(np.abs(every[np.isfinite(every)]).max(initial=0.0))
    return np.allclose(right, other, rtol=0.0, atol=ROUNDING_SHARE * largest, equal_nan=True)
