"""Parses protobuf messages after counting their fields.

A message of 20 MB may have ten million empty overrides, and protobuf creates an object for each:
0.8 s and a gigabyte, on the event loop.

Source: https://protobuf.dev/programming-guides/encoding/
"""

from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from services.errors import InvalidRequestError

MAX_FIELDS = 1000
"""Maximum fields of a message: overrides and others. Counting them takes 0.5 ms."""
_VARINT, _FIXED64, _BYTES, _BEGIN, _END, _FIXED32 = range(6)
_SIZES = {_FIXED64: 8, _FIXED32: 4, _BEGIN: 0, _END: 0}
_MAX_VARINT_BYTES = 10

M = TypeVar("M", bound=Message)


def read_message(kind: type[M], data: bytes) -> M:
    """Parses a message without nested messages.

    Raises:
        InvalidRequestError: it has more than `MAX_FIELDS` fields, or is not a valid message.
    """
    if _has_more_fields(data, MAX_FIELDS):
        raise InvalidRequestError(f"the message has more than {MAX_FIELDS} fields; send fewer")
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise InvalidRequestError(f"this is not a {kind.DESCRIPTOR.name}: {error}") from error


def _has_more_fields(data: bytes, most: int) -> bool:
    """Returns True if there are more; stops at an invalid field, as protobuf's parser does."""
    position = fields = 0
    try:
        while position < len(data):
            fields += 1
            if fields > most:
                return True
            tag, position = _varint(data, position)
            kind = tag & 7
            if kind in (_VARINT, _BYTES):
                value, position = _varint(data, position)
                position += value if kind == _BYTES else 0
            else:
                position += _SIZES[kind]
    except LookupError:
        pass
    return False


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """Returns a number of variable length, and the position after it.

    Raises:
        IndexError: it is not terminated.
    """
    value = 0
    for shift in range(_MAX_VARINT_BYTES):
        byte = data[position + shift]
        value |= (byte & 0x7F) << (7 * shift)
        if byte < 0x80:
            return value, position + shift + 1
    raise IndexError("a number of more than 64 bits")
