"""Reads Java properties, the format of `config.properties`. Pure.

In: text. Out: values by key, in the order of the file; a key that occurs again replaces the first.
Source: `java.util.Properties.load`: comments with `#` or `!`, lines that end in a backslash go on,
`=`, `:` or a blank ends the key, backslashes escape.
"""

import re
from collections.abc import Iterator

from model_store.errors import ServerPropertiesError

MAX_PROPERTIES_BYTES = 2**20
MAX_PROPERTIES = 1_000

_KEY = re.compile(r"((?:\\.|[^\\=:\s])*)[ \t\f]*[=:]?[ \t\f]*", re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|.)", re.DOTALL)
_ESCAPED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse_properties(data: bytes, where: str) -> dict[str, str]:
    """Returns the properties.

    Args:
        data: the file's bytes, UTF-8 or Latin-1.
        where: the file's name, for messages.

    Raises:
        ServerPropertiesError: it is too large, or has too many properties.
    """
    if len(data) > MAX_PROPERTIES_BYTES:
        raise ServerPropertiesError(
            f"{where} has {len(data):,} bytes, and at most {MAX_PROPERTIES_BYTES:,} are read; "
            "give the file of TorchServe's settings"
        )
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = data.decode("latin-1")
    found: dict[str, str] = {}
    for line in _logical_lines(text):
        matched = _KEY.match(line)
        assert matched is not None, "the expression matches the empty text"
        found[_plain(matched[1])] = _plain(line[matched.end() :])
        if len(found) > MAX_PROPERTIES:
            raise ServerPropertiesError(
                f"{where} has more than {MAX_PROPERTIES:,} properties; give the file of "
                "TorchServe's settings"
            )
    return found


def _logical_lines(text: str) -> Iterator[str]:
    """Yields the lines without comments and blank ones; continued ones are joined."""
    parts: list[str] = []
    for raw in re.split(r"\r\n|\r|\n", text):
        line = raw.lstrip(" \t\f")
        if not parts and (not line or line[0] in "#!"):
            continue
        goes_on = (len(line) - len(line.rstrip("\\"))) % 2 == 1
        parts.append(line[:-1] if goes_on else line)
        if not goes_on:
            yield "".join(parts)
            parts = []
    if parts:
        yield "".join(parts)


def _plain(text: str) -> str:
    return _ESCAPE.sub(_unescaped, text)


def _unescaped(found: re.Match[str]) -> str:
    escape = found[1]
    return chr(int(escape[1:], 16)) if len(escape) > 1 else _ESCAPED.get(escape, escape)
