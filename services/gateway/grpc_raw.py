"""Reads large inference requests without copying their raw tensors.

protobuf copies every byte of a message twice: into memory of its own, and from there into Python's.
Of a large message, only what is around the raw tensors goes through it; these are viewed where they
were received (0.6 MB: 4 µs in place of 33).

Source: https://protobuf.dev/programming-guides/encoding.
"""

from collections.abc import Sequence
from typing import Final

from protos import open_inference_pb2 as pb
from services.gateway.grpc_call import parsed
from services.gateway.http_body import MIN_VIEWED_BYTES, Body

_VARINT, _EIGHT_BYTES, _SIZED, _FOUR_BYTES = 0, 1, 2, 5
_FIELD = pb.ModelInferRequest.DESCRIPTOR.fields_by_name["raw_input_contents"].number
_RAW: Final = _FIELD << 3 | _SIZED
_EMPTY: Final = bytes((_RAW, 0))
_MAX_VARINT_BITS = 64
MAX_FIELDS = 256
"""Of a message; one with more is protobuf's, lest small fields by the million hold the loop."""


def read_infer_request(body: Body) -> tuple[pb.ModelInferRequest, Sequence[bytes | memoryview]]:
    """Reads a request, and its raw tensors beside it.

    Args:
        body: it must not change any more, since the tensors may view it.

    Returns:
        The message, whose own `raw_input_contents` are as many, and may be empty; and their bytes.

    Raises:
        InvalidRequestError: the bytes are not this message.
    """
    if len(body) >= MIN_VIEWED_BYTES:
        try:
            rest, raw = _without_raw(memoryview(body))
        except (ValueError, IndexError):  # broken, or in a form that is protobuf's to judge
            pass
        else:
            if raw:
                return parsed(pb.ModelInferRequest, rest), raw
    request = parsed(pb.ModelInferRequest, body)
    return request, request.raw_input_contents


def _without_raw(message: memoryview) -> tuple[bytes, list[memoryview]]:
    """A message whose raw tensors are empty, and views of them.

    Raises:
        ValueError: it breaks off, has too many fields, or one that protobuf has given up (a group).
        IndexError: it breaks off.
    """
    rest = bytearray()
    raw: list[memoryview] = []
    position, size = 0, len(message)
    for _ in range(MAX_FIELDS):
        if position == size:
            return bytes(rest), raw
        begin = position
        key, position = _varint(message, position)
        kind = key & 7
        if kind == _SIZED:
            length, position = _varint(message, position)
            position += length
        elif kind == _VARINT:
            _, position = _varint(message, position)
        elif kind == _EIGHT_BYTES:
            position += 8
        elif kind == _FOUR_BYTES:
            position += 4
        else:
            raise ValueError(f"wire type {kind}")
        if position > size:
            raise ValueError("a field beyond the end")
        if key == _RAW:
            raw.append(message[position - length : position])
            rest += _EMPTY
        else:
            rest += message[begin:position]
    raise ValueError(f"more than {MAX_FIELDS} fields")


def _varint(message: memoryview, position: int) -> tuple[int, int]:
    """A number, and the position behind it."""
    value = shift = 0
    while True:
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift >= _MAX_VARINT_BITS:
            raise ValueError("a number beyond 64 bits")
