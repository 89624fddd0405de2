"""Reads the expiry date of a certificate from its DER: Python's `ssl` gives only that of a peer.

Source: RFC 5280, 4.1 (the order of the fields) and 4.1.2.5 (the formats of the two dates).
"""

from datetime import UTC, datetime

_SEQUENCE, _UTC_TIME, _GENERALIZED_TIME, _VERSION = 0x30, 0x17, 0x18, 0xA0


def not_after_s(der: bytes) -> float:
    """Returns the expiry time of a certificate, in seconds since 1970.

    Raises:
        ValueError: it is not a certificate.
    """
    try:
        _, certificate, _ = _element(der)
        _, fields, _ = _element(certificate)
        tag, _, rest = _element(fields)
        if tag == _VERSION:
            _, _, rest = _element(rest)
        for _ in ("signature", "issuer"):
            _, _, rest = _element(rest)
        tag, validity, _ = _element(rest)
        if tag != _SEQUENCE:
            raise ValueError("it has no dates")
        _, _, rest = _element(validity)
        tag, moment, _ = _element(rest)
        return _seconds(tag, moment.decode("ascii"))
    except IndexError as error:
        raise ValueError("it is truncated") from error


def _element(data: bytes) -> tuple[int, bytes, bytes]:
    """Returns the tag and the content of the first element, and the data after it."""
    tag, length, start = data[0], data[1], 2
    if length & 0x80:
        start += length & 0x7F
        length = int.from_bytes(data[2:start], "big")
    if start + length > len(data):
        raise ValueError("it is truncated")
    return tag, data[start : start + length], data[start + length :]


def _seconds(tag: int, text: str) -> float:
    if tag == _UTC_TIME:
        text = ("19" if text[:2] >= "50" else "20") + text
    elif tag != _GENERALIZED_TIME:
        raise ValueError("it has no expiry date")
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()
