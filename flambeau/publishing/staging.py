"""The folder in which a captured model waits for our process: its files and `request.json`.

The reader is `training/importing/request.py`; both sides are one release.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flambeau.protocol.available_memory import lack_of_memory
from flambeau.protocol.tensors import Array, datatype_of, encode_bytes_elements
from flambeau.publishing.errors import ExampleError, PublishError
from flambeau.publishing.staged_files import EXAMPLES, REQUEST


def write_request(
    folder: Path,
    request: Mapping[str, Any],
    inputs: Sequence[Mapping[str, Array]],
    outputs: Sequence[Mapping[str, Array]],
    targets: Array | None,
) -> None:
    """Writes what our process reads.

    Args:
        folder: the folder.
        request: fields of `training.importing.request.ImportRequest`.
        inputs: inputs of each example, the first one's rows and those at other sizes.
        outputs: outputs of each example; empty where our process records them.
        targets: labels of the first example's rows, if any.

    Raises:
        PublishError: the folder's disk is full.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import save_file  # noqa: TID251 - the arrays are made contiguous

    tensors: dict[str, Array] = {}
    for number, given in enumerate(inputs):
        sides = [("input", given), *([("output", outputs[number])] if outputs else [])]
        for side, arrays in sides:
            for name, array in arrays.items():
                tensors |= _encoded(f"{number}.{side}", name, array)
    if targets is not None:
        tensors["targets"] = np.ascontiguousarray(targets)
    try:
        save_file(tensors, folder / EXAMPLES)
        (folder / REQUEST).write_text(json.dumps(request, indent=2), encoding="utf-8")
    except (OSError, SafetensorError) as error:
        raise PublishError(
            f"cannot write the examples to {folder.parent} ({error}); free space there, or set "
            "TMPDIR to another folder"
        ) from error


def check_room(name: str, value: Any) -> None:
    """Checks that an example fits into memory: an expanded array has more elements than bytes.

    Raises:
        ExampleError: it does not.
    """
    if lack := lack_of_memory(getattr(value, "nbytes", 0)):
        shape = list(value.shape)
        raise ExampleError(f"examples['{name}'] {shape} {lack}; give fewer rows, or smaller ones")


def target_array(targets: Any, rows: int) -> Array | None:
    """Returns targets as an array; None for None.

    Raises:
        ExampleError: they are no numbers, or not one for each row.
    """
    if targets is None:
        return None
    array: Array = np.asarray(targets.detach().cpu() if hasattr(targets, "detach") else targets)
    if array.dtype.kind not in "biuf":
        raise ExampleError(f"targets has type {array.dtype}; give numbers, such as classes [rows]")
    if array.ndim == 0 or len(array) != rows:
        raise ExampleError(
            f"targets has shape {list(array.shape)} and the examples have {rows} rows; give one "
            "for each row"
        )
    return array.astype(np.float32 if array.dtype.kind == "f" else np.int64)


def _encoded(place: str, name: str, array: Array) -> dict[str, Array]:
    """Returns the tensors of an array; text as its bytes and its shape, as in golden files."""
    if datatype_of(array) != "BYTES":
        return {f"{place}.{name}": np.ascontiguousarray(array)}
    elements = np.frombuffer(encode_bytes_elements(array), np.uint8)
    shape = np.array(array.shape, np.int64)
    return {f"{place}-bytes.{name}": elements, f"{place}-shape.{name}": shape}
