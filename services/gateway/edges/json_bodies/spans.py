"""Cuts the `data` lists of numbers and strings out of a large JSON body.

In: the text of a body. Out: the document without the elements of its `data`, which is small, and
the span of each `data`. No element becomes an object, and nothing here validates the JSON: the
parsers of the document and the lists do.

Rules:
- the work is linear in the body, and done in slices of bounded time;
- JSON outside of lists under a key `data` is at most `MAX_BESIDE_BYTES` long with at most
  `MAX_BESIDE_MEMBERS` members, or the body is refused before any of it is parsed.
"""

import re
import secrets
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from services.errors import InvalidRequestError
from services.gateway.sliced_work import Slices

MAX_BESIDE_BYTES = 256 * 1024
"""Most JSON beside the elements of tensors: names, shapes, parameters, the id. A thousand inputs
take half of it."""
MAX_BESIDE_MEMBERS = 8192
"""Most commas and brackets in it, some 7 an input; parsing and checking these takes 1 to 2 ms."""
MIN_CUT_BYTES = 256
"""Shorter lists stay in the document: handling them apart costs more than parsing them."""

WINDOW_BYTES = 256 * 1024
"""Bytes searched for single characters at once: numbers take 50 µs, only brackets 1 ms."""
FIRST_WINDOW_BYTES = 4 * 1024
"""First window of a list, which may be short."""
MASK_BYTES = 64 * 1024
"""Bytes of strings scanned at once, in some 200 µs."""
_MARK = f"data-{secrets.token_hex(16)}-"
"""Placeholder of a list that was cut out; callers cannot guess it."""
_STRINGS_A_SLICE = 512
_BEGIN_OF_STRING = re.compile(b'"')
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_LIST_BEGINS = re.compile(rb"[ \t\r\n]*+:[ \t\r\n]*+\[")
_QUOTE, _BACKSLASH, _OPENS, _CLOSES = b'"\\[]'

Octets = npt.NDArray[np.uint8]
Text = memoryview
"""View of bytes; a search copies it first, a window at a time."""


class Span(NamedTuple):
    """One `data` list: its brackets are at `start` and `end - 1`."""

    start: int
    end: int
    has_texts: bool
    """True if it contains a quotation mark."""


class Outline(NamedTuple):
    """A body split into its document and its lists."""

    document: bytes
    """The JSON, with a placeholder for each list that was cut out."""
    spans: list[Span]

    def span_of(self, data: object) -> Span | None:
        """Returns the list that a parsed `data` stands for, or None if it is no placeholder."""
        if isinstance(data, list) and len(data) == 1 and isinstance(data[0], str):
            mark = data[0]
            if mark.startswith(_MARK):
                return self.spans[int(mark[len(_MARK) :])]
        return None


def outline_of(text: Text) -> Slices[Outline]:
    """Cuts the long `data` lists out of a body.

    Raises:
        InvalidRequestError: too much is beside them, or a list or a string does not end.
    """
    parts: list[Text | bytes] = []
    spans: list[Span] = []
    position = kept_from = cut = strings = 0
    while True:
        left = MAX_BESIDE_BYTES - (position - cut)
        begin = _BEGIN_OF_STRING.search(text, position, position + left)
        if begin is None:
            break
        quote = begin.start()
        string = _STRING.match(text, quote, quote + left)
        if string is None:
            if len(text) > quote + left:
                raise _too_much(len(text) - cut)
            raise InvalidRequestError("the body is not valid JSON: a text in it does not end")
        position = string.end()
        strings += 1
        if strings % _STRINGS_A_SLICE == 0:
            yield
        if position - quote != 6 or string[0] != b'"data"':
            continue
        begins = _LIST_BEGINS.match(text, position, position + MAX_BESIDE_BYTES)
        if begins is None:
            continue
        start = begins.end() - 1
        end, has_texts = yield from _end_of_list(text, start)
        if end - start >= MIN_CUT_BYTES:
            parts += [text[kept_from:start], b'["%b%d"]' % (_MARK.encode(), len(spans))]
            spans.append(Span(start, end, has_texts))
            cut += end - start
            kept_from = end
        position = end
        if position - cut > MAX_BESIDE_BYTES:
            raise _too_much(position - cut)
    if len(text) - cut > MAX_BESIDE_BYTES:
        raise _too_much(len(text) - cut)
    parts.append(text[kept_from:])
    document = b"".join(parts)
    members = sum(map(document.count, (b",", b"[", b"{")))
    if members > MAX_BESIDE_MEMBERS:
        raise InvalidRequestError(
            f"the JSON has {members} members and lists beside the 'data' of its inputs; at most "
            f"{MAX_BESIDE_MEMBERS} are read, so send fewer fields, inputs and outputs"
        )
    return Outline(document, spans)


def outside_strings(
    octets: Octets, in_string: bool, escaped: bool
) -> tuple[npt.NDArray[np.bool_], bool, bool]:
    """Marks the bytes of a piece of JSON outside strings (quotation marks may be either).

    Args:
        octets: the piece.
        in_string: True if the piece begins within a string.
        escaped: True if a backslash before the piece escapes its first byte.

    Returns:
        The mask of bytes outside, and the two states behind the piece.
    """
    quotes = octets == _QUOTE
    targets = escaping(octets, escaped) + 1
    if escaped:
        quotes[0] = False
    escaped = bool(targets.size) and int(targets[-1]) == octets.size
    quotes[targets[:-1] if escaped else targets] = False
    inside = np.add.accumulate(quotes, dtype=np.uint8) & 1
    if in_string:
        inside ^= 1
    return inside == 0, bool(inside[-1]), escaped


def escaping(octets: Octets, escaped: bool = False) -> npt.NDArray[np.intp]:
    """Returns positions of escaping backslashes; `escaped`: the first byte is escaped."""
    slashes = np.flatnonzero(octets == _BACKSLASH)
    if escaped and slashes.size and slashes[0] == 0:
        slashes = slashes[1:]
    if not slashes.size:
        return slashes
    # In a run of backslashes, every other one escapes the next byte.
    begins = np.flatnonzero(np.diff(slashes, prepend=-2) != 1)
    lengths = np.diff(begins, append=slashes.size)
    places = np.arange(slashes.size) - np.repeat(begins, lengths)
    found: npt.NDArray[np.intp] = slashes[places % 2 == 0]
    return found


def _end_of_list(text: Text, start: int) -> Slices[tuple[int, bool]]:
    """Returns the position behind the list at `start`, and True if it has strings.

    A list of numbers contains no quotation mark, and the next key or the end of its object follows
    it: its end is found without reading its elements.
    """
    position = last = start
    balance, size = 0, FIRST_WINDOW_BYTES
    while position < len(text):
        window = bytes(text[position : position + size])
        stop = window.find(b'"')
        closing = window.find(b"}", 0, stop if stop >= 0 else None)
        if closing >= 0:
            stop = closing
        before = window if stop < 0 else window[:stop]
        octets = np.frombuffer(before, np.uint8)  # ten times as fast as `bytes.count`
        balance += int(np.count_nonzero(octets == _OPENS) - np.count_nonzero(octets == _CLOSES))
        closed = before.rfind(b"]")
        if closed >= 0:
            last = position + closed
        if stop >= 0:
            if balance == 0:
                return last + 1, False
            if closing < 0:
                return (yield from _end_of_texts(text, start))
            raise InvalidRequestError("'data' holds an object, or is a list that does not end")
        position, size = position + size, WINDOW_BYTES
        yield
    raise InvalidRequestError("the body is not valid JSON: the list 'data' does not end")


def _end_of_texts(text: Text, start: int) -> Slices[tuple[int, bool]]:
    depth, in_string, escaped = 0, False, False
    for position in range(start, len(text), MASK_BYTES):
        octets = np.frombuffer(text[position : position + MASK_BYTES], np.uint8)
        outside, in_string, escaped = outside_strings(octets, in_string, escaped)
        brackets = np.flatnonzero(((octets == _OPENS) | (octets == _CLOSES)) & outside)
        if brackets.size:
            steps = np.where(octets[brackets] == _OPENS, 1, -1)
            depths = depth + np.add.accumulate(steps)
            ends = np.flatnonzero(depths == 0)
            if ends.size:
                return position + int(brackets[ends[0]]) + 1, True
            depth = int(depths[-1])
        yield
    raise InvalidRequestError("the body is not valid JSON: the list 'data' does not end")


def _too_much(size: int) -> InvalidRequestError:
    return InvalidRequestError(
        f"the JSON has {size} bytes beside the 'data' of its inputs; at most {MAX_BESIDE_BYTES} "
        "are read, so shorten names, shapes, parameters and the id, or send tensors as 'data'"
    )
