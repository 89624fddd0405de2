"""Payload samples as lines: round trips of every datatype, and statistics without values."""

from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

from flambeau.protocol.tensors import DATATYPES, Array
from model_store.errors import SampleError
from model_store.samples.payload_sample import (
    MIN_ELEMENTS_OF_STATISTICS,
    PayloadSample,
    SampledTensor,
    parse_sample,
    statistics_of,
    with_values,
)

NOW = datetime(2026, 11, 22, 8, tzinfo=UTC)


def sample(**changes: Any) -> PayloadSample:
    fields: dict[str, Any] = {
        "time": NOW, "request_id": "r", "model": "m", "version": 3, "protocol": "rest",
        "status": "200", "duration_ms": 1.5, "inputs": (),
    }  # fmt: skip
    return PayloadSample(**{**fields, **changes})


def values_of(datatype: str) -> Array:
    if datatype == "BYTES":
        elements = np.empty(4, np.object_)
        elements[:] = [b"", b"\x00\xff\n", "grüße".encode(), b"a\x00"]
        return elements.reshape(2, 2)
    return np.arange(6).reshape(2, 3).astype(DATATYPES[datatype])


@pytest.mark.parametrize("datatype", DATATYPES)
def test_values_of_every_datatype_come_back(datatype: str) -> None:
    array = values_of(datatype)
    line = sample(inputs=(with_values("x", datatype, array),)).to_line()
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    (found,) = parse_sample(line, "f").inputs
    assert (found.datatype, found.shape) == (datatype, array.shape)
    np.testing.assert_array_equal(found.array(), array)


def test_what_json_has_no_word_for_comes_back_too() -> None:
    array = np.array([np.nan, np.inf, -0.0], np.float32)
    found = with_values("x", "FP32", array).array()
    assert found is not None
    assert found.tobytes() == array.tobytes()


def test_a_line_says_nothing_of_what_is_not_there() -> None:
    assert sample().to_line() == (
        b'{"schema_version":1,"time":"2026-11-22T08:00:00Z","request_id":"r","trace_id":"",'
        b'"model":"m","version":3,"artifact":"","protocol":"rest","status":"200","error":"",'
        b'"duration_ms":1.5,"inputs":[],"outputs":[]}\n'
    )


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{", "no payload sample"),
        (sample().to_line().replace(b'"status"', b'"state"'), "unknown key 'state'"),
        (sample().to_line().replace(b'"schema_version":1', b'"schema_version":2'), "newer"),
    ],
)
def test_what_is_no_sample_is_refused_by_name(line: bytes, reason: str) -> None:
    with pytest.raises(SampleError, match=reason) as raised:
        parse_sample(line, "m/samples/f.jsonl")
    assert "m/samples/f.jsonl" in str(raised.value)


@pytest.mark.parametrize("raw", ["AAAA", "not base64!"])
def test_values_that_are_not_their_tensors_are_refused(raw: str) -> None:
    tensor = SampledTensor(name="x", datatype="FP32", shape=(2,), raw=raw)
    with pytest.raises(SampleError, match="'x'"):
        tensor.array()


def test_statistics_are_of_what_is_finite() -> None:
    numbers = np.array([*range(16), np.nan, np.inf, -np.inf], np.float32)
    found = statistics_of("FP32", numbers)
    assert found is not None
    assert (found.elements, found.not_finite) == (19, 3)
    assert (found.minimum, found.maximum, found.mean) == (0, 15, 7.5)
    assert found.deviation == pytest.approx(np.arange(16).std())


def test_statistics_of_bfloat16_are_of_its_numbers() -> None:
    patterns = (np.full(16, 1.5, "<f4").view("<u4") >> 16).astype("<u2")
    found = statistics_of("BF16", patterns)
    assert found is not None
    assert (found.minimum, found.maximum) == (1.5, 1.5)


def test_statistics_of_text_are_of_its_lengths() -> None:
    texts = np.array([b"secret"] * 15 + [b"a secret"], np.object_)
    found = statistics_of("BYTES", texts)
    assert found is not None
    assert (found.minimum, found.maximum) == (6, 8)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(MIN_ELEMENTS_OF_STATISTICS - 1),
        np.full(16, np.nan),
        np.full(16, 1.7e308),
    ],
    ids=["too few", "none finite", "beyond range"],
)
def test_where_figures_would_say_too_much_or_nothing_there_are_none(array: Array) -> None:
    assert statistics_of("FP64", array) is None
