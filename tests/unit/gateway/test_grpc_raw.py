"""Large messages read around their raw tensors: what protobuf reads, and no more than that."""

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from protos import open_inference_pb2 as pb
from services.errors import InvalidRequestError
from services.gateway.edges import grpc_raw
from services.gateway.edges.grpc_raw import MAX_FIELDS, read_infer_request
from services.gateway.wire.http_body import MIN_VIEWED_BYTES

TENSOR = b"x" * MIN_VIEWED_BYTES


def a_request(*raw: bytes) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name="cnn", model_version="3", id="é")
    request.raw_input_contents.extend(raw)
    request.parameters["timeout"].int64_param = -1
    request.inputs.add(name="a", datatype="FP32", shape=[1, 2**40])
    request.outputs.add(name="b")
    return request


def whole(body: bytes | bytearray | memoryview) -> pb.ModelInferRequest:
    """What `read_infer_request` reads, with the tensors in their places."""
    request, raw = read_infer_request(body)
    assert len(request.raw_input_contents) == len(raw)
    request.raw_input_contents[:] = [bytes(tensor) for tensor in raw]
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


def test_a_message_of_very_many_fields_is_protobufs() -> None:
    body = a_request(TENSOR, *[b""] * MAX_FIELDS).SerializeToString()
    request, raw = read_infer_request(body)
    assert raw == request.raw_input_contents
    assert len(raw) == 1 + MAX_FIELDS


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
