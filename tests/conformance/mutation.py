"""A seeded mutator: makes bytes and JSON documents that are almost valid.

In: valid requests. Out: bytes with a few changes that parsers stumble over.
"""

import copy
import json
import random
from typing import Any

ODD_BYTES = (
    b"\x00", b"\xff", b"\x80" * 11, b"{" * 40, b"[" * 40, b'"', b"\\ud800", b"NaN", b"-0", b"1e999",
    b"\x0a\xff\xff\xff\xff\x0f", b"\r\n\r\n", b"null", b"\xef\xbb\xbf", b"9" * 400,
)  # fmt: skip
ODD_VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 2**63, 2**64, -(2**63) - 1, 1.5, 1e308, "", "x" * 5000, "\0", "é", [], {},
    [[]], [None], {"a": {}}, "NaN", float("nan"), float("inf"), [1] * 5000,
)  # fmt: skip


def mutated_bytes(chance: random.Random, data: bytes) -> bytes:
    """Returns bytes with one to four changes."""
    changed = bytearray(data)
    for _ in range(chance.randrange(1, 5)):
        start = chance.randrange(len(changed) + 1)
        end = min(len(changed), start + chance.randrange(1, 30))
        match chance.randrange(6):
            case 0 if start < len(changed):
                changed[start] ^= 1 << chance.randrange(8)
            case 1:
                del changed[start:end]
            case 2:
                changed[start:start] = chance.choice(ODD_BYTES)
            case 3:
                changed[start:end] = changed[start:end] * 2
            case 4:
                changed[start:end] = chance.randbytes(end - start)
            case _:
                del changed[start + chance.randrange(1, 200) :]
    return bytes(changed)


def mutated_document(chance: random.Random, document: Any) -> bytes:
    """Returns a JSON document with one to three values replaced, removed or added."""
    changed = copy.deepcopy(document)
    for _ in range(chance.randrange(1, 4)):
        owner, key = _place(chance, changed)
        if owner is None:
            break
        match chance.randrange(4):
            case 0:
                del owner[key]
            case 1 if isinstance(owner, dict):
                owner[chance.choice(["parameters", "x" * 300, "id", "data", "shape"])] = (
                    copy.deepcopy(owner[key])
                )
            case _:
                owner[key] = copy.deepcopy(chance.choice(ODD_VALUES))
    return json.dumps(changed).encode()


def _place(chance: random.Random, document: Any) -> tuple[Any, Any]:
    """Returns a random list or object within a document, and a key of it; None without any."""
    found = []
    queue = [document]
    while queue:
        owner = queue.pop()
        keys = list(owner) if isinstance(owner, dict) else range(min(len(owner), 20))
        found += [(owner, key) for key in keys]
        queue += [owner[key] for key in keys if isinstance(owner[key], dict | list)]
    return chance.choice(found) if found else (None, None)
