"""Converts values of Python to the arrays of a model's inputs.

In: an array, a number, text, bytes, the path of a file, or nested lists of these. Out: an array of
the signature's datatype, with the batch axis.

Rules:
- an array keeps its datatype; numbers and lists have none, and get that of the input;
- a value that its datatype cannot hold is refused: 1.5 or 2.0 as INT64, True as FP32, 300 as UINT8,
  2**24 + 1 or 1e39 as FP32; a fraction is rounded to the nearest number of the datatype;
- text, bytes and files are elements of BYTES: a `str` is text, a `Path` is a file's content;
- a sample without the batch axis is a batch of one.
"""

import os
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from flambeau.errors import InvalidRequestError
from flambeau.protocol.signature import Signature, TensorSpec
from flambeau.protocol.strict import nearest_name
from flambeau.protocol.tensors import DATATYPES, MAX_RANK
from flambeau.wire import Array

Value = Array | str | bytes | os.PathLike[str] | float | Sequence[Any]
"""The value of one input; each of a nested list's leaves is a value too."""
Inputs = Value | Mapping[str, object]
"""Values by input name (`Value` each), or the value of a model's only input."""

MAX_FILE_BYTES = 64 * 1024 * 1024
"""Largest file that is read as one element."""
_LEAVES: dict[str, tuple[frozenset[type], str]] = {
    "b": (frozenset({bool}), "True or False"),
    "i": (frozenset({int}), "integers"),
    "u": (frozenset({int}), "integers"),
    "f": (frozenset({int, float}), "numbers"),
    "O": (frozenset({str, bytes}), "text, bytes or the Path of a file"),
}
"""Types of leaves for each kind of NumPy type, and their name; a bool is an int in Python only."""


def as_arrays(signature: Signature, inputs: Inputs) -> dict[str, Array]:
    """Returns the arrays to send, by input name; datatypes and shapes of arrays are not checked.

    Raises:
        InvalidRequestError: an unknown name, a value that does not fit its datatype, an unreadable
            file, or a value without a name for a model with several inputs.
    """
    if not isinstance(inputs, Mapping):
        inputs = {_only_input(signature): inputs}
    specs = {spec.name: spec for spec in signature.inputs}
    for name in inputs:
        if name not in specs:
            raise InvalidRequestError(f"unknown input '{name}'{nearest_name(name, specs)}")
    return {name: as_array(specs[name], value) for name, value in inputs.items()}


def placed(signature: Signature, values: Sequence[Any], named: Mapping[str, Any]) -> Inputs:
    """Returns positional values by input name, in the signature's order, beside named ones.

    A single mapping stands for all inputs, a single value for the only one that is required.

    Raises:
        InvalidRequestError: there are more values than inputs, or an input has two.
    """
    is_whole = len(values) == 1 and not named
    if is_whole and (isinstance(values[0], Mapping) or len(_required(signature)) == 1):
        return values[0]  # type: ignore[no-any-return]
    names = [spec.name for spec in signature.inputs]
    if len(values) > len(names):
        raise InvalidRequestError(
            f"{len(values)} values were given, and the model has {len(names)} "
            f"input{'s' if len(names) > 1 else ''}: {', '.join(names)}; give one for each"
        )
    given: dict[str, Any] = dict(zip(names, values, strict=False))
    if twice := given.keys() & named.keys():
        raise InvalidRequestError(
            f"input '{min(twice)}' was given by its place and by its name; give it once"
        )
    return {**given, **named}


def as_array(spec: TensorSpec, value: Any) -> Array:
    """Returns the array to send for a value of one input.

    Raises:
        InvalidRequestError: the value does not fit the datatype, or a file cannot be read.
    """
    if hasattr(value, "__array__") and not isinstance(value, np.generic):
        return _with_batch(spec, _array_of(spec, value))
    if _is_list(value) and len(value) and all(isinstance(each, np.ndarray) for each in value):
        if len({each.shape for each in value}) > 1:
            raise InvalidRequestError(f"input '{spec.name}' is a list of arrays of several shapes")
        return _with_batch(spec, np.stack(value))
    if spec.datatype == "BF16":
        raise InvalidRequestError(
            f"input '{spec.name}' is BF16, to which no numbers are converted; give an array (or "
            ".npy file) of uint16 bit patterns"
        )
    array = _converted(spec, _plain(spec, value))
    # A list of elements also stands for rows of one element each, and an element for such a row.
    for shape in (_one_row(spec, array), (*array.shape, *(1,) * (len(spec.shape) - array.ndim))):
        if spec.fits(shape):
            return array.reshape(shape)
    return array


def _array_of(spec: TensorSpec, value: Any) -> Array:
    try:
        return np.asarray(value)
    except (RuntimeError, TypeError, ValueError) as error:  # a tensor on a GPU, or with gradients
        raise InvalidRequestError(f"input '{spec.name}': {error}") from error


def _with_batch(spec: TensorSpec, array: Array) -> Array:
    shape = _one_row(spec, array)
    return array.reshape(shape) if spec.fits(shape) else array


def _one_row(spec: TensorSpec, array: Array) -> tuple[int, ...]:
    """Returns the shape of an array as one row; its own for a tensor without a batch."""
    axis, shape = spec.batch_axis, array.shape
    return shape if axis is None else (*shape[:axis], 1, *shape[axis:])


def _required(signature: Signature) -> list[str]:
    padding = signature.padding
    return [
        spec.name
        for spec in signature.inputs
        if padding is None or not padding.is_optional(spec.name)
    ]


def _only_input(signature: Signature) -> str:
    names = _required(signature)
    if len(names) != 1:
        raise InvalidRequestError(f"the model has inputs {', '.join(names)}; give values by name")
    return names[0]


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray))


def _plain(spec: TensorSpec, value: Any, depth: int = 0) -> Any:
    """Returns the value as nested lists of leaves that the datatype allows, and no other."""
    leaves, wanted = _LEAVES[DATATYPES[spec.datatype].kind]
    if _is_list(value):
        if depth == MAX_RANK:
            raise InvalidRequestError(
                f"input '{spec.name}': the lists are nested deeper than {MAX_RANK} levels"
            )
        if leaves.issuperset(map(type, value)):
            return value
        return [_plain(spec, each, depth + 1) for each in value]
    if isinstance(value, np.generic):
        value = value.item()
    if str in leaves and isinstance(value, os.PathLike):
        return _content(spec, value)
    if isinstance(value, bytearray):
        value = bytes(value)
    if type(value) not in leaves:
        raise InvalidRequestError(
            f"input '{spec.name}': {_short(value)} is no {spec.datatype}; give {wanted}"
        )
    return value


def _content(spec: TensorSpec, path: os.PathLike[str]) -> bytes:
    try:
        with open(path, "rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise InvalidRequestError(f"input '{spec.name}': {path}: {error.strerror}") from error
    if len(content) > MAX_FILE_BYTES:
        raise InvalidRequestError(
            f"input '{spec.name}': {path} has more than {MAX_FILE_BYTES} bytes; give a smaller file"
        )
    return content


def _converted(spec: TensorSpec, plain: Any) -> Array:
    dtype: np.dtype[Any] = DATATYPES[spec.datatype]
    try:
        array = np.array(plain, np.float64 if dtype.kind == "f" else dtype)
    except OverflowError as error:
        low, high = _limits(dtype)
        integers = (leaf for leaf in _leaves(plain) if type(leaf) is int)
        beyond = next(number for number in integers if not low <= number <= high)
        raise _out_of_range(spec, beyond) from error
    except ValueError as error:
        raise _ragged(spec) from error
    if dtype.kind == "O" and any(map(_is_list, array.flat)):
        raise _ragged(spec)
    return _rounded(spec, plain, array) if dtype.kind == "f" else array


def _rounded(spec: TensorSpec, plain: Any, numbers: Array) -> Array:
    """Rounds fractions to the datatype, and refuses numbers beyond it and integers it changes."""
    dtype: np.dtype[Any] = DATATYPES[spec.datatype]
    with np.errstate(over="ignore"):
        array: Array = numbers.astype(dtype)
    beyond = numbers[np.isinf(array) & np.isfinite(numbers)]
    if beyond.size:
        raise _out_of_range(spec, beyond[0].item())
    if (np.abs(numbers) >= 2.0 ** (np.finfo(dtype).nmant + 1)).any():
        for leaf in _leaves(plain):
            if type(leaf) is int and int(dtype.type(leaf)) != leaf:
                raise InvalidRequestError(
                    f"input '{spec.name}': {spec.datatype} cannot hold the integer {_short(leaf)} "
                    "exactly; give a float to have it rounded"
                )
    return array


def _limits(dtype: np.dtype[Any]) -> list[Any]:
    """Returns the smallest and the largest number of a type, as numbers of Python."""
    limits: Any = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
    return list(np.array([limits.min, limits.max], dtype).tolist())


def _out_of_range(spec: TensorSpec, number: float) -> InvalidRequestError:
    low, high = _limits(DATATYPES[spec.datatype])
    return InvalidRequestError(
        f"input '{spec.name}': {_short(number)} is no {spec.datatype}; give {low} to {high}"
    )


def _ragged(spec: TensorSpec) -> InvalidRequestError:
    return InvalidRequestError(
        f"input '{spec.name}': lists of different lengths are no array of {spec.datatype}; give "
        "lists of equal length at each level"
    )


def _leaves(plain: Any) -> Iterator[Any]:
    if _is_list(plain):
        for each in plain:
            yield from _leaves(each)
    else:
        yield plain


def _short(value: object) -> str:
    return reprlib.repr(value)
