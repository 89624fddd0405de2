"""Tensors that are kept to look at: first values, however large they are in JSON."""

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.traffic.shown_tensors import (
    MOST_SHOWN_BYTES,
    SHOWN_BYTES,
    SHOWN_TENSORS,
    SHOWN_VALUES,
    shown,
)


def test_first_values_are_shown() -> None:
    pixels = np.arange(100, dtype=np.float32).reshape(10, 10)
    texts = np.array([b"a", "b\u00e9".encode()], dtype=object)
    pixels[0, 1] = np.nan
    tensors = [("pixels", "FP32", pixels), ("texts", "BYTES", texts), ("secret", "BYTES", texts)]
    found = shown("m", tensors, redacts=lambda model, name, _: name == "secret")
    assert found[0]["values"] == [0.0, "nan", *map(float, range(2, SHOWN_VALUES))]
    assert (found[0]["shape"], found[1]["values"]) == ([10, 10], ["a", "b\u00e9"])
    assert found[2] == {"name": "secret", "datatype": "BYTES", "shape": [2], "values": None}


@pytest.mark.parametrize("data", [b"\xff" * 500, b"\x00" * 500, b"\xf0\x9f\x98\x80" * 125])
def test_hostile_texts_are_cut(data: bytes) -> None:
    texts = np.array([data] * 100, dtype=object)
    tensors = [(f"{number}\x00" * 300, "BYTES", texts) for number in range(SHOWN_TENSORS + 1)]
    found = shown("m", tensors, redacts=lambda model, name, _: False)
    assert len(found) == SHOWN_TENSORS
    assert found[0]["values"]
    assert len(orjson.dumps(found)) < MOST_SHOWN_BYTES + SHOWN_TENSORS * 300


@given(
    st.one_of(st.text(), st.binary(max_size=2000), st.text("\x00\ud800\U0001f600a", min_size=400))
)
def test_texts_have_their_limit_in_json(text: str | bytes) -> None:
    array = np.array([text], dtype=object)
    [found] = shown("m", [("x", "BYTES", array)], redacts=lambda model, name, _: False)
    [value] = found["values"]
    assert len(orjson.dumps(value)) <= SHOWN_BYTES + 2
