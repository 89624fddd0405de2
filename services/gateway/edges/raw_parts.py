"""Raw data of outputs, made in slices: large arrays are viewed, elements of BYTES are joined.

In: an output. Out: the parts of its raw data, one behind the other. Both edges write theirs here.
"""

from collections.abc import Iterator

from model_store.tensors import Array, bytes_elements_in_pieces, encode_raw, raw_view
from services.gateway.edges.binary_texts import Reserve
from services.gateway.sliced_work import Slices

Part = bytes | memoryview

MIN_VIEWED_BYTES = 32 * 1024
"""Smaller outputs are cheaper to copy than to send as buffers of their own."""
_TEXTS_A_SLICE = 2048
"""Elements of BYTES that are written at once; each takes some 0.3 µs."""
_TEXT_BYTES_A_SLICE = 256 * 1024
_NUMBERS_A_SLICE = 4096
"""Whole numbers that are written at once as typed contents, in some 0.5 ms."""


def raw_parts(datatype: str, array: Array, reserve: Reserve) -> Slices[list[Part]]:
    """The raw data of an output.

    Args:
        datatype: of it.
        array: whose memory is reserved already.
        reserve: asked for what the elements of BYTES take.

    Raises:
        BufferFullError: there is no room for them.
    """
    if datatype == "BYTES":
        parts: list[Part] = []
        for piece in bytes_elements_in_pieces(array):
            reserve(len(piece))
            parts.append(piece)
            yield
        return parts
    if array.nbytes < MIN_VIEWED_BYTES:
        return [encode_raw(datatype, array)]
    return [raw_view(datatype, array)]


def cuts(flat: Array) -> Iterator[tuple[int, int]]:
    """Yields the begin and the end of each slice of a flat array that is written at once."""
    if flat.dtype.kind != "O":
        for start in range(0, flat.size, _NUMBERS_A_SLICE):
            yield start, start + _NUMBERS_A_SLICE
        return
    start = size = 0
    for place, element in enumerate(flat):
        size += len(element)
        if size >= _TEXT_BYTES_A_SLICE or place + 1 - start == _TEXTS_A_SLICE:
            yield start, place + 1
            start, size = place + 1, 0
    if start < flat.size:
        yield start, flat.size
