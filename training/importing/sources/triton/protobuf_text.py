"""Parses protobuf's text format without a schema: fields of any name, in the order of the text.

In: text, such as a `config.pbtxt`. Out: `Message`s. Limits of depth and number are checked.

Source: https://protobuf.dev/reference/protobuf/textformat-spec/
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Union

MAX_DEPTH = 32
MAX_TOKENS = 200_000

_TOKEN = re.compile(
    r"""(?P<space>\s+|\#[^\n]*)|(?P<text>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')"""
    r"""|(?P<number>-?\s*(?:0[xX][0-9a-fA-F]+|\d+\.?\d*(?:[eE][+-]?\d+)?[fF]?|\.\d+[fF]?))"""
    r"""|(?P<name>-?[A-Za-z_][\w./-]*)|(?P<mark>[{}<>\[\]:,;])"""
)
_CLOSING = {"{": "}", "<": ">"}

Value = Union[str, int, float, bool, "Message"]


class TextFormatError(ValueError):
    """The text is not protobuf's text format, or exceeds a limit."""


@dataclass(slots=True)
class Message:
    """Fields by name; a field that occurs several times, or has a list, has several values."""

    fields: dict[str, list[Value]] = field(default_factory=dict)

    def texts(self, name: str) -> list[str]:
        """Returns the values of a field that are text or names of an enumeration."""
        return [str(v) for v in self.fields.get(name, []) if isinstance(v, str)]

    def text(self, name: str) -> str:
        """Returns the last text of a field; empty without."""
        return (self.texts(name) or [""])[-1]

    def numbers(self, name: str) -> list[int]:
        """Returns the whole numbers of a field."""
        return [v for v in self.fields.get(name, []) if type(v) is int]

    def messages(self, name: str) -> list["Message"]:
        """Returns the messages of a field."""
        return [v for v in self.fields.get(name, []) if isinstance(v, Message)]

    def is_set(self, name: str) -> bool:
        """Returns True if a field is `true`."""
        return "true" in self.texts(name)


def parse_text_format(text: str) -> Message:
    """Parses one message.

    Raises:
        TextFormatError: the text is not valid, or has more than `MAX_TOKENS` or `MAX_DEPTH`.
    """
    return _Parser(text).message("", 0)


def _tokens(text: str) -> Iterator[tuple[str, str, int]]:
    """Yields kind, text and line of each token; a last one of the kind `end`."""
    place = line = count = 0
    while place < len(text):
        found = _TOKEN.match(text, place)
        if found is None:
            raise TextFormatError(f"line {line + 1}: {text[place : place + 20]!r} is unexpected")
        place = found.end()
        kind = str(found.lastgroup)
        if kind != "space":
            count += 1
            if count > MAX_TOKENS:
                raise TextFormatError(f"it has more than {MAX_TOKENS:,} words and marks")
            yield kind, found[0], line + 1
        line += found[0].count("\n")
    yield "end", "", line + 1


class _Parser:
    def __init__(self, text: str) -> None:
        self._rest = _tokens(text)
        self._next = next(self._rest)

    def message(self, closing: str, depth: int) -> Message:
        """Parses fields up to the closing mark, or the end."""
        if depth > MAX_DEPTH:
            raise TextFormatError(
                f"line {self._next[2]}: more than {MAX_DEPTH} messages are nested"
            )
        found = Message()
        while True:
            kind, text, line = self._take()
            if text == closing and kind in ("mark", "end"):
                return found
            if kind != "name":
                raise TextFormatError(f"line {line}: {text or 'the end'!r} in place of a field")
            self._skip(":")
            found.fields.setdefault(text, []).extend(self._values(depth))
            if not self._skip(","):
                self._skip(";")

    def _values(self, depth: int) -> list[Value]:
        if not self._skip("["):
            return [self._value(depth)]
        found: list[Value] = []
        while not self._skip("]"):
            found.append(self._value(depth))
            if not self._skip(",") and self._next[1] != "]":
                raise TextFormatError(f"line {self._next[2]}: a list without a comma or an end")
        return found

    def _value(self, depth: int) -> Value:
        kind, text, line = self._take()
        if kind == "mark" and text in _CLOSING:
            return self.message(_CLOSING[text], depth + 1)
        if kind == "text":
            parts = [text]
            while self._next[0] == "text":
                parts.append(self._take()[1])
            return "".join(_unquoted(part, line) for part in parts)
        if kind == "number":
            return _number(text)
        if kind == "name":
            return text
        raise TextFormatError(f"line {line}: {text or 'the end'!r} in place of a value")

    def _take(self) -> tuple[str, str, int]:
        taken = self._next
        if taken[0] != "end":
            self._next = next(self._rest)
        return taken

    def _skip(self, mark: str) -> bool:
        if self._next[:2] == ("mark", mark):
            self._take()
            return True
        return False


def _unquoted(text: str, line: int) -> str:
    try:
        return str(ast.literal_eval(text))
    except (SyntaxError, ValueError) as error:
        raise TextFormatError(f"line {line}: text with a wrong escape") from error


def _number(text: str) -> int | float:
    plain = re.sub(r"\s", "", text)
    if re.fullmatch(r"-?\d{1,19}", plain):
        return int(plain)
    if re.fullmatch(r"-?0[xX][0-9a-fA-F]{1,16}", plain):
        return int(plain, 16)
    try:
        return float(plain.rstrip("fF"))
    except ValueError as error:
        raise TextFormatError(f"{text[:40]!r} is no number") from error
