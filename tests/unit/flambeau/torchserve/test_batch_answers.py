"""Values of handlers: what they are given, and what they answer, as `json` reads and writes it."""

import enum
import json
import math
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flambeau.torchserve.batch_answers import MAX_CONTAINERS, body_of, rows_of
from model_store.archives.handler_calls import HandlerRequest, Part

TEXTS = st.text(st.characters(exclude_categories=()), max_size=10)  # lone surrogates, too
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | TEXTS
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


def given_to_handler(body: bytes, content_type: str = "application/json") -> Any:
    """Returns the value of a part."""
    request = HandlerRequest(parts=[Part("body", content_type, memoryview(body))])
    return rows_of([request], decodes=True)[0]["body"]


@given(VALUES.filter(lambda value: not isinstance(value, str)))
@example([math.inf, {"a": []}])
@example({"a": "\ud800"})
def test_an_answer_is_written_as_json_writes_it_with_an_indent(value: Any) -> None:
    assert body_of(value) == json.dumps(value, indent=2).encode()


class Colour(enum.Enum):
    """An enumeration: orjson takes it for a number, and `json` refuses it."""

    RED = 1


@given(st.lists(st.floats() | st.integers() | st.lists(st.floats(width=32))))
@example([1e16, 9999999999999998.0, 1e-4, 9.9e-5, -0.0, 100.00001])
@example([[[[[1.5]]]]])
def test_numbers_are_written_as_json_writes_them(value: Any) -> None:
    assert body_of(value) == json.dumps(value, indent=2).encode()


def test_what_json_does_not_take_is_refused() -> None:
    with pytest.raises(TypeError):
        body_of([Colour.RED])


@given(VALUES)
@example(2**70)
@example(["\ud800", math.nan, -0.0, 1e400])
def test_a_body_is_read_as_json_reads_it(value: Any) -> None:
    for text in (json.dumps(value), json.dumps(value, indent=1)):
        assert repr(given_to_handler(text.encode())) == repr(json.loads(text))


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_a_body_in_another_encoding_is_read(encoding: str) -> None:
    assert given_to_handler('{"a": "é"}'.encode(encoding)) == {"a": "é"}


@pytest.mark.parametrize("body", [b"", b"{", b'{"a": 1} x', b"[" * 100_000, b'"\xff"', b"01"])
def test_what_is_no_json_is_passed_on_as_bytes(body: bytes) -> None:
    found = given_to_handler(body)
    assert isinstance(found, bytearray)
    assert found == body


def test_too_many_arrays_and_objects_are_passed_on_as_bytes() -> None:
    most = b"[" + b"[]," * (MAX_CONTAINERS - 2) + b"{}]"
    assert len(given_to_handler(most)) == MAX_CONTAINERS - 1
    assert isinstance(given_to_handler(most.replace(b"{}", b"[{}]")), bytearray)


def test_text_that_is_none_is_passed_on_as_bytes() -> None:
    assert given_to_handler("é".encode(), "text/plain") == "é"
    assert given_to_handler(b"\xff", "text/plain") == bytearray(b"\xff")
