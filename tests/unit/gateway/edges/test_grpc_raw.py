"""Large messages parsed without their raw tensors: equal to protobuf's result, and bounded."""

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from protos import open_inference_pb2 as pb
from protos.flambeau.v1 import jobs_pb2 as jobs_pb
from services.errors import InvalidRequestError
from services.gateway.edges import grpc_raw
from services.gateway.edges.grpc_raw import (
    MAX_FIELDS,
    MAX_INNER_FIELDS,
    MAX_TYPED_BYTES,
    check_job_request,
    read_infer_request,
)
from services.wire.body import MIN_VIEWED_BYTES

TENSOR = b"x" * MIN_VIEWED_BYTES


def a_request(*raw: bytes) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name="cnn", model_version="3", id="é")
    request.raw_input_contents.extend(raw)
    request.parameters["timeout"].int64_param = -1
    request.inputs.add(name="a", datatype="FP32", shape=[1, 2**40])
    request.outputs.add(name="b")
    return request


def whole(body: bytes | bytearray | memoryview) -> pb.ModelInferRequest:
    """Returns the result of `read_infer_request`, with the tensors in their places."""
    request, raw = read_infer_request(body)
    assert len(request.raw_input_contents) == len(raw)
    request.raw_input_contents[:] = [bytes(tensor or b"") for tensor in raw]
    return request


@pytest.mark.parametrize("raw", [(), (b"abc",), (TENSOR,), (b"", TENSOR, b"abc", TENSOR + b"y")])
def test_what_was_sent_is_read(raw: tuple[bytes, ...]) -> None:
    request = a_request(*raw)
    body = request.SerializeToString()
    assert whole(body) == whole(bytearray(body)) == whole(memoryview(body)) == request


def test_a_large_tensor_is_viewed() -> None:
    body = a_request(TENSOR).SerializeToString()
    request, (tensor,) = read_infer_request(body)
    assert isinstance(tensor, memoryview)
    assert tensor.obj is body
    assert list(request.raw_input_contents) == [b""]


def test_tensors_and_other_fields_may_come_in_any_order() -> None:
    first = pb.ModelInferRequest(raw_input_contents=[b"1", TENSOR]).SerializeToString()
    last = pb.ModelInferRequest(raw_input_contents=[b"3"]).SerializeToString()
    unknown = b"\xf8\x07\xff\xff\x01" + b"\xf9\x07" + b"8" * 8 + b"\xfd\x07" + b"4" * 4
    body = first + a_request().SerializeToString() + unknown + last
    assert list(whole(body).raw_input_contents) == [b"1", TENSOR, b"3"]
    assert whole(body) == pb.ModelInferRequest.FromString(body)


def test_a_large_message_of_very_many_fields_is_refused_before_it_is_built() -> None:
    body = a_request(TENSOR, *[b""] * MAX_FIELDS).SerializeToString()
    with pytest.raises(InvalidRequestError, match=f"more than {MAX_FIELDS} inputs"):
        read_infer_request(body)


UNKNOWN = b"\x78\x01"
"""An unknown field."""


def an_input_of(fields: int) -> bytes:
    """Returns a large input with so many fields; it is not viewed, nor may protobuf parse it."""
    content = UNKNOWN * (fields - 1) + b"\x7a\x80\x80\x01" + bytes(16 * 1024)
    size = len(content)
    return b"\x2a" + bytes((size & 127 | 128, size >> 7 & 127 | 128, size >> 14)) + content


def test_fields_of_large_inputs_are_limited_over_all_of_them() -> None:
    fields = MAX_INNER_FIELDS // 8
    with pytest.raises(InvalidRequestError, match=f"more than {MAX_INNER_FIELDS} fields"):
        read_infer_request(an_input_of(fields) * 9)
    assert len(read_infer_request(an_input_of(fields) * 8)[0].inputs) == 8


def test_what_protobuf_is_not_to_read_is_not_collected() -> None:
    """Nor is what follows looked at: an error behind it is not found."""
    with pytest.raises(InvalidRequestError, match=r"the message has 5\d{5} bytes that are neither"):
        read_infer_request(an_input_of(1) * 1000 + b"\xff")


def test_fields_of_a_job_are_limited_over_all_its_requests() -> None:
    request = b"\x0a\x80\x10" + UNKNOWN * 1024
    with pytest.raises(InvalidRequestError, match=f"more than {MAX_FIELDS} inputs"):
        check_job_request(request * 1000)


@pytest.mark.parametrize("field", ["inputs", "outputs"])
def test_a_small_message_of_very_many_inputs_or_outputs_is_refused(field: str) -> None:
    request = pb.ModelInferRequest()
    for _ in range(MAX_FIELDS):
        getattr(request, field).add()
    assert read_infer_request(request.SerializeToString())[0] == request
    getattr(request, field).add()
    assert len(request.SerializeToString()) < MIN_VIEWED_BYTES
    with pytest.raises(InvalidRequestError, match=f"more than {MAX_FIELDS} inputs"):
        read_infer_request(request.SerializeToString())


@pytest.mark.parametrize(
    "field",
    ["int_contents", "int64_contents", "uint64_contents", "bool_contents", "bytes_contents"],
)
def test_contents_that_protobuf_would_build_one_by_one_are_limited(field: str) -> None:
    request = a_request()
    elements = [b""] if field == "bytes_contents" else [1]
    getattr(request.inputs[0].contents, field).extend(elements * (MAX_TYPED_BYTES + 1))
    with pytest.raises(InvalidRequestError, match="is the limit; send large tensors as raw"):
        read_infer_request(request.SerializeToString())


def test_unknown_fields_are_limited() -> None:
    with pytest.raises(InvalidRequestError, match="the limit"):
        read_infer_request(b"\x41" * 2**20)


@given(
    st.sampled_from([("FP32", "fp32_contents", "<f4"), ("FP64", "fp64_contents", "<f8")]),
    st.integers(0, 3),
)
def test_large_packed_numbers_are_viewed_beside_small_inputs(
    kind: tuple[str, str, str], small: int
) -> None:
    datatype, field, dtype = kind
    request = a_request()
    request.inputs[0].contents.fp32_contents.extend([1, 2])
    for number in range(small):
        request.inputs.add(
            name=str(number), datatype="INT8", shape=[1]
        ).contents.int_contents.append(3)
    values = np.arange(MIN_VIEWED_BYTES, dtype=dtype)
    large = request.inputs.add(name="large", datatype=datatype, shape=[1, len(values)])
    getattr(large.contents, field).extend(values.tolist())
    body = request.SerializeToString()
    read, numbers = read_infer_request(body)
    assert list(numbers[:-1]) == [None] * (1 + small)
    assert isinstance(numbers[-1], memoryview)
    assert numbers[-1].obj is body
    assert np.frombuffer(numbers[-1], dtype).tolist() == values.tolist()
    assert not read.inputs[-1].HasField("contents")
    request.inputs[-1].ClearField("contents")
    assert read == request


def test_packed_numbers_that_are_not_as_many_as_the_shape_says_are_refused() -> None:
    request = a_request()
    request.inputs[0].contents.fp32_contents.extend([0.0] * MIN_VIEWED_BYTES)
    with pytest.raises(InvalidRequestError, match="input 'a': contents hold 32768 elements; shape"):
        read_infer_request(request.SerializeToString())


def test_a_job_is_held_to_the_same_limits() -> None:
    request = a_request(TENSOR)
    check_job_request(jobs_pb.SubmitJobRequest(request=request).SerializeToString())
    request.inputs[0].contents.int_contents.extend([1] * (MAX_TYPED_BYTES + 1))
    with pytest.raises(InvalidRequestError, match="is the limit"):
        check_job_request(jobs_pb.SubmitJobRequest(request=request).SerializeToString())
    request = a_request(TENSOR, *[b""] * MAX_FIELDS)
    with pytest.raises(InvalidRequestError, match="more than"):
        check_job_request(jobs_pb.SubmitJobRequest(request=request).SerializeToString())


def test_large_typed_contents_are_read_as_ever() -> None:
    request = a_request()
    request.inputs[0].contents.bytes_contents.append(TENSOR)
    assert whole(request.SerializeToString()) == request


@settings(max_examples=300)
@given(st.data())
def test_damaged_messages_are_judged_as_protobuf_judges_them(data: st.DataObject) -> None:
    body = bytearray(a_request(b"abcdef", b"").SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(body) - 1))
        match data.draw(st.sampled_from(["change", "cut", "add"])):
            case "change":
                body[at] = data.draw(st.integers(0, 255))
            case "cut":
                del body[at + 1 :]
            case _:
                body[at:at] = data.draw(st.binary(min_size=1, max_size=11))
    sent = bytes(body)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grpc_raw, "MIN_VIEWED_BYTES", 0)
        try:
            expected = pb.ModelInferRequest.FromString(sent)
        except DecodeError:
            with pytest.raises(InvalidRequestError):
                read_infer_request(sent)
        else:
            assert whole(sent).SerializeToString(deterministic=True) == (
                expected.SerializeToString(deterministic=True)
            )
