"""JSON of a store: limits that are checked first, and errors that name file, limit and value."""

import contextlib
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from flambeau.protocol.strict import MAX_FAULTS, StrictModel
from model_store.document import MAX_DEPTH, SMALL, DocumentLimits, parse_as, parse_document
from model_store.errors import DocumentError

WHERE = "digits/1/manifest.json"
LIMITS = DocumentLimits(2**20, 10_000)

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text(max_size=20)
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=20,
)  # fmt: skip


class Person(StrictModel):
    """A schema."""

    name: str
    age: int = Field(ge=0)


def refusal(data: bytes, limits: DocumentLimits = LIMITS) -> str:
    with pytest.raises(DocumentError) as refused:
        parse_document(data, WHERE, limits)
    assert str(refused.value).startswith(WHERE)
    return str(refused.value)


@given(values)
def test_what_is_within_the_limits_reads_as_python_reads_it(value: Any) -> None:
    assert parse_document(json.dumps(value).encode(), WHERE, LIMITS) == value


@given(st.binary(max_size=200) | st.text('[]{},:"\\0e-.ntfu ', max_size=200).map(str.encode))
def test_any_bytes_give_a_value_or_the_one_error(data: bytes) -> None:
    with contextlib.suppress(DocumentError):
        parse_document(data, WHERE, LIMITS)


def test_bytes_are_counted_before_anything_is_parsed() -> None:
    assert "has 65,537 bytes, and at most 65,536 are read" in refusal(b"[" * 65_537, SMALL)


def test_values_are_counted_before_anything_is_parsed() -> None:
    assert "has up to 10,001 values, and at most 10,000 are read" in refusal(b"[]," * 5000)


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_depth_ends_in_an_error(opening: bytes) -> None:
    limits = DocumentLimits(2**21, 2**21)
    expected = f"more than {MAX_DEPTH} lists and objects are nested"
    assert expected in refusal(opening * 200_000, limits)
    closing = b"]" if opening == b"[" else b"}"
    whole = opening * (MAX_DEPTH - 1) + b"1" + closing * (MAX_DEPTH - 1)
    assert parse_document(whole, WHERE, limits)


@pytest.mark.parametrize("data", [b"", b"\xff", b"[1", b'"\\ud800"', b"9" * 5000, b"\x00"])
def test_what_is_no_json_is_named(data: bytes) -> None:
    assert "is not JSON that can be read" in refusal(data)


def test_faults_are_told_shortly_however_many_and_long_they_are() -> None:
    def fault(document: Any) -> str:
        with pytest.raises(DocumentError) as refused:
            parse_as(Person, json.dumps(document).encode(), WHERE, LIMITS)
        return str(refused.value)

    assert "'age' is -1" in fault({"name": "a", "age": -1})
    few = fault({f"key {number}": 1 for number in range(20)})
    assert "and 17 more" in few
    many = fault({f"key {number}": 1 for number in range(MAX_FAULTS + 1)})
    assert "of its keys and values are wrong" in many
    long = fault({"name": ["x" * 10**5] * 9, "y" * 10**5: 1, "age": [[[math.pi] * 9] * 9] * 9})
    assert len(long) < 2_000
