"""The gRPC codec: valid requests survive it unchanged, invalid ones raise a clear ServingError."""

import struct
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from flambeau.protocol.tensors import DATATYPES, Array, decode_raw, encode_raw, object_array
from protos import open_inference_pb2 as pb
from services.errors import InvalidRequestError, ServingError, UnsupportedError
from services.gateway.edges.grpc_codec import (
    asked_outputs,
    decode_in_slices,
    decode_inputs,
    encode,
    encode_serialized,
)
from services.gateway.edges.grpc_large_answer import CONTENTS_FIELDS, LARGE_BYTES
from services.gateway.refusals import REGION
from services.gateway.sliced_work import at_once
from services.queueing.records import InferReply, Lane
from tests.fixtures.queue_ends import reply_of

ID = pb.InferParameter(int64_param=7)
Tensor = tuple[str, Array]
"""A datatype and an array."""

SHAPES = npst.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=4)


@st.composite
def tensors(draw: st.DrawFn, *datatypes: str) -> Tensor:
    """Draws any bits: NaN, infinity, BYTES with zeros in them."""
    datatype = draw(st.sampled_from(datatypes or sorted(DATATYPES)))
    shape = draw(SHAPES)
    if datatype == "BYTES":
        count = int(np.prod(shape))
        elements = draw(st.lists(st.binary(max_size=5), min_size=count, max_size=count))
        return datatype, object_array(elements).reshape(shape)
    return datatype, draw(npst.arrays(DATATYPES[datatype], shape))


def raw_request(*inputs: Tensor) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name="m")
    for position, (datatype, array) in enumerate(inputs):
        request.inputs.add(name=f"x{position}", datatype=datatype, shape=array.shape)
        request.raw_input_contents.append(encode_raw(datatype, array))
    return request


def typed_request(*inputs: Tensor) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name="m")
    for position, (datatype, array) in enumerate(inputs):
        tensor = request.inputs.add(name=f"x{position}", datatype=datatype, shape=array.shape)
        getattr(tensor.contents, CONTENTS_FIELDS[datatype]).extend(array.ravel().tolist())
    return request


def over_the_wire(request: pb.ModelInferRequest) -> pb.ModelInferRequest:
    return pb.ModelInferRequest.FromString(request.SerializeToString())


def assert_survived(request: pb.ModelInferRequest, inputs: list[Tensor]) -> None:
    decoded = decode_inputs(over_the_wire(request))
    assert [tensor.name for tensor in decoded] == [f"x{i}" for i in range(len(inputs))]
    for found, (datatype, array) in zip(decoded, inputs, strict=True):
        assert (found.datatype, found.array.shape) == (datatype, array.shape)
        assert found.array.dtype == DATATYPES[datatype]
        if array.dtype.kind == "f" and not request.raw_input_contents:
            # A signalling NaN may become a quiet one inside a protobuf float.
            np.testing.assert_array_equal(found.array, array)
        else:
            assert encode_raw(datatype, found.array) == encode_raw(datatype, array)


@given(st.lists(tensors(), max_size=3))
def test_raw_request_survives(inputs: list[Tensor]) -> None:
    assert_survived(raw_request(*inputs), inputs)


@given(st.lists(tensors(*CONTENTS_FIELDS), max_size=3))
def test_typed_request_survives(inputs: list[Tensor]) -> None:
    assert_survived(typed_request(*inputs), inputs)


def answer_of(*outputs: Tensor) -> InferReply:
    arrays = {f"y{i}": array for i, (_, array) in enumerate(outputs)}
    datatypes = {f"y{i}": datatype for i, (datatype, _) in enumerate(outputs)}
    return reply_of(arrays, Lane("m", 3), datatypes=datatypes)


X: Tensor = ("INT8", np.zeros((1, 1), np.int8))


@given(st.lists(tensors(), min_size=1, max_size=3), st.booleans())
def test_answer_takes_the_form_of_the_request(outputs: list[Tensor], raw: bool) -> None:
    """Typed contents for typed contents, unless an output has no typed form."""
    request = (raw_request if raw else typed_request)(X)
    response = encode(answer_of(*outputs), request)
    typed = not raw and all(datatype in CONTENTS_FIELDS for datatype, _ in outputs)
    assert len(response.raw_output_contents) == (0 if typed else len(outputs))
    assert [output.name for output in response.outputs] == [f"y{i}" for i in range(len(outputs))]
    for position, (datatype, array) in enumerate(outputs):
        output = response.outputs[position]
        assert (output.datatype, tuple(output.shape)) == (datatype, array.shape)
        assert output.HasField("contents") == typed
        if typed:
            values = list(getattr(output.contents, CONTENTS_FIELDS[datatype]))
            np.testing.assert_array_equal(values, array.ravel().tolist())
        else:
            found = decode_raw(datatype, array.shape, response.raw_output_contents[position])
            assert encode_raw(datatype, found) == encode_raw(datatype, array)


def test_answer_names_the_model_the_version_and_the_id() -> None:
    request = typed_request(X)
    request.id = "7"
    response = encode(answer_of(X), request)
    assert (response.model_name, response.model_version, response.id) == ("m", "3", "7")


@given(
    st.lists(tensors(), min_size=1, max_size=2), st.booleans(), st.sampled_from(["", "7"]),
    st.sampled_from([("", False), ("onnx", False), ("onnx-int8", True)]),
)  # fmt: skip
def test_serialised_answer_is_the_answer(
    outputs: list[Tensor], raw: bool, given_id: str, artifact: tuple[str, bool]
) -> None:
    request = (raw_request if raw else typed_request)(X)
    request.id = given_id
    reply = msgspec.structs.replace(answer_of(*outputs), artifact=artifact[0], degraded=artifact[1])
    message = encode_serialized(reply, request, list[int]().append)
    assert isinstance(message, bytes), "it is small"
    assert pb.ModelInferResponse.FromString(message) == encode(reply, request)


def large(datatype: str) -> Array:
    """Returns an array that is written in slices; floats without NaN, which equals no number."""
    chance = np.random.default_rng(1)
    if datatype == "BYTES":
        return object_array([b"x" * n for n in chance.integers(0, 90, 5_000)]).reshape(2, -1)
    dtype = DATATYPES[datatype]
    size = 2 * LARGE_BYTES // dtype.itemsize
    if dtype.kind in "iu":
        return np.frombuffer(chance.bytes(2 * size * dtype.itemsize), dtype).reshape(2, size)
    return chance.integers(0, 2, (2, size)).astype(dtype)


@pytest.mark.parametrize("raw", [True, False])
@pytest.mark.parametrize("datatype", sorted(DATATYPES))
def test_large_answer_is_made_in_slices_and_charged(datatype: str, raw: bool) -> None:
    request = (raw_request if raw else typed_request)(X)
    request.id = "7"
    reply = answer_of((datatype, large(datatype)), ("INT8", np.zeros((2, 3), np.int8)))
    reserved: list[int] = []
    slices = encode_serialized(reply, request, reserved.append)
    assert not isinstance(slices, bytes)
    message = b"".join(at_once(slices))
    assert pb.ModelInferResponse.FromString(message) == encode(reply, request)
    assert len(message) - 500 <= sum(reserved), "small parts are not charged"


MESSAGES = st.builds(
    pb.ModelInferRequest,
    inputs=st.lists(
        st.builds(
            pb.ModelInferRequest.InferInputTensor,
            name=st.sampled_from(["x", ""]),
            datatype=st.sampled_from([*DATATYPES, "", "FLOAT"]),
            shape=st.lists(
                st.integers(-1, 3) | st.integers(-(2**63), 2**63 - 1), max_size=4
            ) | st.just([1] * 70),
            contents=st.none() | st.builds(
                pb.InferTensorContents,
                int_contents=st.lists(st.integers(-(2**31), 2**31 - 1), max_size=3),
                uint_contents=st.lists(st.integers(0, 2**32 - 1), max_size=3),
                fp32_contents=st.lists(st.floats(width=32), max_size=3),
                bytes_contents=st.lists(st.binary(max_size=3), max_size=3),
            ),
        ),
        max_size=3,
    ),
    raw_input_contents=st.lists(st.binary(max_size=16), max_size=3),
)  # fmt: skip


@given(MESSAGES)
def test_any_message_is_refused_or_understood(request: pb.ModelInferRequest) -> None:
    try:
        decoded = decode_inputs(request)
    except ServingError:
        return
    for found, tensor in zip(decoded, request.inputs, strict=True):
        assert list(found.array.shape) == list(tensor.shape)
        assert found.array.dtype == DATATYPES[tensor.datatype]


@given(MESSAGES)
def test_a_message_is_read_in_slices_as_at_once(request: pb.ModelInferRequest) -> None:
    """Those of a few bytes are: what is longer differs in BYTES alone."""
    try:
        wanted: Any = [encode_raw(one.datatype, one.array) for one in decode_inputs(request)]
    except ServingError as error:
        wanted = str(error)
    try:
        read = at_once(decode_in_slices(request, None, int))
        found: Any = [encode_raw(one.datatype, one.array) for one in read]
    except ServingError as error:
        found = str(error)
    assert found == wanted


def test_inputs_are_counted_before_they_are_looked_at() -> None:
    unreadable = [pb.ModelInferRequest.InferInputTensor(parameters={"classification": ID})] * 3
    request = pb.ModelInferRequest(inputs=unreadable, raw_input_contents=[b""])
    with pytest.raises(InvalidRequestError, match="1 entries for 3 inputs"):
        decode_inputs(request)


INTEGERS = {
    f"{sign}INT{bits}": (0, 2**bits - 1) if sign else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    for sign in ("", "U")
    for bits in (8, 16, 32, 64)
}
"""Smallest and largest number of each datatype."""


def carried(datatype: str) -> tuple[int, int]:
    """Returns the smallest and the largest number in the field of a datatype."""
    return INTEGERS[datatype.replace("INT8", "INT32").replace("INT16", "INT32")]


@given(st.data(), st.sampled_from(sorted(INTEGERS)))
def test_typed_integers_arrive_as_they_are_or_are_refused(data: st.DataObject, kind: str) -> None:
    """Never as other numbers, which is what NumPy makes of those that do not fit."""
    (low, high), (least, most) = INTEGERS[kind], carried(kind)
    edges = st.sampled_from([n for n in (low - 1, low, 0, high, high + 1) if least <= n <= most])
    numbers = data.draw(st.lists(edges | st.integers(least, most), max_size=6))
    request = pb.ModelInferRequest()
    tensor = request.inputs.add(name="x", datatype=kind, shape=[len(numbers)])
    getattr(tensor.contents, CONTENTS_FIELDS[kind]).extend(numbers)
    outside = [str(number) for number in numbers if not low <= number <= high]
    if not outside:
        (found,) = decode_inputs(over_the_wire(request))
        assert [int(number) for number in found.array] == numbers
        return
    with pytest.raises(InvalidRequestError) as refused:
        decode_inputs(over_the_wire(request))
    words = str(refused.value)
    assert words.startswith(f"input 'x': contents.{CONTENTS_FIELDS[kind]} holds ")
    assert words.endswith(f"; {kind} takes {low} to {high}")
    assert words.split(" holds ")[1].split(";")[0] in outside


def as_brain_float(number: float) -> int:
    """Returns the upper half of an FP32's bits."""
    return int.from_bytes(struct.pack("<f", number)[2:], "little")


REFERENCE = {"BOOL": "?", "FP16": "e", "FP32": "f", "FP64": "d", "BF16": "H"} | dict(
    zip(INTEGERS, "bhiqBHIQ", strict=True)
)
"""Encoding of an element of each datatype by `struct`, independent of NumPy."""


@given(st.data(), st.sampled_from(sorted(REFERENCE)))
def test_raw_elements_are_what_struct_says(data: st.DataObject, kind: str) -> None:
    elements: Any = st.booleans()
    if kind in INTEGERS:
        elements = st.integers(*INTEGERS[kind])
    elif kind == "BF16":
        elements = st.floats(width=32).map(as_brain_float)
    elif kind != "BOOL":
        elements = st.floats(width=16 if kind == "FP16" else 32 if kind == "FP32" else 64)
    values = data.draw(st.lists(elements, max_size=6))
    packed = struct.pack(f"<{len(values)}{REFERENCE[kind]}", *values)
    request = pb.ModelInferRequest(raw_input_contents=[packed])
    request.inputs.add(name="x", datatype=kind, shape=[len(values)])
    (found,) = decode_inputs(over_the_wire(request))
    np.testing.assert_array_equal(found.array.tolist(), values)
    assert found.array.dtype == DATATYPES[kind]


def test_raw_and_typed_together() -> None:
    request = typed_request(X)
    request.raw_input_contents.append(b"\0")
    with pytest.raises(InvalidRequestError, match="send one form"):
        decode_inputs(request)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_raw_entries_must_be_as_many_as_the_inputs(count: int) -> None:
    request = raw_request(X, X)
    del request.raw_input_contents[:]
    request.raw_input_contents.extend([b"\0"] * count)
    with pytest.raises(InvalidRequestError, match=f"has {count} entries for 2|holds 0 elements"):
        decode_inputs(request)


def test_the_outputs_asked_for_are_read_in_their_order() -> None:
    request = raw_request(X)
    assert asked_outputs(over_the_wire(request)) == ([], {})
    for name in ("y", "a"):
        request.outputs.add(name=name)
    assert asked_outputs(over_the_wire(request)) == (["y", "a"], {})
    request.outputs[0].parameters["classification"].int64_param = 3
    request.outputs[1].parameters["classification"].uint64_param = 0
    assert asked_outputs(over_the_wire(request)) == (["y", "a"], {"y": 3})
    request.outputs[1].parameters["classification"].string_param = "3"
    with pytest.raises(InvalidRequestError, match="output 'a' has classification '3'"):
        asked_outputs(over_the_wire(request))


@pytest.mark.parametrize("where", ["request", "input", "output"])
def test_shared_memory_where_it_is_not_taken(where: str) -> None:
    request = raw_request(X)
    request.outputs.add(name="y")
    owner: Any = {"request": request, "input": request.inputs[0], "output": request.outputs[0]}
    parameter = owner[where].parameters[REGION]
    parameter.int64_param = 1
    with pytest.raises(UnsupportedError, match=REGION):
        (asked_outputs if where == "output" else decode_inputs)(request)
    assert UnsupportedError.grpc_code == "UNIMPLEMENTED"
