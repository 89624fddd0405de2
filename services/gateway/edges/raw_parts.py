"""Writes raw data of outputs in slices: views large arrays, joins elements of BYTES.

In: an output. Out: the parts of its raw data, in order. Both edges write theirs here.
"""

from collections.abc import Iterator

from flambeau.protocol.tensors import Array, bytes_elements_in_pieces, encode_raw, raw_view
from services.gateway.edges.binary_texts import Reserve
from services.gateway.sliced_work import Slices

Part = bytes | memoryview

MIN_VIEWED_BYTES = 32 * 1024
"""Smaller outputs are cheaper to copy than to send as separate buffers."""
_TEXTS_A_SLICE = 2048
"""BYTES elements written at once; each takes some 0.3 µs."""
_TEXT_BYTES_A_SLICE = 256 * 1024
_NUMBERS_A_SLICE = 4096
"""Integers written at once as typed contents, in some 0.5 ms."""


def raw_parts(datatype: str, array: Array, reserve: Reserve) -> Slices[list[Part]]:
    """Writes the raw data of an output.

    Args:
        datatype: datatype of the output.
        array: the output, whose memory is reserved already.
        reserve: reservation of memory for BYTES elements.

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
    """Yields the start and end of each slice of a flat array that is written at once."""
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
