"""Reads raw BYTES inputs: counts elements, reserves their memory and cuts them out in slices.

In: raw data of any datatype, and its shape. Out: the array that `decode_raw` makes of it. Both
edges read their large inputs here.
"""

from collections.abc import Callable, Sequence

from flambeau.protocol.tensors import (
    Array,
    TensorError,
    bytes_elements_in_slices,
    decode_raw,
    element_count,
)
from services.gateway.sliced_work import Slices

Buffer = bytes | bytearray | memoryview
Reserve = Callable[[int], object]
"""Reserves the bytes that arrays will need; a negative number releases those of a body that no
array views, once all arrays are made. The owner of the body then drops its reference.

Raises:
    BufferFullError: there is no room for them.
"""

MAX_TEXTS_AT_ONCE_BYTES = 32 * 1024
"""Size of a binary BYTES input; a larger one is split into its elements in slices."""
MAX_TEXTS = 2**20
"""Most elements of a BYTES input. Each is an object; the event loop frees all at once: 8 ms."""
TEXT_OVERHEAD_BYTES = 48
"""Memory of a BYTES element beside its own bytes: a reference and an object header."""
_LENGTH_BYTES = 4
"""Size of the length prefix of each element of raw data."""


def check_texts(count: int) -> None:
    """Checks how many elements a BYTES input has.

    Raises:
        TensorError: too many.
    """
    if count > MAX_TEXTS:
        raise TensorError(
            f"the shape has {count} elements of BYTES, and {MAX_TEXTS} of an input are read; "
            "send smaller batches"
        )


def raw_array(datatype: str, shape: Sequence[int], data: Buffer, reserve: Reserve) -> Slices[Array]:
    """Makes the array of a binary input.

    The array views `data`, unless that is BYTES; `reserved_bytes` of it are reserved first.

    Raises:
        TensorError: the bytes do not match the datatype and the shape.
        BufferFullError: there is no room for its elements.
    """
    if not reserved_bytes(datatype, len(data)):
        return decode_raw(datatype, shape, data)
    count = element_count(shape)
    check_texts(count)
    most = len(data) // _LENGTH_BYTES
    if count > most:  # Before any is made: only what the shape claims is reserved.
        raise TensorError(
            f"{len(data)} bytes of raw BYTES data hold at most {most} elements; its shape takes "
            f"{count}"
        )
    reserve(len(data) + count * TEXT_OVERHEAD_BYTES)
    array = yield from bytes_elements_in_slices(data, count)
    return array.reshape(shape)


def reserved_bytes(datatype: str, size: int) -> int:
    """Returns the bytes of a binary input that its array copies, whose memory is reserved."""
    return size if datatype == "BYTES" and size > MAX_TEXTS_AT_ONCE_BYTES else 0
