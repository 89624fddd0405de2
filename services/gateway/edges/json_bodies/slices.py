"""Converts the elements of one `data` list to an array, slice by slice.

In: the text of a list, and its declared datatype and shape. Out: the array that
`tensors.from_json` makes of it, or the same refusal.

Rules:
- the elements are counted, and checked against the shape, before any is converted;
- one slice makes Python objects of at most `NUMBERS_BYTES` of text, and frees them;
- numbers take only the array's memory, at most 8 bytes for 2 of JSON; strings take some 50 bytes
  more an element. `reserve` comes first, since the text is held until all are converted.
"""

import contextlib
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from flambeau.protocol.tensors import DATATYPES, Array, TensorError, element_count
from services.errors import InvalidRequestError
from services.gateway.edges.binary_texts import TEXT_OVERHEAD_BYTES, Reserve, check_texts
from services.gateway.edges.json_bodies.numbers_beyond import parsed
from services.gateway.edges.json_bodies.spans import (
    MAX_BESIDE_BYTES,
    Octets,
    Span,
    Text,
    escaping,
    outside_strings,
)
from services.gateway.edges.json_bodies.tensors import (
    check_json_form,
    convert_flat,
    from_json,
    packed,
    wanted_for,
)
from services.gateway.sliced_work import Slices

NUMBERS_BYTES = 32 * 1024
"""Text of numbers converted at once: 0.1 ms, or 0.4 ms for single digits."""
TEXTS_BYTES = 8 * 1024
"""Text of strings converted at once: only empty ones take 1.5 ms."""
LONG_TEXT_BYTES = 128 * 1024
"""A longer string is converted in pieces of this size."""
COUNTED_BYTES = 128 * 1024
"""Part of a list that is searched for commas at once."""
_MAX_ESCAPE_BYTES = 12
"""Size of a character that is written as a pair of surrogates."""
_HIGH_SURROGATE = re.compile(rb"\\u[dD][89abAB]")
_COMMA, _OPENS, _CLOSES, _SPACE = b",[] "
_BRACKETS = 2
"""Bytes of an empty list without white space."""

_ENDS = np.array([_COMMA, _COMMA], np.uint8)
"""Sentinels around a piece, which was cut at commas."""

Places = npt.NDArray[np.intp]


def array_of(
    datatype: str, shape: Sequence[int], text: Text, span: Span, reserve: Reserve
) -> Slices[Array]:
    """Makes the array of a list.

    Args:
        datatype: the protocol's name.
        shape: the full shape the request declares.
        text: text that contains the list.
        span: position of the list.
        reserve: reservation of memory.

    Raises:
        TensorError: as `from_json`.
        InvalidRequestError: it is not valid JSON.
        BufferFullError: there is no room.
    """
    check_json_form(datatype)
    dtype, count = DATATYPES[datatype], element_count(shape)
    if span.has_texts and datatype != "BYTES":
        raise TensorError(f"'data' must hold {wanted_for(datatype)}; it holds a string")
    if count == 0 and span.end - span.start <= MAX_BESIDE_BYTES:
        return from_json(datatype, shape, _parsed(text[span.start : span.end]))
    found, lists = yield from _counted(text, span)
    if found != count:
        raise TensorError(f"'data' holds {found} elements; shape {list(shape)} takes {count}")
    if datatype == "BYTES":
        check_texts(count)
    nesting = _Nesting(shape, count, lists) if lists > 1 else None
    size = span.end - span.start
    needed = count * TEXT_OVERHEAD_BYTES + size if datatype == "BYTES" else count * dtype.itemsize
    reserve(needed)
    array: npt.NDArray[Any] = np.empty(count, dtype)
    if datatype == "BYTES":
        yield from _fill_texts(array, text, span, nesting)
    else:
        yield from _fill_numbers(array, datatype, text, span, nesting)
    return array.reshape(shape)


class _Nesting:
    """Checks piece by piece that lists are nested as a shape.

    The JSON parser checks commas and elements; this checks before and behind which elements
    the brackets are.
    """

    def __init__(self, shape: Sequence[int], count: int, lists: int) -> None:
        self._shape = shape
        self._sizes: list[int] = []
        """Number of elements of a list at each level but the outermost."""
        for length in shape[:-1]:
            self._sizes.append((self._sizes[-1] if self._sizes else count) // length)
        if lists != 1 + sum(count // size for size in self._sizes):
            raise self.error()

    def error(self) -> TensorError:
        """Returns the error of any other nesting."""
        shape = list(self._shape)
        return TensorError(f"'data' is not nested as its shape says; expected {shape} or flat")

    def flatten(self, octets: Octets, first: int, last: int, commas: Places, outside: Any) -> None:
        """Checks the brackets of a piece, and overwrites them with spaces.

        Args:
            octets: whole elements, with the commas between them.
            first: number of the first element.
            last: number of the element behind the last one.
            commas: positions of the commas between elements.
            outside: mask of the bytes outside strings.

        Raises:
            TensorError: the brackets are elsewhere.
        """
        opens = np.flatnonzero((octets == _OPENS) & outside)
        closes = np.flatnonzero((octets == _CLOSES) & outside)
        before = first + np.searchsorted(commas, opens)
        behind = first + np.searchsorted(commas, closes) + 1
        if not (
            np.array_equal(before, self._expected(first, last))
            and np.array_equal(behind, self._expected(first + 1, last + 1))
        ):
            raise self.error()
        if not self._at_ends(octets, opens, closes):
            solid = (octets > _SPACE) | ~outside
            dense, outside = octets[solid], outside[solid]
            dense_opens = np.flatnonzero((dense == _OPENS) & outside)
            dense_closes = np.flatnonzero((dense == _CLOSES) & outside)
            if not self._at_ends(dense, dense_opens, dense_closes):
                raise self.error()
        octets[opens] = octets[closes] = _SPACE

    def _at_ends(self, octets: Octets, opens: Places, closes: Places) -> bool:
        """Returns True if brackets enclose elements, apart by at most one space."""
        padded = np.concatenate((_ENDS, octets, _ENDS))
        before, behind = padded[opens + 1], padded[closes + 3]
        before = np.where(before == _SPACE, padded[opens], before)
        behind = np.where(behind == _SPACE, padded[closes + 4], behind)
        return bool(
            ((before == _COMMA) | (before == _OPENS)).all()
            and ((behind == _COMMA) | (behind == _CLOSES)).all()
        )

    def _expected(self, first: int, last: int) -> Places:
        """Returns the numbers of a range's elements that begin a list, once a list."""
        found = [np.arange(-(-first // size) * size, last, size) for size in self._sizes]
        return np.sort(np.concatenate(found))


def _counted(text: Text, span: Span) -> Slices[tuple[int, int]]:
    """Counts the elements of a list, and its lists including itself."""
    commas = lists = solid = 0
    in_string = escaped = False
    for position in range(span.start, span.end, COUNTED_BYTES):
        octets = np.frombuffer(text[position : min(span.end, position + COUNTED_BYTES)], np.uint8)
        of_comma, of_list = octets == _COMMA, octets == _OPENS
        if solid <= _BRACKETS:
            solid += int(np.count_nonzero(octets > _SPACE))
        if span.has_texts:
            outside, in_string, escaped = outside_strings(octets, in_string, escaped)
            of_comma &= outside
            of_list &= outside
        commas += int(np.count_nonzero(of_comma))
        lists += int(np.count_nonzero(of_list))
        yield
    if solid == _BRACKETS and lists == 1:
        return 0, lists
    return commas + 1, lists


def _fill_numbers(
    array: npt.NDArray[Any], datatype: str, text: Text, span: Span, nesting: _Nesting | None
) -> Slices[None]:
    """Fills an array with numbers or booleans."""
    position, end, filled = span.start + 1, span.end - 1, 0
    while position < end:
        piece = bytes(text[position : min(end, position + NUMBERS_BYTES)])
        if position + len(piece) < end:
            cut = piece.rfind(b",")
            if cut < 0:
                raise InvalidRequestError(
                    f"an element of 'data' takes more than {NUMBERS_BYTES} bytes of JSON; "
                    "write numbers shorter"
                )
            piece = piece[:cut]
        position += len(piece) + 1
        if nesting is not None:
            octets = np.frombuffer(bytearray(piece), np.uint8)
            commas = np.flatnonzero(octets == _COMMA)
            last = filled + commas.size + 1
            nesting.flatten(octets, filled, last, commas, np.ones(octets.size, np.bool_))
            piece = octets.tobytes()
        numbers = _numbers(datatype, piece)
        if numbers.size > array.size - filled:
            raise TensorError("'data' holds more elements than it has commas")
        array[filled : filled + numbers.size] = numbers
        filled += numbers.size
        yield
    if filled != array.size:
        raise InvalidRequestError("the body is not valid JSON: 'data' lacks an element")


def _numbers(datatype: str, piece: bytes) -> Array:
    """Converts the text between commas, which has no strings, lists or objects, to a flat array."""
    elements = _parsed(b"[%b]" % piece)
    # Each of true, false and null has one of these letters, and no number has.
    if elements and b"u" not in piece and b"l" not in piece and datatype != "BOOL":
        with contextlib.suppress(TensorError):  # The other converter words the refusal.
            return packed(datatype, [len(elements)], elements)
    return convert_flat(datatype, elements)


def _parsed(piece: bytes | Text) -> list[Any]:
    try:
        found: list[Any] = parsed(piece)
    except orjson.JSONDecodeError as error:
        raise InvalidRequestError(f"the body is not valid JSON: {error.msg} in 'data'") from error
    return found


def _fill_texts(
    array: npt.NDArray[Any], text: Text, span: Span, nesting: _Nesting | None
) -> Slices[None]:
    position, end, filled = span.start + 1, span.end - 1, 0
    while position < end:
        octets = np.frombuffer(bytearray(text[position : min(end, position + TEXTS_BYTES)]), "u1")
        outside, _, _ = outside_strings(octets, False, False)
        commas = np.flatnonzero((octets == _COMMA) & outside)
        cut = octets.size
        if position + cut < end:
            if not commas.size:
                position = yield from _fill_long(array, filled, text, position, end, nesting)
                filled += 1
                continue
            cut = int(commas[-1])
            octets, outside, commas = octets[:cut], outside[:cut], commas[:-1]
        if nesting is not None:
            nesting.flatten(octets, filled, filled + commas.size + 1, commas, outside)
        flat = convert_flat("BYTES", _parsed(b"[%b]" % octets.tobytes()))
        if flat.size > array.size - filled:
            raise TensorError("'data' holds more elements than it has commas")
        array[filled : filled + flat.size] = flat
        filled += flat.size
        position += cut + 1
        yield
    if filled != array.size:
        raise InvalidRequestError("the body is not valid JSON: 'data' lacks an element")


def _fill_long(
    array: npt.NDArray[Any],
    place: int,
    text: Text,
    position: int,
    end: int,
    nesting: _Nesting | None,
) -> Slices[int]:
    """Converts one element longer than a slice. Returns the position behind its comma."""
    first = bytes(text[position : min(end, position + TEXTS_BYTES)])
    opening = first.find(b'"')
    if opening < 0:
        raise InvalidRequestError("the body is not valid JSON: 'data' has a gap")
    at, parts = position + opening + 1, []
    while True:
        piece = bytes(text[at : min(end, at + LONG_TEXT_BYTES)])
        octets = np.frombuffer(piece, np.uint8)
        outside, _, _ = outside_strings(octets, True, False)
        closing = int(np.argmax(outside)) if outside.any() else -1
        if closing < 0 and at + len(piece) >= end:
            raise InvalidRequestError("the body is not valid JSON: a text in 'data' does not end")
        whole = piece[:closing] if closing >= 0 else piece[: _safe_length(piece, octets)]
        parts.append(convert_flat("BYTES", _parsed(b'["%b"]' % whole))[0])
        at += len(whole)
        yield
        if closing >= 0:
            break
    rest = bytes(text[at + 1 : min(end, at + 1 + LONG_TEXT_BYTES)])
    comma = rest.find(b",")
    behind = at + 1 + (len(rest) if comma < 0 else comma)
    around = bytearray(first[:opening] + b'""' + text[at + 1 : behind])
    if comma < 0 and behind < end:
        raise InvalidRequestError("the body is not valid JSON: 'data' has a gap")
    octets = np.frombuffer(around, np.uint8)
    if nesting is not None:
        none: Places = np.empty(0, np.intp)
        nesting.flatten(octets, place, place + 1, none, np.ones(octets.size, np.bool_))
    if convert_flat("BYTES", _parsed(b"[%b]" % octets.tobytes())).size != 1:
        raise InvalidRequestError("the body is not valid JSON: 'data' has a gap")
    array[place] = b"".join(parts)
    return behind + 1


def _safe_length(piece: bytes, octets: Octets) -> int:
    """Returns the length of the prefix of a text that ends with a whole character."""
    length = len(piece) - _MAX_ESCAPE_BYTES
    while piece[length] & 0xC0 == 0x80:  # within a character of UTF-8
        length -= 1
    escapes = escaping(octets[: length + 1])
    if escapes.size and escapes[-1] + _escape_length(piece, escapes[-1]) > length:
        length = int(escapes[-1])
        escapes = escapes[:-1]
    if escapes.size and escapes[-1] == length - 6 and _HIGH_SURROGATE.match(piece, length - 6):
        length -= 6
    return length


def _escape_length(piece: bytes, place: int) -> int:
    return 6 if piece[place + 1 : place + 2] == b"u" else 2
