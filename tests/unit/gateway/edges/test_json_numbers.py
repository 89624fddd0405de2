"""Numbers that are slow in some parsers are parsed as fast and as exactly as others."""

import time

import numpy as np
import pytest

from services.gateway.edges.json_bodies.fast_request import NOT_FAST, read_fast
from services.gateway.edges.json_bodies.numbers import (
    MAX_SLOW_NUMBERS,
    MIN_COUNTED_BYTES,
    has_slow_numbers,
)
from services.gateway.edges.json_bodies.strict_request import RestRequest
from services.gateway.edges.json_bodies.strict_slices import MIN_LARGE_BYTES, read_in_slices
from services.gateway.edges.rest_codec import decode_json

NOTHING = memoryview(b"")
MAX_S = 0.005
"""Limit for 32 KiB; slow numbers took 7 to 48 ms."""
SLOW = ("1e308", "-1.5E+290", "1e-320", "1e-0310", "5e-324", "123456789012345678901234e-310")


def body_of(number: str, size: int) -> bytes:
    count = size // (len(number) + 1)
    data = ",".join([number] * count)
    return (
        f'{{"inputs":[{{"name":"x","shape":[{count}],"datatype":"FP64","data":[{data}]}}]}}'
    ).encode()


def longest_s(body: bytes) -> float:
    """Returns the longest slice, or the whole time of an unsliced parse; minimum of some runs."""
    found = []
    for _ in range(5):
        longest = 0.0
        began = time.thread_time()
        if len(body) < MIN_LARGE_BYTES:
            decode_json(body)
            longest = time.thread_time() - began
        else:
            for _ in read_in_slices(body, NOTHING):
                longest = max(longest, time.thread_time() - began)
                began = time.thread_time()
        found.append(longest)
    return min(found)


@pytest.mark.parametrize("number", SLOW)
@pytest.mark.parametrize(
    "size", [MIN_COUNTED_BYTES - 200, MIN_LARGE_BYTES - 200, 4 * MIN_LARGE_BYTES]
)
def test_no_number_is_slow(number: str, size: int) -> None:
    assert longest_s(body_of(number, size)) < MAX_S


@pytest.mark.parametrize("number", [*SLOW, "1e-05", "0.5"])
@pytest.mark.parametrize("size", [200, 3_000, 30_000])
def test_they_are_read_exactly(number: str, size: int) -> None:
    request = decode_json(body_of(number, size))
    assert isinstance(request, RestRequest)
    assert np.array_equal(np.unique(request.inputs[0].array), [float(number)])


@pytest.mark.parametrize("number", SLOW)
def test_many_are_seen(number: str) -> None:
    text = ",".join([number] * (MAX_SLOW_NUMBERS + 2)).encode().ljust(MIN_COUNTED_BYTES)
    for seen in (text, bytearray(text), memoryview(text), b"[%b]" % (text + b",0" * 10_000)):
        assert has_slow_numbers(seen)
    with pytest.raises(NOT_FAST):
        read_fast(body_of(number, 3_000), NOTHING)


@pytest.mark.parametrize(
    "number", ["0.5", "1e-05", "1e-7", "1E+22", "12345678901234567890", "1e99", "1E9"]
)
def test_usual_numbers_stay_on_the_usual_way(number: str) -> None:
    for size in (400, 3_000, 30_000):
        read_fast(body_of(number, size), NOTHING)


def test_few_are_let_pass() -> None:
    assert not has_slow_numbers(b"1e308," * MAX_SLOW_NUMBERS)
    assert not has_slow_numbers(b"1e308," * MAX_SLOW_NUMBERS + b"0," * 5_000)
    assert not has_slow_numbers(b"the" * 5_000)
