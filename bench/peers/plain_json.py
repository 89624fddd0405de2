"""JSON body of peers without a protocol of their own: `{"features": [...]}`, one row."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from bench.peers.peer import Array, Floats
from bench.peers.served_model import ServedModel

JSON_HEADERS = {"Content-Type": "application/json"}
BYTES_HEADERS = {"Content-Type": "application/octet-stream"}


def nested(rows: Array) -> list[Any]:
    """Returns the numbers as a client would write them; the rows have four decimals."""
    if rows.dtype.kind != "f":
        return list(rows.tolist())
    return list(np.asarray(rows, np.float64).round(4).tolist())


def body_of_row(model: ServedModel, row: Array) -> bytes:
    """Returns `{"features": [...]}`."""
    return json.dumps({model.input: nested(row)}).encode()


def read_row(headers: Mapping[str, str], body: bytes) -> Floats:
    """Parses a response `[...]` or `{"logits": [...]}` to [1, classes]."""
    answer = json.loads(body)
    numbers = next(iter(answer.values())) if isinstance(answer, dict) else answer
    return np.array(numbers, np.float32).reshape(1, -1)
