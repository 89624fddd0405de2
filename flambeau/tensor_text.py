"""Reads tensors from .npy files and JSON, and formats them as lines or JSON.

Rule: a .npy file is used unchanged, and never unpickled.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from flambeau.errors import InvalidRequestError
from flambeau.protocol.tensors import bf16_numbers, datatype_of
from flambeau.wire import Array

SHOWN_ROWS = 10
"""Most rows of one output that `describe` shows."""


def read_input(name: str, text: str) -> Any:
    """Reads the text of `--input NAME=TEXT` as an array, or as values parsed from JSON.

    Raises:
        InvalidRequestError: a file is unreadable, or the text is not JSON.
    """
    try:
        if text.endswith(".npy"):
            with Path(text).open("rb") as file:
                return np.lib.format.read_array(file, allow_pickle=False)
        value = json.loads(Path(text).read_text() if text.endswith(".json") else text)
    except OSError as error:
        raise InvalidRequestError(f"input '{name}': {text}: {error.strerror}") from error
    except (ValueError, EOFError, RecursionError) as error:
        raise InvalidRequestError(
            f"input '{name}': {_short(text)} is not a .npy file, a .json file or JSON ({error})"
        ) from error
    if isinstance(value, dict) and "inputs" in value:
        raise InvalidRequestError(
            f"input '{name}': {_short(text)} is a whole request, not the values of an input; send "
            "it to the server's REST port (curl http://HOST:8000/v2/models/MODEL/infer -d @FILE), "
            f"or give {name}=VALUES"
        )
    return value


def describe(
    outputs: Mapping[str, Array],
    bf16: Collection[str],
    labels: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> str:
    """Describes outputs in a few lines each: datatype, shape, and values or each row's top class.

    Args:
        outputs: arrays by name.
        bf16: names of the outputs that are bfloat16 bit patterns.
        labels: class names, by output.
    """
    lines: list[str] = []
    for name, array in outputs.items():
        datatype = "BF16" if name in bf16 else datatype_of(array)
        shape = ",".join(map(str, array.shape))
        values = _value_lines(_readable(datatype, array), labels.get(name, ()))
        lines += [f"{name}  {datatype} [{shape}]", *values]
    return "\n".join(lines)


def as_json(outputs: Mapping[str, Array], bf16: Collection[str]) -> str:
    """Formats outputs as the JSON text of `listed`."""
    return json.dumps(listed(outputs, bf16))


def listed(outputs: Mapping[str, Array], bf16: Collection[str]) -> dict[str, Any]:
    """Returns outputs as nested lists by name; NaN and infinities, which JSON lacks, are None.

    Args:
        outputs: arrays by name.
        bf16: names of the outputs that are bfloat16 bit patterns.
    """
    lists: dict[str, Any] = {}
    for name, array in outputs.items():
        values = _readable("BF16" if name in bf16 else datatype_of(array), array)
        if values.dtype.kind == "f":
            finite = np.isfinite(values)
            values = values.astype(np.object_)
            values[~finite] = None
        lists[name] = values.tolist()
    return lists


def _readable(datatype: str, array: Array) -> Array:
    """Decodes BF16 patterns to numbers and BYTES to text; returns anything else unchanged."""
    if datatype == "BF16":
        return bf16_numbers(array)
    if datatype == "BYTES":
        text = [element.decode(errors="backslashreplace") for element in array.ravel().tolist()]
        return np.array(text, np.object_).reshape(array.shape)
    return array


def _value_lines(values: Array, labels: Sequence[str]) -> list[str]:
    if values.ndim == 2 and values.shape[1] > 1 and values.dtype.kind in "fiu":
        top = values.argmax(axis=1)
        names = labels if len(labels) == values.shape[1] else range(values.shape[1])
        lines = [
            f"  row {row}: class {names[top[row]]} ({values[row, top[row]]:.6g})"
            for row in range(min(len(values), SHOWN_ROWS))
        ]
        more = len(values) - SHOWN_ROWS
        return [*lines, f"  and {more} more rows"] if more > 0 else lines
    text = np.array2string(values, threshold=4 * SHOWN_ROWS, precision=6)
    return ["  " + line for line in text.splitlines()]


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
