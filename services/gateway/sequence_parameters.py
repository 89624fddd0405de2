"""Sequences: the request parameters `sequence_id`, `sequence_start` and `sequence_end`.

Source: Triton's sequence extension. Every edge reads them; each passes the values that it decoded.
"""

from services.errors import InvalidRequestError
from services.queueing.records import SequenceStep

MAX_ID_BYTES = 128
"""Longest id, in UTF-8; as Triton's (`STRING_CORRELATION_ID_MAX_LENGTH_BYTES`)."""
MAX_ID_NUMBER = 2**64 - 1
"""Largest id that is a number: gRPC's `uint64_param`."""


def checked_sequence(name: object, start: object, end: object) -> SequenceStep | None:
    """Checks the three parameters; an absent one is 0 or False.

    A number and its decimal text are one id.

    Returns:
        The step; None for a request by itself, whose id is 0 or empty.

    Raises:
        InvalidRequestError: one has the wrong type or is out of range, or a request without a
            sequence is said to start or end one.
    """
    if type(start) is not bool or type(end) is not bool:
        is_start = type(start) is not bool
        raise _wrong(f"sequence_{'start' if is_start else 'end'}", "a boolean",
                     start if is_start else end)  # fmt: skip
    if type(name) is int and 0 <= name <= MAX_ID_NUMBER:
        text = str(name) if name else ""
    elif isinstance(name, str):
        text = name
        if len(text) * 4 > MAX_ID_BYTES and len(text.encode("utf-8", "replace")) > MAX_ID_BYTES:
            raise InvalidRequestError(
                f"parameter 'sequence_id' begins with {text[:60]!r} and has more than "
                f"{MAX_ID_BYTES} bytes of UTF-8, the limit; choose a shorter id"
            )
    else:
        raise _wrong("sequence_id", "a string, or a whole number from 0 to 2^64 - 1", name)
    if text:
        return SequenceStep(text, start, end)
    if start or end:
        raise InvalidRequestError(
            f"parameter 'sequence_{'start' if start else 'end'}' is true, and the request has no "
            "sequence; give the 'sequence_id' too, which is neither 0 nor empty"
        )
    return None


def _wrong(parameter: str, wanted: str, value: object) -> InvalidRequestError:
    return InvalidRequestError(
        f"parameter '{parameter}' must be {wanted}, and is {value!r:.60}; leave it out for a "
        "request without a sequence"
    )
