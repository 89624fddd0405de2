"""Reads large inference requests without copying their raw tensors.

protobuf copies every byte of a message twice: into memory of its own, and from there into Python's.
Of a large message, only what is around the raw tensors goes through it; these are viewed where they
were received (0.6 MB: 4 µs in place of 33).
"""

from collections.abc import Sequence
from typing import Final

from model_store.protobuf_fields import BYTES, fields_of
from protos import open_inference_pb2 as pb
from services.gateway.wire.grpc_call import parsed
from services.gateway.wire.http_body import MIN_VIEWED_BYTES, Body

_NUMBER: Final = pb.ModelInferRequest.DESCRIPTOR.fields_by_name["raw_input_contents"].number
_EMPTY: Final = bytes((_NUMBER << 3 | BYTES, 0))
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
    rest, begin = bytearray(), 0
    raw: list[memoryview] = []
    for count, (number, wire, start, end) in enumerate(fields_of(message, 0, len(message))):
        if count == MAX_FIELDS:
            raise ValueError(f"more than {MAX_FIELDS} fields")
        if number == _NUMBER and wire == BYTES:
            raw.append(message[start:end])
            rest += _EMPTY
        else:
            rest += message[begin:end]
        begin = end
    return bytes(rest), raw
