"""Requests to handlers and their answers, as elements of BYTES tensors."""

import json
import math
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_store.archives.handler_calls import (
    GREETED,
    GREETING,
    MAX_HEAD_BYTES,
    MAX_KNOWN_HEADS,
    HandlerAnswer,
    HandlerCallError,
    HandlerRequest,
    Measurement,
    Part,
    decode_answer,
    decode_request,
    encode_answer,
    encode_request,
)

TEXTS = st.text(st.characters(exclude_categories=()), max_size=20)  # lone surrogates, too
HEADERS = st.dictionaries(TEXTS, TEXTS, max_size=4)
PARTS = st.lists(st.builds(Part, TEXTS, TEXTS, st.binary(max_size=40)), max_size=4)
REQUESTS = st.builds(HandlerRequest, id=TEXTS, headers=HEADERS, parts=PARTS)
MEASUREMENTS = st.builds(Measurement, TEXTS, TEXTS, TEXTS, st.floats(allow_nan=False), HEADERS)
ANSWERS = st.builds(
    HandlerAnswer,
    body=st.binary(max_size=40),
    status=st.integers(100, 599),
    phrase=TEXTS,
    headers=HEADERS,
    is_intermediate=st.booleans(),
    failure=TEXTS,
    measurements=st.lists(MEASUREMENTS, max_size=3),
    dropped=st.integers(0, 2**40),
)


def element_of(head: bytes, body: bytes = b"") -> bytes:
    return struct.pack("<I", len(head)) + head + body


def request_of(head: bytes, body: bytes = b"", name: bytes = b"") -> bytes:
    return struct.pack("<II", len(head), len(name)) + name + head + body


@given(REQUESTS)
def test_a_request_comes_back_as_it_was(request: HandlerRequest) -> None:
    assert decode_request(encode_request(request)) == request


def test_more_heads_than_are_known_come_back() -> None:
    for number in [*range(2 * MAX_KNOWN_HEADS), *range(4)]:
        request = HandlerRequest(id="x", headers={"number": str(number)}, parts=[])
        assert decode_request(encode_request(request)) == request


@given(ANSWERS)
def test_an_answer_comes_back_as_it_was(answer: HandlerAnswer) -> None:
    assert decode_answer(encode_answer(answer)) == answer


def test_a_measurement_that_is_no_number_comes_back() -> None:
    measured = [Measurement("m", "gauge", "ms", math.nan, {})]
    (found,) = decode_answer(encode_answer(HandlerAnswer(measurements=measured))).measurements
    assert math.isnan(found.value)


def test_the_greeting_is_the_one_that_published_archives_hold() -> None:
    assert element_of(b'{"id":"ready","headers":{},"parts":[]}') == GREETING
    assert element_of(b'{"status":200}') == GREETED


@pytest.mark.parametrize(
    ("element", "words"),
    [
        (b"", "too few"),
        (b"\xff\xff\xff\xff\0\0\0\0{}", "its head has"),
        (b"\0\0\0\0\xff\xff\xff\xff{}", "its head has 0 bytes, its id 4,294,967,295"),
        (request_of(b"nothing"), "no JSON"),
        (request_of(b"\xff\xfe"), "no JSON"),
        (request_of(b"[" * 100_000), "its head is none|no JSON"),
        (request_of(b"[]"), "its head is none"),
        (request_of(b"{}"), "its head is none"),
        (request_of(json.dumps({"headers": {"a": 1}, "parts": []}).encode()), "none"),
        (request_of(b'{"headers":{},"parts":[]}', name=b"\xff"), "its id is no text"),
        (
            request_of(b'{"headers":{},"parts":[["a","",2]]}', b"x"),
            "its parts end at",
        ),
        (request_of(b'{"headers":{},"parts":[["a","",-1]]}', b"x"), "-1 bytes"),
        (request_of(b'{"headers":{},"parts":[["a","",9],["b","",-8]]}', b"x"), "-8 bytes"),
        (request_of(b'{"headers":{"a":"\\ud800"},"parts":7}'), "none"),
        (GREETING, "its id"),
    ],
)
def test_what_is_no_request_is_named(element: bytes, words: str) -> None:
    with pytest.raises(HandlerCallError, match=words):
        decode_request(element)


@pytest.mark.parametrize(
    "head",
    [b"{}", b"[]", b'{"status":"ok"}', b'{"status":200,"measurements":[["m"]]}', b'{"status":NaN}'],
)
def test_what_is_no_answer_is_named(head: bytes) -> None:
    with pytest.raises(HandlerCallError, match="head is"):
        decode_answer(element_of(head))


@pytest.mark.parametrize("text", ["a", "\u00e9", "\ud800"])
def test_a_head_beyond_the_limit_is_refused(text: str) -> None:
    request: Any = HandlerRequest(headers={"long": text * MAX_HEAD_BYTES})
    with pytest.raises(HandlerCallError, match="262,144 fit"):
        encode_request(request)
