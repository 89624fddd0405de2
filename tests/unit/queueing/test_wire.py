"""Requests and outcomes as bytes, and back."""

import contextlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from flambeau.protocol.tensors import Array
from services import errors
from services.errors import OverloadedError, ServingError
from services.queueing.merged_requests import MERGED_ROWS
from services.queueing.records import InferReply, InferRequest, Lane
from services.queueing.redis_streams.wire import (
    NOTICE,
    Reference,
    WireError,
    decode_outcome,
    decode_request,
    encode_outcome,
    encode_reference,
    encode_request,
    is_request,
)

LANE = Lane("m", 3)
KINDS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, ServingError)
]
NUMBERS = st.sampled_from(
    [np.bool_, np.uint8, np.int8, np.uint16, np.int16, np.int32, np.int64, np.float16, np.float32,
     np.float64]
)  # fmt: skip
SHAPES = npst.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=4)
NUMERIC = NUMBERS.flatmap(lambda dtype: npst.arrays(np.dtype(dtype), SHAPES))
TEXTS = st.lists(st.binary(max_size=20), min_size=1, max_size=5).map(
    lambda items: np.array(items, dtype=object)
)
TENSORS = st.dictionaries(st.text(max_size=10), st.one_of(NUMERIC, TEXTS), max_size=3)


def same(found: dict[str, Array], sent: dict[str, Array]) -> bool:
    return list(found) == list(sent) and all(
        found[name].dtype == array.dtype
        and found[name].shape == array.shape
        and found[name].tobytes() == array.tobytes()
        if array.dtype != object
        else found[name].tolist() == array.tolist()
        for name, array in sent.items()
    )


@given(inputs=TENSORS, name=st.text(), length=st.none() | st.integers(0, 10**6))
def test_a_request_comes_out_as_it_went_in(
    inputs: dict[str, Array], name: str, length: int | None
) -> None:
    sent = InferRequest(
        request_id=name, lane=LANE, inputs=inputs, rows=7, deadline=1.0, priority=2,
        length=length, outputs=("b", "a"), accuracy="exact", merged=3,
    )  # fmt: skip
    found = decode_request(encode_request(sent), LANE, 5.0, alone=True)
    assert isinstance(found, InferRequest)
    assert same(dict(found.inputs), inputs)
    assert (found.request_id, found.rows, found.priority) == (name, 7, 2)
    assert (found.length, found.outputs) == (length, ("b", "a"))
    assert (found.lane, found.deadline, found.alone) == (LANE, 5.0, True)
    assert (found.accuracy, found.merged) == ("exact", 3)


@pytest.mark.parametrize("merged", [-1, 0, MERGED_ROWS + 1, 2**63])
def test_a_request_that_claims_to_be_more_than_fit_is_refused(merged: int) -> None:
    sent = InferRequest(request_id="r", lane=LANE, inputs={}, rows=1, deadline=1.0, merged=merged)
    with pytest.raises(WireError, match="cannot be read"):
        decode_request(encode_request(sent), LANE, 5.0, alone=False)


@given(outputs=TENSORS)
def test_a_reply_comes_out_as_it_went_in(outputs: dict[str, Array]) -> None:
    sent = InferReply(
        lane=LANE, outputs=outputs, datatypes={"y": "FP32"}, batch_rows=3, queue_s=0.1,
        execution_s=0.2,
    )  # fmt: skip
    found = decode_outcome(encode_outcome(sent), LANE)
    assert isinstance(found, InferReply)
    assert same(dict(found.outputs), outputs)
    assert (found.datatypes, found.batch_rows) == ({"y": "FP32"}, 3)
    assert (found.queue_s, found.execution_s) == (0.1, 0.2)


@given(data=st.binary())
def test_no_bytes_do_more_than_be_refused(data: bytes) -> None:
    with contextlib.suppress(WireError):
        decode_request(data, LANE, 0.0, alone=False)
    decode_outcome(data, LANE)  # an error like any other, never an exception


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_comes_out_as_what_it_was(kind: type[ServingError]) -> None:
    found = decode_outcome(encode_outcome(kind("full")), LANE)
    assert type(found) is kind
    assert str(found) == "full"


def test_an_error_that_is_not_known_here_comes_out_as_the_root() -> None:
    class NewerError(OverloadedError):
        """A class of another version."""

    data = encode_outcome(NewerError("new"))
    changed = data.replace(b"NewerError", b"OtherError")
    found = decode_outcome(changed, LANE)
    assert type(found) is ServingError
    assert str(found) == "new"


def test_what_is_too_large_travels_as_the_name_of_its_key() -> None:
    assert decode_request(encode_reference("k"), LANE, 0.0, alone=False) == "k"
    assert decode_outcome(encode_reference("k"), LANE) == Reference("k")
    part = encode_reference("k", is_last=False)
    assert decode_outcome(part, LANE) == Reference("k", is_last=False)


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x90"])
def test_what_cannot_be_read_is_an_error_to_the_caller(data: bytes) -> None:
    assert isinstance(decode_outcome(data, LANE), WireError)


@pytest.mark.parametrize("number", [0, 1, 2**63, 2**64 - 1])
def test_notices_and_addresses_have_numbers_of_64_bits(number: int) -> None:
    found = NOTICE.fullmatch(f"gateway-1 {number} {number}")
    assert found is not None
    assert found.groups() == ("gateway-1", str(number), str(number))
    fields = {b"deadline": b"1", b"address": b"job %d" % number, b"payload": b""}
    assert is_request(fields)
