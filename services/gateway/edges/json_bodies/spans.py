"""The lists of numbers and texts in a large JSON body, told apart from all else in it.

In: the text of a body. Out: the document without the elements of its `data`, which is small, and
where each `data` lies. No object is made of any element, and nothing here judges the JSON: whoever
parses the document and the lists does.

Rules kept here:
- the work is linear in the body, and done in slices of bounded time;
- all that is not in a list under a key `data` is at most `MAX_BESIDE_BYTES` long with at most
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
"""Of JSON beside the elements of tensors: names, shapes, parameters, the id. A thousand inputs
take half of it."""
MAX_BESIDE_MEMBERS = 8192
"""Commas and brackets in it, some 7 an input; to parse and check as many takes 1 to 2 ms."""
MIN_CUT_BYTES = 256
"""Shorter lists stay in the document: to handle them apart costs more than to parse them."""

WINDOW_BYTES = 256 * 1024
"""What is searched for single bytes at once: numbers take 50 µs, nothing but brackets 1 ms."""
FIRST_WINDOW_BYTES = 4 * 1024
"""Of a list, which may be short."""
MASK_BYTES = 64 * 1024
"""Of texts, what is looked through at once, in some 200 µs."""
_MARK = f"data-{secrets.token_hex(16)}-"
"""Stands for a list that was cut out; nobody outside can know it."""
_STRINGS_A_SLICE = 512
_BEGIN_OF_STRING = re.compile(b'"')
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_LIST_BEGINS = re.compile(rb"[ \t\r\n]*+:[ \t\r\n]*+\[")
_QUOTE, _BACKSLASH, _OPENS, _CLOSES = b'"\\[]'

Octets = npt.NDArray[np.uint8]
Text = memoryview
"""Of bytes; whatever is searched in is copied first, a window at a time."""


class Span(NamedTuple):
    """One `data` list: its brackets are at `start` and `end - 1`."""

    start: int
    end: int
    has_texts: bool
    """Whether a quotation mark is in it."""


class Outline(NamedTuple):
    """A body in two parts."""

    document: bytes
    """The JSON, with a mark in the place of each list that was cut out."""
    spans: list[Span]

    def span_of(self, data: object) -> Span | None:
        """The list that a parsed `data` stands for, or None if it is what it is."""
        if isinstance(data, list) and len(data) == 1 and isinstance(data[0], str):
            mark = data[0]
            if mark.startswith(_MARK):
                return self.spans[int(mark[len(_MARK) :])]
        return None


def outline_of(text: Text) -> Slices[Outline]:
    """Cuts the long `data` lists out of a body.

    Raises:
        InvalidRequestError: too much is beside them, or a list or a text does not end.
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
    """Which bytes of a piece of JSON are not in a string (quotation marks may say either).

    Args:
        octets: the piece.
        in_string: whether it begins within a string.
        escaped: whether a backslash is before it that escapes its first byte.

    Returns:
        The bytes outside, and the two states behind the piece.
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
    """The backslashes that escape what is behind them; `escaped` says that the first byte is."""
    slashes = np.flatnonzero(octets == _BACKSLASH)
    if escaped and slashes.size and slashes[0] == 0:
        slashes = slashes[1:]
    if not slashes.size:
        return slashes
    # In a run of backslashes, every other one escapes what is behind it.
    begins = np.flatnonzero(np.diff(slashes, prepend=-2) != 1)
    lengths = np.diff(begins, append=slashes.size)
    places = np.arange(slashes.size) - np.repeat(begins, lengths)
    found: npt.NDArray[np.intp] = slashes[places % 2 == 0]
    return found


def _end_of_list(text: Text, start: int) -> Slices[tuple[int, bool]]:
    """The position behind the list that begins at `start`, and whether it has texts.

    A list of numbers is followed by the next key or the end of its object, so there is no mark in
    it: its end is found without looking at its elements.
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
        balance += before.count(b"[") - before.count(b"]")
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
