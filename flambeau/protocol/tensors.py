"""The datatypes of the Open Inference Protocol and the raw (binary) form of a tensor.

In: bytes and a shape, or a NumPy array. Out: the other form.
Source: Open Inference Protocol v2, "Tensor Data" and Triton's binary tensor data extension.

Rules:
- raw data is little-endian, row-major and packed;
- a BYTES element is a 4-byte little-endian length followed by that many bytes;
- a BOOL element is one byte, 0 or 1;
- BF16 has no NumPy type: a uint16 array holds its 16-bit patterns;
- decoding returns a view of the given buffer and copies only BYTES.
"""

import io
import math
import struct
import sys
from collections.abc import Generator, Iterator, Sequence

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.generic]

DATATYPES: dict[str, np.dtype[np.generic]] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype("u1"),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "INT8": np.dtype("i1"),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
    "BF16": np.dtype("<u2"),
    "BYTES": np.dtype(np.object_),
}
"""Every datatype name of the protocol, with the NumPy type of its elements."""

MAX_RANK = 64
MAX_ELEMENTS = sys.maxsize // 8
"""The largest NumPy array; NumPy's own errors beyond it would look like internal errors."""

_ELEMENTS_A_SLICE = 2048
"""BYTES elements in a slice; each takes some 0.3 µs."""
_BYTES_A_SLICE = 256 * 1024
_COPIED_ELEMENT_BYTES = 32 * 1024
"""Longer BYTES elements are cheaper to pass on than to copy."""
_LENGTH = struct.Struct("<I")


class TensorError(ValueError):
    """A tensor whose bytes, shape or datatype contradict each other."""


def datatype_of(array: Array) -> str:
    """Returns the protocol's name for an array's type; BYTES for strings, bytes and objects.

    Raises:
        TensorError: the type has no name in the protocol (complex numbers, dates, ...).
    """
    if array.dtype.kind in "OSU":
        return "BYTES"
    for name, dtype in DATATYPES.items():
        if name != "BF16" and array.dtype == dtype:
            return name
    raise TensorError(
        f"arrays of type {array.dtype} have no datatype in the protocol; "
        f"convert to one of {', '.join(DATATYPES)}"
    )


def element_count(shape: Sequence[int]) -> int:
    """Returns the number of elements of a fully known shape.

    Raises:
        TensorError: a dimension is negative, or the shape exceeds the limits of NumPy arrays.
    """
    if len(shape) > MAX_RANK:
        raise TensorError(f"a shape has {len(shape)} dimensions; give at most {MAX_RANK}")
    if shape and min(shape) < 0:
        raise TensorError(f"shape {list(shape)} has a negative dimension")
    count = math.prod(shape)
    # An array without elements still has strides, which its non-zero dimensions determine.
    if (count or math.prod(filter(None, shape))) > MAX_ELEMENTS:
        raise TensorError(f"shape {list(shape)} is larger than any array; send fewer elements")
    return count


def decode_raw(datatype: str, shape: Sequence[int], data: bytes | bytearray | memoryview) -> Array:
    """Views raw bytes as an array of the given datatype and shape.

    Raises:
        TensorError: unknown datatype, negative dimension, wrong number of bytes.
    """
    dtype = DATATYPES.get(datatype)
    if dtype is None:
        raise TensorError(f"datatype '{datatype}' is unknown; use one of {', '.join(DATATYPES)}")
    count = element_count(shape)
    if datatype == "BYTES":
        return decode_bytes_elements(data, count).reshape(shape)
    expected = count * dtype.itemsize
    if len(data) != expected:
        raise TensorError(
            f"{len(data)} bytes of raw data; {datatype} of shape {list(shape)} takes {expected}"
        )
    if datatype == "BOOL":
        octets = np.frombuffer(data, np.uint8)
        if octets.size and octets.max() > 1:
            raise TensorError(f"a BOOL element is the byte {octets.max()}; it must be 0 or 1")
        return octets.view(np.bool_).reshape(shape)
    return np.frombuffer(data, dtype).reshape(shape)


def encode_raw(datatype: str, array: Array) -> bytes:
    """Returns the raw bytes of an array, in row-major order."""
    if datatype == "BYTES":
        return encode_bytes_elements(array)
    return np.ascontiguousarray(array, DATATYPES[datatype]).tobytes()


def raw_view(datatype: str, array: Array) -> memoryview:
    """Returns the bytes of `encode_raw`, as a view if the array's memory layout allows it.

    Args:
        datatype: any except BYTES, whose elements are not stored in the array.
        array: a non-empty array that does not change while the view is in use.
    """
    return np.ascontiguousarray(array, DATATYPES[datatype]).data.cast("B")


def bf16_numbers(patterns: Array) -> Array:
    """Returns the numbers of BF16 bit patterns, in FP32: a bfloat16 is the upper half of one."""
    return (patterns.astype("<u4") << 16).view("<f4")


def decode_bytes_elements(
    data: bytes | bytearray | memoryview, count: int
) -> npt.NDArray[np.object_]:
    """Splits length-prefixed elements into a flat object array of `bytes`.

    Raises:
        TensorError: a length runs past the end, or the number of elements differs from `count`.
    """
    slices = bytes_elements_in_slices(data, count)
    while True:
        try:
            next(slices)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]  # typeshed has Any


def bytes_elements_in_slices(
    data: bytes | bytearray | memoryview, count: int
) -> Generator[None, None, npt.NDArray[np.object_]]:
    """Does the work of `decode_bytes_elements`; yields between slices.

    A slice has `_ELEMENTS_A_SLICE` elements or some `_BYTES_A_SLICE` bytes, or is a part of a long
    element.

    Raises:
        TensorError: as `decode_bytes_elements`.
    """
    view = memoryview(data)
    # One more than `count`, but no more than the data can hold: a shape may claim any size.
    elements = np.empty(min(count, len(view) // _LENGTH.size) + 1, np.object_)
    position = found = slice_from = 0
    while position < len(view) and found <= count:
        end_of_length = position + _LENGTH.size
        if end_of_length > len(view):
            raise TensorError(f"raw BYTES data ends inside the length of element {found}")
        (length,) = _LENGTH.unpack_from(view, position)
        position = end_of_length + length
        if position > len(view):
            raise TensorError(
                f"BYTES element {found} claims {length} bytes; {len(view) - end_of_length} are left"
            )
        element = view[end_of_length:position]
        elements[found] = (
            bytes(element) if length <= _BYTES_A_SLICE else (yield from copied_in_slices(element))
        )
        found += 1
        if position - slice_from >= _BYTES_A_SLICE or found % _ELEMENTS_A_SLICE == 0:
            slice_from = position
            yield
    if found != count or position != len(view):
        words = f"{found}" if position == len(view) else f"more than {count}"
        raise TensorError(f"raw BYTES data holds {words} elements; its shape takes {count}")
    return elements[:count]


def copied_in_slices(view: memoryview) -> Generator[None, None, bytes]:
    """Copies a long element in slices; page faults of new memory cost more than the copying."""
    copy = io.BytesIO(bytes(len(view)))  # zero pages cost nothing yet; `getvalue` copies nothing
    for start in range(0, len(view), _BYTES_A_SLICE):
        copy.write(view[start : start + _BYTES_A_SLICE])
        yield
    return copy.getvalue()


def encode_bytes_elements(array: Array) -> bytes:
    """Joins the elements of an array, in row-major order, each prefixed with its length."""
    return b"".join(bytes_elements_in_pieces(array))


def bytes_elements_in_pieces(array: Array) -> Iterator[bytes]:
    """Yields the bytes of `encode_bytes_elements` in pieces.

    A piece has `_ELEMENTS_A_SLICE` elements or some `_BYTES_A_SLICE` bytes, or is one long element,
    uncopied.
    """
    parts: list[bytes] = []
    size = 0
    for element in array.ravel():
        octets = as_bytes(element)
        parts.append(_LENGTH.pack(len(octets)))
        is_long = len(octets) > _COPIED_ELEMENT_BYTES
        if not is_long:
            parts.append(octets)
            size += len(octets)
        if is_long or size >= _BYTES_A_SLICE or len(parts) >= 2 * _ELEMENTS_A_SLICE:
            yield b"".join(parts)
            parts.clear()
            size = 0
        if is_long:
            yield octets
    if parts:
        yield b"".join(parts)


def as_bytes(element: object) -> bytes:
    """Returns one BYTES element as bytes; text is encoded as UTF-8.

    Raises:
        TensorError: the element is neither bytes nor text, or text with a lone surrogate.
    """
    if isinstance(element, bytes):
        return element
    if isinstance(element, str):
        try:
            return element.encode()
        except UnicodeEncodeError as error:
            raise TensorError(
                f"a BYTES element is not text that UTF-8 can hold: {error}"
            ) from error
    raise TensorError(f"a BYTES element is a {type(element).__name__}; give bytes or text")


def object_array(elements: Sequence[bytes]) -> npt.NDArray[np.object_]:
    """Returns a flat object array; NumPy's own conversion would strip trailing zero bytes."""
    array = np.empty(len(elements), np.object_)
    array[:] = elements
    return array
