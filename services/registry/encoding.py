"""Documents of the registry as JSON, encoded beside the event loop, in slices.

In: plain values, and parts that are JSON already. Out: bytes.

Rule: the encoder holds the interpreter lock for one entry of one list at most, or about
`SLICE_BYTES`: a page of a hundred versions with long annotations has 6 MB, and takes 9 ms. The
parts are joined once: `bytes.join` releases the lock while it copies more than 1 MiB.
"""

import json
from dataclasses import dataclass
from typing import Any

import orjson

from services.interpreter_lock import lend_lock


@dataclass(frozen=True, slots=True)
class Json:
    """A part of a document that is JSON already, and stays as it is."""

    data: bytes


SLICE_BYTES = 256 * 1024
"""Bytes between two releases of the interpreter lock: at most half a millisecond."""


def encoded(document: dict[str, Any]) -> bytes:
    """Encodes a document; blocks, and lends the interpreter lock between the entries of its lists.

    Args:
        document: plain values, and `Json` for what is JSON already.
    """
    parts: list[bytes] = []
    unlent = 0
    for name, value in document.items():
        parts += [b"," if parts else b"{", _piece(name), b":"]
        if not isinstance(value, list):
            parts.append(_piece(value))
            continue
        for number, entry in enumerate(value):
            parts += [b"," if number else b"[", _piece(entry)]
            unlent += len(parts[-1])
            if unlent >= SLICE_BYTES:
                lend_lock()
                unlent = 0
        parts.append(b"]" if value else b"[]")
    return b"".join([*parts, b"}"]) if parts else b"{}"


def _piece(value: Any) -> bytes:
    try:
        return orjson.dumps(value, default=_as_it_is, option=orjson.OPT_PASSTHROUGH_DATACLASS)
    except TypeError:  # a number of more than 64 bits
        return json.dumps(value).encode()


def _as_it_is(value: Any) -> orjson.Fragment:
    if isinstance(value, Json):
        return orjson.Fragment(value.data)
    raise TypeError
