"""Minimal protobuf wire format for the two messages of TorchServe.

Supports only length-delimited fields below number 16, see
https://protobuf.dev/programming-guides/encoding/.
"""

LENGTH_DELIMITED = 2


def field(number: int, data: bytes) -> bytes:
    """Encodes one string, bytes or message field."""
    return bytes([number << 3 | LENGTH_DELIMITED]) + _varint(len(data)) + data


def first_field(message: bytes) -> bytes:
    """Returns the content of field 1, if the message begins with it.

    Raises:
        ValueError: the message begins with something else.
    """
    if not message or message[0] != (1 << 3 | LENGTH_DELIMITED):
        raise ValueError(f"field 1 expected first, got {message[:8].hex()}")
    length = shift = 0
    for position, byte in enumerate(message[1:], start=2):
        length |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return message[position : position + length]
    raise ValueError("the length of field 1 does not end")


def _varint(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
