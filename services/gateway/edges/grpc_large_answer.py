"""Serialises large gRPC responses in slices.

In: the outputs of a response. Out: the parts of its message, views of the outputs' own arrays if
their bytes equal the wire format. Memory held until the caller has read it is reserved.

Source: Protocol Buffers, encoding: a packed field may come in several pieces, and so may an
embedded message; a parser puts them together.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import numpy as np
from google.protobuf.message import Message

from flambeau.protocol.tensors import Array, as_bytes, raw_view
from protos import open_inference_pb2 as pb
from services.access.caller import Principal
from services.gateway.edges.binary_texts import Reserve
from services.gateway.edges.json_bodies.tensors import is_large
from services.gateway.edges.raw_parts import Part, cuts, raw_parts
from services.gateway.edges.shared_memory.grpc_regions import set_place
from services.gateway.shared_regions.regions import RegionUse
from services.gateway.sliced_work import Slices

CONTENTS_FIELDS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
"""The field of `InferTensorContents` for each datatype; FP16 and BF16 have none."""
SlowAnswer = Callable[[Any, Principal, Reserve], Awaitable[list[Part]]]
"""Handles a call and may await: returns the parts of the serialised message."""
LARGE_BYTES = 256 * 1024
"""Size of raw data that counts as large: less is copied in some 0.1 ms."""
_AS_THEY_LIE = {"BOOL": b"\x0a", "FP32": b"\x32", "FP64": b"\x3a"}
"""Datatypes whose packed elements equal the array's bytes, and the tags of their fields."""
_OUTPUTS, _CONTENTS, _RAW = b"\x2a", b"\x2a", b"\x32"
"""Tags of `ModelInferResponse.outputs`, `InferOutputTensor.contents` and `raw_output_contents`."""


def is_large_message(arrays: Sequence[Array], *, typed: bool) -> bool:
    """True if these outputs are large enough to be serialised in slices."""
    if typed:
        return any(map(is_large, arrays))
    return any(
        is_large(array) if array.dtype.kind == "O" else array.nbytes > LARGE_BYTES
        for array in arrays
    )


def message_parts(
    response: pb.ModelInferResponse,
    outputs: Sequence[tuple[str, str, Array]],
    reserve: Reserve,
    *,
    typed: bool,
    regions: RegionUse | None = None,
) -> Slices[list[Part]]:
    """Serialises a response.

    Args:
        response: the response without its outputs.
        outputs: name, datatype and array of each.
        reserve: reservation of memory.
        typed: True for typed contents.
        regions: shared memory of outputs, which are raw then; None for none.

    Raises:
        BufferFullError: there is no room for it.
        ServingError: an output does not fit into its region.
    """
    reserve(sum(array.nbytes for _, _, array in outputs))
    if typed:
        parts: list[Part] = [response.SerializeToString()]
        for name, datatype, array in outputs:
            contents = yield from _contents(datatype, array, reserve)
            start = pb.ModelInferResponse.InferOutputTensor(
                name=name, datatype=datatype, shape=array.shape
            ).SerializeToString()
            size = sum(map(len, contents))
            start += field_head(_CONTENTS, size)
            parts += [field_head(_OUTPUTS, len(start) + size) + start, *contents]
        return parts
    data: list[Part] = []
    for name, datatype, array in outputs:
        output = response.outputs.add(name=name, datatype=datatype, shape=array.shape)
        raw = yield from raw_parts(datatype, array, reserve)
        if regions is not None and name in regions.outputs:
            size = yield from regions.write(name, raw)
            set_place(output.parameters, regions.outputs[name], size)
            raw = []
        data += [field_head(_RAW, sum(map(len, raw))), *raw]
    return [response.SerializeToString(), *data]


def values(datatype: str, array: Array) -> Sequence[object]:
    """Returns the elements of an array in the form of typed contents."""
    if datatype == "BYTES":
        return [as_bytes(element) for element in array.ravel()]
    found: list[object] = np.ascontiguousarray(array).ravel().tolist()
    return found


def _contents(datatype: str, array: Array, reserve: Reserve) -> Slices[list[Part]]:
    """Serialises an `InferTensorContents`."""
    tag, field = _AS_THEY_LIE.get(datatype), CONTENTS_FIELDS[datatype]
    return typed_parts(pb.InferTensorContents, field, tag, datatype, array, reserve)


def typed_parts(
    message: type[Message],
    field: str,
    tag: bytes | None,
    datatype: str,
    array: Array,
    reserve: Reserve,
) -> Slices[list[Part]]:
    """Serialises the elements of an output, as a field of a message.

    Args:
        message: class of the message.
        field: name of the field.
        tag: tag of the field if its packed elements equal the array's bytes, else None.
        datatype: datatype of the output.
        array: the output, whose memory is reserved already.
        reserve: reservation of memory for elements that are converted.

    Raises:
        BufferFullError: there is no room for them.
    """
    if not array.size:
        return []
    if tag is not None:
        return [field_head(tag, array.nbytes), raw_view(datatype, array)]
    parts: list[Part] = []
    flat = array.ravel()
    for start, end in cuts(flat):
        if start:
            yield
        contents = message()
        getattr(contents, field).extend(values(datatype, flat[start:end]))
        parts.append(contents.SerializeToString())
        reserve(len(parts[-1]))
    return parts


def field_head(tag: bytes, size: int) -> bytes:
    """Returns the header of a field: its tag and its length in bytes."""
    out = bytearray(tag)
    while size > 0x7F:
        out.append(size & 0x7F | 0x80)
        size >>= 7
    out.append(size)
    return bytes(out)
