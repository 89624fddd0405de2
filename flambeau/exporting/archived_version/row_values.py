"""From the values of a request to arrays, and from arrays to values of JSON.

A value is JSON; an array in NumPy's format (`.npy`); or the bytes of a BYTES input. In JSON, BYTES
are text, or {"b64": "..."}.
"""

import base64
import gc
import io
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from flambeau.exporting.archived_version.tensor import Array, RefusedError, Tensor

NPY = b"\x93NUMPY"


def from_json(data: bytes | bytearray | str) -> Any:
    """Returns the value of a document.

    Raises:
        RefusedError: it is no JSON.
    """
    collects = gc.isenabled()
    gc.disable()  # searching millions of new lists for cycles takes seconds, and there are none
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise RefusedError(f"the body is no JSON: {error}") from error
    finally:
        if collects:
            gc.enable()


def array_of(value: Any, tensor: Tensor) -> Array:
    """Returns a value as the array of one row.

    Raises:
        RefusedError: it is none, or of another datatype or shape.
    """
    data = bytes(value) if isinstance(value, bytearray) else value
    if isinstance(data, bytes) and data.startswith(NPY) and tensor.datatype != "BYTES":
        array = _from_npy(data, tensor)
    elif tensor.datatype == "BYTES":
        array = _texts(data, tensor)
    else:
        array = _numbers(from_json(data) if isinstance(data, bytes | str) else data, tensor)
    if not tensor.fits(array.shape):
        raise RefusedError(
            f"input '{tensor.name}' has shape {list(array.shape)}, and a row {tensor.row_shape}"
        )
    return array


def plain_of(array: Array) -> Any:
    """Returns an array as values of JSON."""
    return _text_of(array.tolist()) if array.dtype.hasobject else array.tolist()


def _from_npy(data: bytes, tensor: Tensor) -> Array:
    """Views an array in NumPy's format; its header is checked before anything is allocated."""
    file = io.BytesIO(data)
    try:
        version = np.lib.format.read_magic(file)
        first = version == (1, 0)
        read = np.lib.format.read_array_header_1_0 if first else np.lib.format.read_array_header_2_0
        shape, by_columns, dtype = read(file)
    except Exception as error:  # the header is an expression of Python: it fails in many ways
        raise RefusedError(f"input '{tensor.name}' is no .npy: {str(error)[:200]}") from error
    if dtype != tensor.dtype:
        raise RefusedError(
            f"input '{tensor.name}' is {str(dtype)[:80]}, and it takes {tensor.datatype}"
        )
    rest = memoryview(data)[file.tell() :]
    if not tensor.fits(shape) or len(rest) != int(np.prod(shape, dtype=object)) * dtype.itemsize:
        raise RefusedError(
            f"input '{tensor.name}' has shape {list(shape)[:32]} and {len(rest):,} bytes of "
            f"data, and a row has shape {tensor.row_shape}"
        )
    return np.frombuffer(rest, dtype).reshape(shape, order="F" if by_columns else "C")


def _check_lists(value: Any, shape: Sequence[int], tensor: Tensor) -> None:
    """Checks that lists have the sizes of a row, before NumPy looks at each of their elements.

    Raises:
        RefusedError: one has another length, or is in another depth.
    """
    is_list = isinstance(value, list)
    fits = is_list == bool(shape)
    if fits and is_list:
        fits = shape[0] in (-1, len(value))
        if fits and len(shape) == 1:
            fits = not any(isinstance(one, list) for one in value)
        elif fits:
            fits = len({len(one) if isinstance(one, list) else None for one in value}) <= 1
    if not fits:
        found = f"a list of {len(value):,}" if is_list else f"a {type(value).__name__}"
        raise RefusedError(
            f"input '{tensor.name}' has {found} where lists of other lengths or depth belong: a "
            f"row has shape {tensor.row_shape}"
        )
    if len(shape) > 1:
        for one in value:
            _check_lists(one, shape[1:], tensor)


def _numbers(value: Any, tensor: Tensor) -> Array:
    dtype = tensor.dtype
    _check_lists(value, tensor.row_shape, tensor)
    try:
        given = np.asarray(value)
    except (ValueError, OverflowError, RecursionError) as error:
        raise RefusedError(f"input '{tensor.name}' is no array: {error}") from error
    if not given.size and given.dtype.kind == "f":  # empty lists have no type
        return given.astype(dtype)
    allowed = {"b": "b", "f": "iuf"}.get(dtype.kind, "iu")
    if given.dtype.kind not in allowed:
        raise RefusedError(f"input '{tensor.name}' takes {tensor.datatype}, and got other values")
    with np.errstate(over="ignore"):
        array = given.astype(dtype)
    is_kept = np.isfinite(array) | ~np.isfinite(given) if dtype.kind == "f" else array == given
    if not np.all(is_kept):
        raise RefusedError(f"input '{tensor.name}' has values beyond {tensor.datatype}")
    return array


def _texts(value: Any, tensor: Tensor) -> Array:
    """Returns text, bytes, or lists of them as an array of bytes."""
    _check_lists(value, tensor.row_shape, tensor)
    elements, shape = [value], []
    for _ in tensor.row_shape:
        shape.append(len(elements[0]) if elements else 0)
        elements = [one for inner in elements for one in inner]
    array = np.empty(len(elements), np.object_)
    array[:] = [_bytes_of(one, tensor) for one in elements]
    return array.reshape(shape)


def _bytes_of(value: Any, tensor: Tensor) -> bytes:
    if isinstance(value, bytes):
        return value
    try:
        if isinstance(value, str):
            return value.encode()
        if isinstance(value, dict) and value.keys() == {"b64"}:
            return base64.b64decode(value["b64"], validate=True)
    except (ValueError, TypeError) as error:
        raise RefusedError(f"input '{tensor.name}' is no text or base64: {error}") from error
    raise RefusedError(f"input '{tensor.name}' takes text, or base64 as {{'b64': '...'}}")


def _text_of(value: Any) -> Any:
    if isinstance(value, list):
        return [_text_of(one) for one in value]
    try:
        return value if isinstance(value, str) else bytes(value).decode()
    except UnicodeDecodeError:
        return {"b64": base64.b64encode(value).decode()}
