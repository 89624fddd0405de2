"""Reads untrusted YAML; every fault in it is one error type.

In: text. Out: the document.

Rules: the expanded size is bounded. An alias is the same Python object as its anchor, so one page
of aliases may expand beyond any memory, or contain itself; such a document is refused. Depth and
merges (`<<`) are limited while nodes are composed: a merge copies, before there is a document.
"""

import functools
from typing import Any

import yaml

MAX_MARKS = 50_000
"""Limit of separator characters: PyYAML takes some 50 µs for each of them."""
MARKS = "\n,:[{"
MAX_PARTS = 1_000_000
"""Limit of the values in a document with all aliases expanded."""
MAX_DEPTH = 64
"""Limit of lists and mappings in each other, with all aliases expanded."""
MAX_MERGED = 50_000
"""Limit of the keys of all mappings, with those that they merge: some 5 µs and 70 bytes each."""
_MERGE = "tag:yaml.org,2002:merge"
MAX_NUMBER_BITS = 1024
"""Limit of a whole number, as large as the largest float: Python does not format one of over 4,300
digits, which YAML can write in another base."""


class YamlError(ValueError):
    """The text is not YAML, or its document is too large or contains itself."""


def read_yaml(text: str | bytes, loader: type[yaml.SafeLoader] = yaml.SafeLoader) -> Any:
    """Reads one document.

    Args:
        text: UTF-8, one document.
        loader: loader for the dialect of YAML.

    Raises:
        YamlError: it is not YAML, contains itself, or exceeds `MAX_MARKS`, `MAX_DEPTH`,
            `MAX_MERGED`, `MAX_PARTS` or `MAX_NUMBER_BITS`.
    """
    marks = sum(text.count(m) if isinstance(text, str) else text.count(m.encode()) for m in MARKS)
    if marks > MAX_MARKS:
        raise YamlError(f"it has up to {marks:,} values, and at most {MAX_MARKS:,} are read")
    try:
        kind = _bounded(loader)  # type: ignore[arg-type]  # every class can be hashed
        document = yaml.load(text, kind)  # noqa: S506 - it is a SafeLoader
        parts, _ = _parts(document, {})
    except YamlError:
        raise
    except Exception as error:
        # A 30th of February is a ValueError here, `!!bool x` a KeyError, a thousand merges
        # in each other are a RecursionError: PyYAML does not wrap the errors of its parts.
        raise YamlError(_words(error)) from error
    if parts > MAX_PARTS:
        raise YamlError(
            f"its aliases stand for {parts:.2g} values, and it may have {MAX_PARTS:,}; write out "
            "what is meant"
        )
    return document


@functools.cache
def _bounded(loader: type[yaml.SafeLoader]) -> type[yaml.SafeLoader]:
    """Returns a loader of the same dialect with limits on depth and merges."""

    class Bounded(loader):  # type: ignore[misc, valid-type]
        def __init__(self, stream: str | bytes) -> None:
            super().__init__(stream)
            self._keys: dict[int, int] = {}
            """Number of keys by identity of a mapping's node, those of its merges among them."""
            self._merged = self._depth = 0

        def fetch_flow_collection_start(self, token: type[yaml.Token]) -> None:
            _check_depth(self.flow_level + 1)
            super().fetch_flow_collection_start(token)

        def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node:
            self._depth += 1
            _check_depth(self._depth - 1)
            node: yaml.Node = super().compose_node(parent, index)
            self._depth -= 1
            return node

        def compose_mapping_node(self, anchor: str | None) -> yaml.MappingNode:
            node: yaml.MappingNode = super().compose_mapping_node(anchor)
            keys = self._keys[id(node)] = sum(self._count(*pair) for pair in node.value)
            self._merged += keys
            if self._merged > MAX_MERGED:
                raise YamlError(
                    f"its mappings and what they merge have over {MAX_MERGED:,} keys; write out "
                    "what is meant"
                )
            return node

        def _count(self, key: yaml.Node, value: yaml.Node) -> int:
            """Returns the number of keys that a pair of a mapping stands for."""
            if key.tag != _MERGE:
                return 1
            merged = value.value if isinstance(value, yaml.SequenceNode) else [value]
            if not all(id(one) in self._keys for one in merged):
                raise YamlError("a merge (<<) takes mappings, and none that it is part of")
            return sum(self._keys[id(one)] for one in merged)

    return Bounded


def _check_depth(depth: int) -> None:
    if depth > MAX_DEPTH:
        raise YamlError(f"it has over {MAX_DEPTH} lists and mappings in each other")


def _words(error: Exception) -> str:
    """Returns the fault on one line, with the line and column of the text if known."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}"
        return f"{where}: {', '.join(filter(None, (error.context, error.problem)))}"
    kind = "" if isinstance(error, yaml.YAMLError) else f"{type(error).__name__}: "
    return f"{kind}{' '.join(str(error).split())}"


def _parts(value: Any, known: dict[int, tuple[int, int]]) -> tuple[int, int]:
    """Counts the values in a value, with aliases expanded, and the lists and mappings in a row.

    Args:
        value: a value of the document.
        known: results by identity of lists and mappings; zeros while a count is in progress.

    Raises:
        YamlError: it contains itself, is too deep, or has a number that is too large.
    """
    if not isinstance(value, dict | list):
        _check_number(value)
        return 1, 0
    if id(value) in known:
        if known[id(value)][0] == 0:
            raise YamlError("an alias refers to a value that contains it; write the values out")
        return known[id(value)]
    known[id(value)] = 0, 0
    if isinstance(value, dict):
        for key in value:
            _check_number(key)
    inner = value.values() if isinstance(value, dict) else value
    parts, depth = 1, 1
    for part in inner:
        more, below = _parts(part, known)
        parts, depth = parts + more, max(depth, 1 + below)
        _check_depth(depth)
    known[id(value)] = parts, depth
    return parts, depth


def _check_number(value: Any) -> None:
    if isinstance(value, int) and value.bit_length() > MAX_NUMBER_BITS:
        raise YamlError(
            f"a whole number has {value.bit_length():,} bits, and may have {MAX_NUMBER_BITS:,}"
        )
