"""Stages a class as a Python model: its source, its files and its examples."""

import json
import os
import reprlib
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flambeau.protocol.tensors import Array, TensorError, datatype_of, encode_bytes_elements
from flambeau.publishing.class_source import class_source
from flambeau.publishing.errors import CaptureError, ExampleError
from flambeau.publishing.staged_files import FILES
from flambeau.publishing.staging import check_room, target_array, write_request

SOURCE = "model.py"
"""The file of the class."""


def stage_python_model(
    cls: type,
    examples: Any,
    folder: Path,
    about: Mapping[str, Any],
    options: Mapping[str, Any],
) -> None:
    """Writes the request to publish a class.

    Args:
        cls: the class.
        examples: inputs by name, [rows, ...]; text and bytes as lists or arrays of them.
        folder: the folder of the request.
        about: fields of the request that do not depend on the model.
        options: as of `publish`.

    Raises:
        CaptureError: its source, an argument or a file cannot be kept.
        ExampleError: the examples are no arrays by name, or the targets do not fit them.
    """
    (folder / SOURCE).write_text(class_source(cls), encoding="utf-8")
    python = {
        "file": SOURCE,
        "class_name": cls.__name__,
        "args": kept_args(options.get("args", {})),
        "files": copy_files(options.get("files", ()), folder / FILES),
        "max_batch_size": options.get("max_batch_size", 32),
        "process": options.get("process", "own"),
    }
    request = {**about, "source": f"class {cls.__name__} from Python", "python": python}
    several = isinstance(examples, list) and bool(examples) and isinstance(examples[0], Mapping)
    parts = [example_arrays(one) for one in (examples if several else [examples])]
    rows = next(iter(parts[0].values())).shape[:1]
    targets = target_array(options.get("targets"), *rows or (0,))
    write_request(folder, request, parts, [], targets)


def kept_args(args: Mapping[str, Any]) -> Any:
    """Returns the arguments of a class as values of JSON.

    Raises:
        CaptureError: one is none.
    """
    try:
        return json.loads(json.dumps(dict(args)))
    except (TypeError, ValueError) as error:
        raise CaptureError(
            f"args cannot be kept with the version ({error}); give values of JSON, or files"
        ) from error


def copy_files(files: Sequence[str | os.PathLike[str]], folder: Path) -> list[str]:
    """Copies side files into a new folder. Returns their names.

    Raises:
        CaptureError: one is no file, or two have one name.
    """
    folder.mkdir()
    names: list[str] = []
    for file in files:
        path = Path(file).expanduser()
        if not path.is_file():
            raise CaptureError(f"files names '{path}', which is no file; give its path")
        if path.name in names:
            raise CaptureError(f"files has two files named '{path.name}'; rename one")
        try:
            shutil.copyfile(path, folder / path.name)
        except OSError as error:
            raise CaptureError(
                f"cannot copy '{path}' to {folder.parent.parent}: {error.strerror}; let it be "
                "read, free space there, or set TMPDIR to another folder"
            ) from error
        names.append(path.name)
    return names


def example_arrays(given: Any) -> dict[str, Array]:
    """Returns one example as arrays; text and bytes become arrays of objects.

    Raises:
        ExampleError: it is no mapping of arrays by input name.
    """
    import numpy as np

    if not isinstance(given, Mapping) or not given:
        raise ExampleError(
            f"examples is {reprlib.repr(given)}, a {type(given).__name__}; give arrays by input "
            'name, as in {"text": ["one row", "another"]}'
        )
    arrays: dict[str, Array] = {}
    for name, value in given.items():
        check_room(name, value)
        if isinstance(value, str | bytes):
            raise ExampleError(
                f"examples['{name}'] is {reprlib.repr(value)}, a text without rows; give a list "
                f"with one for each row, such as [{reprlib.repr(value)}]"
            )
        array = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
        if array.dtype.kind in "SUO":
            array = np.array(value, object)
        try:
            if datatype_of(array) == "BYTES":
                encode_bytes_elements(array)
        except TensorError as error:
            raise ExampleError(f"examples['{name}']: {error}") from error
        arrays[str(name)] = array
    return arrays
