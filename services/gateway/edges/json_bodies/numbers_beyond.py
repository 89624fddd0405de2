"""NaN and infinity in JSON, which has no form for them: bare `NaN`, `Infinity` and `-Infinity`.

Source: what Triton 2.51 reads and writes; Python's `json` and RapidJSON do too.
"""

import json
import re
from typing import Any

import numpy as np
import orjson

from flambeau.protocol.tensors import Array

_TOKEN = re.compile(rb"NaN|Infinity")
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_TOKENS = (b"Infinity", b"-Infinity", b"NaN")


def parsed(data: bytes | bytearray | memoryview) -> Any:
    """Parses JSON that may have these tokens; those with any take some 10 times as long.

    Raises:
        orjson.JSONDecodeError: it is not valid JSON, also with these tokens.
    """
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        # Python's parser would return lone surrogates, which no encoder takes.
        if _TOKEN.search(data) is None or _SURROGATE.search(data) is not None:
            raise
        try:
            return json.loads(bytes(data).decode())
        except (ValueError, RecursionError):
            pass
        raise


def written(array: Array) -> bytes:
    """Writes a list of floats, of which some are no number, as JSON with these tokens."""
    flat = array.ravel()
    beyond = flat[~np.isfinite(flat)]
    tokens = [_TOKENS[2 if value != value else value < 0] for value in beyond.tolist()]
    first, *others = orjson.dumps(flat, option=orjson.OPT_SERIALIZE_NUMPY).split(b"null")
    pairs = zip(tokens, others, strict=True)
    return first + b"".join(token + text for token, text in pairs)
