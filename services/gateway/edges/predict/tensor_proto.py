"""Tensors of TensorFlow Serving's gRPC protocol.

In: the bytes of a `TensorProto`. Out: an array that views them, unless its elements are varints or
texts; and the parts of the message of an output.
Source: TensorFlow, `tensor.proto`, and `Tensor::FromProto` for one value in place of all.

Rules: the fields are found without protobuf, which would copy each tensor twice. All that takes
time by element is done in slices. Outputs have their elements in the field of their type, as
TensorFlow Serving has them by default.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from flambeau.protocol.tensors import (
    DATATYPES,
    Array,
    TensorError,
    copied_in_slices,
    decode_raw,
    element_count,
)
from model_store.safety.protobuf_fields import BYTES, FIXED32, FIXED64, VARINT, fields_of
from protos import tensorflow_serving_pb2 as pb
from services.gateway.edges.binary_texts import MAX_TEXTS, TEXT_OVERHEAD_BYTES, Reserve
from services.gateway.edges.grpc_large_answer import field_head, typed_parts
from services.gateway.edges.grpc_raw import MAX_TYPED_BYTES, Allowance
from services.gateway.edges.raw_parts import Part
from services.gateway.sliced_work import Slices
from services.wire.http2.grpc_call import parsed

MAX_SHAPE_BYTES = 4096
"""Largest shape as a message: dimensions may have names."""
MAX_REPEATED_BYTES = 1024 * 1024
"""Largest tensor of one value that stands for all its elements."""
_FIELDS_A_SLICE = 1024
"""Fields found in one turn, in some 0.7 ms."""
_VARINT_BYTES_A_SLICE = 64 * 1024
"""Varints read in one turn, in some 0.7 ms."""
_LONGEST_VARINT = 10
_BYTES_A_SLICE = 256 * 1024
"""Bytes copied in one turn."""
_TEXTS_A_SLICE = 16 * 1024
"""Texts put into an array in one turn, in some 0.5 ms."""
_TYPES: Final = {
    "FP32": ("DT_FLOAT", "float_val"),
    "FP64": ("DT_DOUBLE", "double_val"),
    "INT8": ("DT_INT8", "int_val"),
    "INT16": ("DT_INT16", "int_val"),
    "INT32": ("DT_INT32", "int_val"),
    "INT64": ("DT_INT64", "int64_val"),
    "UINT8": ("DT_UINT8", "int_val"),
    "UINT16": ("DT_UINT16", "int_val"),
    "UINT32": ("DT_UINT32", "uint32_val"),
    "UINT64": ("DT_UINT64", "uint64_val"),
    "BOOL": ("DT_BOOL", "bool_val"),
    "FP16": ("DT_HALF", "half_val"),
    "BF16": ("DT_BFLOAT16", "half_val"),
    "BYTES": ("DT_STRING", "string_val"),
}
"""Name of the type and of the field of its elements, by datatype."""
_DATATYPES: Final = {pb.DataType.Value(name): one for one, (name, _) in _TYPES.items()}
_FIELDS: Final = {field.name: field.number for field in pb.TensorProto.DESCRIPTOR.fields}
_TEXTS: Final = _FIELDS["string_val"]
_VARINTS: Final = {_FIELDS[name] for _, name in _TYPES.values()} - {
    _FIELDS["float_val"], _FIELDS["double_val"], _TEXTS,
}  # fmt: skip
_SINGLE: Final = {
    _FIELDS["float_val"]: FIXED32,
    _FIELDS["double_val"]: FIXED64,
    **dict.fromkeys(_VARINTS, VARINT),
}
"""Wire type of one element of a field that is not packed."""
_AS_THEY_LIE: Final = {
    one: bytes((_FIELDS[_TYPES[one][1]] << 3 | BYTES,)) for one in ("FP32", "FP64", "BOOL")
}
"""Tags of the fields whose packed elements equal the array's bytes."""

Numbers = npt.NDArray[np.uint64]
Piece = memoryview | int
"""Packed numbers, the bytes of one, or a varint."""


def type_of(datatype: str) -> str:
    """Returns the name of the type of a datatype, which is one of ours."""
    return _TYPES[datatype][0]


def shape_of(dims: Sequence[int]) -> pb.TensorShapeProto:
    """Returns a shape as a message."""
    return pb.TensorShapeProto(dim=[pb.TensorShapeProto.Dim(size=size) for size in dims])


def read_tensor(
    message: memoryview, start: int, end: int, allowance: Allowance, reserve: Reserve
) -> Slices[tuple[str, Array]]:
    """Reads a tensor.

    Args:
        message: whole message, which must not change any more.
        start: start of the tensor in it.
        end: its end.
        allowance: allowance of fields beside texts.
        reserve: reservation of the memory of what is copied.

    Returns:
        Its datatype and its array.

    Raises:
        TensorError: it contradicts itself, has another type, or exceeds a limit.
        ValueError, IndexError: it is malformed.
        BufferFullError: there is no room for it.
    """
    dtype, shape, content = 0, memoryview(b""), memoryview(b"")
    texts: list[bytes] = []
    pieces: dict[int, list[Piece]] = {}
    for count, (number, wire, at, after) in enumerate(fields_of(message, start, end), 1):
        if count % _FIELDS_A_SLICE == 0:
            yield
        if number == _TEXTS and wire == BYTES:
            reserve(after - at + TEXT_OVERHEAD_BYTES)
            if len(texts) >= MAX_TEXTS:
                raise TensorError(f"string_val has over {MAX_TEXTS} elements; send smaller batches")
            text = message[at:after]
            is_long = len(text) > _BYTES_A_SLICE
            texts.append((yield from copied_in_slices(text)) if is_long else bytes(text))
            continue
        allowance.take_inner()
        if number in _SINGLE and wire in (BYTES, _SINGLE[number]):
            piece: Piece = at if wire == VARINT else message[at:after]
            pieces.setdefault(number, []).append(piece)
        elif wire == VARINT and number == _FIELDS["dtype"]:
            dtype = at
        elif wire == BYTES and number == _FIELDS["tensor_shape"]:
            shape = message[at:after]
        elif wire == BYTES and number == _FIELDS["tensor_content"]:
            content = message[at:after]
    datatype = _checked_datatype(dtype)
    filled = {*pieces, *((_TEXTS,) if texts else ())}
    _check_form(datatype, filled, has_content=bool(content))
    dims = _dims(shape)
    if content:
        return datatype, decode_raw(datatype, dims, content)
    if datatype == "BYTES":
        found = yield from _texts(texts)
    else:
        own = pieces.get(_FIELDS[_TYPES[datatype][1]], [])
        found = yield from _numbers(datatype, own, reserve)
    return datatype, _shaped(datatype, found, dims, reserve)


def _checked_datatype(dtype: int) -> str:
    datatype = _DATATYPES.get(dtype)
    if datatype is None:
        names = ", ".join(name for name, _ in _TYPES.values())
        raise TensorError(f"dtype is {dtype}, which is none of {names}")
    return datatype


def _check_form(datatype: str, filled: set[int], *, has_content: bool) -> None:
    """Checks that the elements lie in one place, and in that of their type."""
    dtype, field = _TYPES[datatype]
    others = [name for name, number in _FIELDS.items() if number in filled and name != field]
    if others:
        raise TensorError(f"{others[0]} is filled; {dtype} goes into {field} or tensor_content")
    if has_content and filled:
        raise TensorError(f"both tensor_content and {field} are filled; send one")
    if has_content and datatype == "BYTES":
        raise TensorError("tensor_content is filled; DT_STRING goes into string_val")


def _dims(shape: memoryview) -> list[int]:
    if len(shape) > MAX_SHAPE_BYTES:
        raise TensorError(
            f"tensor_shape has {len(shape)} bytes, and {MAX_SHAPE_BYTES} is the limit; leave the "
            "names of dimensions out"
        )
    found = parsed(pb.TensorShapeProto, bytes(shape))
    if found.unknown_rank:
        raise TensorError("tensor_shape has unknown_rank; give the sizes of all dimensions")
    return [dim.size for dim in found.dim]


def _shaped(datatype: str, found: Array, dims: list[int], reserve: Reserve) -> Array:
    """Gives elements their shape; one of them may stand for all."""
    count = element_count(dims)
    if found.size == 1 < count:
        one = found[0]
        size = count * (len(one) + TEXT_OVERHEAD_BYTES if datatype == "BYTES" else found.itemsize)
        if size > MAX_REPEATED_BYTES:
            raise TensorError(
                f"shape {dims} takes {size} bytes, and one value stands for at most "
                f"{MAX_REPEATED_BYTES}; send all elements"
            )
        reserve(size)
        repeated: Array = np.empty(dims, found.dtype)
        repeated.fill(one)  # `np.full` would convert a text, and copy it for each element
        return repeated
    if found.size != count:
        field = _TYPES[datatype][1]
        raise TensorError(f"{field} holds {found.size} elements; shape {dims} takes {count}")
    return found.reshape(dims)


def _texts(texts: Sequence[bytes]) -> Slices[Array]:
    """Puts texts into an array."""
    found: Array = np.empty(len(texts), np.object_)
    for start in range(0, len(texts), _TEXTS_A_SLICE):
        found[start : start + _TEXTS_A_SLICE] = texts[start : start + _TEXTS_A_SLICE]
        yield
    return found


def _joined(views: Sequence[memoryview], reserve: Reserve) -> Slices[memoryview]:
    """Joins the pieces of a field; a single one is not copied."""
    if len(views) == 1:
        return views[0]
    size = sum(map(len, views))
    reserve(size)
    joined, end = np.empty(size, np.uint8).data, 0
    for view in views:
        for start in range(0, len(view), _BYTES_A_SLICE):
            piece = view[start : start + _BYTES_A_SLICE]
            joined[end : end + len(piece)] = piece
            end += len(piece)
            yield
    return joined


def _numbers(datatype: str, pieces: Sequence[Piece], reserve: Reserve) -> Slices[Array]:
    """Reads the numbers of a field."""
    dtype = DATATYPES[datatype]
    if datatype in ("FP32", "FP64"):
        views = [piece for piece in pieces if isinstance(piece, memoryview)]
        data = yield from _joined(views, reserve)
        if len(data) % dtype.itemsize:
            raise TensorError(f"{len(data)} bytes are no whole number of elements of {datatype}")
        return np.frombuffer(data, dtype)
    size = sum(len(piece) for piece in pieces if isinstance(piece, memoryview))
    if size > MAX_TYPED_BYTES:
        raise TensorError(
            f"the numbers have {size} bytes as varints, and {MAX_TYPED_BYTES} is the limit; send "
            "them as tensor_content"
        )
    parts: list[Numbers] = [np.empty(0, np.uint64)]
    for piece in pieces:
        if isinstance(piece, int):
            parts.append(np.array([piece], np.uint64))
            continue
        start = 0
        while start < len(piece):
            end = min(start + _VARINT_BYTES_A_SLICE, len(piece))
            while end < len(piece) and piece[end - 1] > 127:
                end += 1
            parts.append(varints(piece[start:end]))
            start = end
            yield
    return _as_datatype(datatype, np.concatenate(parts))


def varints(data: memoryview) -> Numbers:
    """Reads varints that follow one another.

    Raises:
        TensorError: the last is cut off, or one has more than 10 bytes.
    """
    octets = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(octets < 128) + 1
    if not ends.size or ends[-1] != octets.size:
        raise TensorError("packed numbers end within a number")
    starts = np.concatenate((np.zeros(1, ends.dtype), ends[:-1]))
    lengths = ends - starts
    longest = int(lengths.max())
    if longest > _LONGEST_VARINT:
        raise TensorError(f"a number has {longest} bytes; {_LONGEST_VARINT} is the limit")
    values = (octets[starts] & 127).astype(np.uint64)
    for place in range(1, longest):
        longer = np.flatnonzero(lengths > place)
        bits = (octets[starts[longer] + place] & 127).astype(np.uint64)
        values[longer] |= bits << np.uint64(7 * place)
    return values


def _as_datatype(datatype: str, found: Numbers) -> Array:
    """Converts numbers as the wire has them.

    Raises:
        TensorError: a number does not fit.
    """
    if datatype == "BOOL":
        return found.astype(np.bool_)
    dtype = np.dtype("<u2") if datatype in ("FP16", "BF16") else DATATYPES[datatype]
    is_signed = _TYPES[datatype][1] in ("int_val", "int64_val", "half_val")
    numbers = found.view(np.int64) if is_signed else found
    limits = np.iinfo(dtype.str)
    for one in (numbers.min(), numbers.max()) if numbers.size else ():
        if not limits.min <= one <= limits.max:
            raise TensorError(
                f"{_TYPES[datatype][1]} holds {one}; {datatype} takes {limits.min} to {limits.max}"
            )
    narrow: Array = numbers.astype(dtype)
    return narrow.view(np.float16) if datatype == "FP16" else narrow


def tensor_parts(datatype: str, array: Array, reserve: Reserve) -> Slices[list[Part]]:
    """Serialises a tensor.

    Raises:
        BufferFullError: there is no room for it.
    """
    if datatype == "FP16":
        array = np.ascontiguousarray(array, "<f2").view("<u2")
    field, tag = _TYPES[datatype][1], _AS_THEY_LIE.get(datatype)
    start = pb.TensorProto(dtype=type_of(datatype), tensor_shape=shape_of(array.shape))
    elements = yield from typed_parts(pb.TensorProto, field, tag, datatype, array, reserve)
    return [start.SerializeToString(), *elements]


def named_parts(tag: bytes, name: str, tensor: Sequence[Part]) -> list[Part]:
    """Returns an entry of a map of tensors."""
    key, size = name.encode(), sum(map(len, tensor))
    start = field_head(b"\x0a", len(key)) + key + field_head(b"\x12", size)
    return [field_head(tag, len(start) + size) + start, *tensor]
