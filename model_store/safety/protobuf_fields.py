"""Locates the fields of a protobuf message without the protobuf library, copies or objects.

In: bytes. Out: the position of each field. A malformed message raises `ValueError` or `IndexError`.

Source: https://protobuf.dev/programming-guides/encoding/
"""

from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Wire types."""

Field = tuple[int, int, int, int]
"""Number, wire type, value (or its start position), end position of the field."""


def fields_of(data: bytes | memoryview, start: int, end: int) -> Iterator[Field]:
    """Yields the fields of one message in order; the caller limits their number.

    Raises:
        ValueError: a field is invalid in protobuf, or ends after its message.
        IndexError: the file ends within a number.
    """
    position = start
    while position < end:
        tag, position = data[position], position + 1
        if tag > 127:
            tag, position = _varint(data, position - 1)
        value, wire = position, tag & 7
        if wire == BYTES:
            length, value = data[position], position + 1
            if length > 127:
                length, value = _varint(data, position)
            position = value + length
        elif wire == VARINT:
            value, position = _varint(data, position)
        elif wire == FIXED32:
            position += 4
        elif wire == FIXED64:
            position += 8
        else:
            raise ValueError(f"a field before byte {position} has the unknown wire type {wire}")
        if position > end or not 7 < tag < 2**32:
            raise ValueError(f"the field that ends at byte {position} is cut off or has no number")
        yield tag >> 3, wire, value, position


def _varint(data: bytes | memoryview, position: int) -> tuple[int, int]:
    """Reads a varint: 7 bits a byte, lowest first; a set top bit means that more bytes follow."""
    byte = data[position]
    if byte < 128:
        return byte, position + 1
    number, shift = byte & 127, 7
    for at in range(position + 1, position + 10):
        byte = data[at]
        number |= (byte & 127) << shift
        if byte < 128:
            return number, at + 1
        shift += 7
    raise ValueError(f"the number at byte {position} has more than 10 bytes")
