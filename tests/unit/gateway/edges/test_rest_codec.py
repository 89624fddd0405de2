"""The REST codec: valid requests survive it unchanged, invalid ones raise a clear ServingError."""

import json
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from flambeau.protocol.signature import TensorSpec
from flambeau.protocol.tensors import (
    DATATYPES,
    Array,
    datatype_of,
    decode_raw,
    encode_raw,
    object_array,
)
from services.errors import InvalidRequestError, ServingError, UnsupportedError
from services.gateway.admission import InputTensor
from services.gateway.edges.json_bodies.strict_request import RestRequest
from services.gateway.edges.json_bodies.strict_slices import MIN_LARGE_BYTES
from services.gateway.edges.raw_parts import MIN_VIEWED_BYTES
from services.gateway.refusals import REGION
from services.queueing.records import InferReply, Lane
from tests.fixtures.queue_ends import reply_of
from tests.fixtures.signatures import one_to_one
from tests.unit.gateway.edges.rest_bodies import decode, encode

SHAPES = npst.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=4)
IMAGE = one_to_one((2, 3), (2,), rows=4)
"""One input whose shape is known except for the batch."""


@st.composite
def tensors(draw: st.DrawFn) -> InputTensor:
    """Draws any datatype, any bits: NaN, infinity, BYTES with zeros in them."""
    datatype = draw(st.sampled_from(sorted(DATATYPES)))
    shape = draw(SHAPES)
    if datatype == "BYTES":
        count = int(np.prod(shape))
        elements = draw(st.lists(st.binary(max_size=5), min_size=count, max_size=count))
        array: Array = object_array(elements).reshape(shape)
    else:
        array = draw(npst.arrays(DATATYPES[datatype], shape))
    return InputTensor(name=draw(st.text(max_size=5)), datatype=datatype, array=array)


def head_of(tensor: InputTensor, size: int) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "datatype": tensor.datatype,
        "shape": tensor.array.shape,
        "parameters": {"binary_data_size": size},
    }


def request_body(inputs: list[InputTensor], **fields: Any) -> tuple[bytes, str]:
    """Returns a binary request as a client writes it, and its header length."""
    tails = [encode_raw(tensor.datatype, tensor.array) for tensor in inputs]
    heads = [head_of(tensor, len(tail)) for tensor, tail in zip(inputs, tails, strict=True)]
    head = orjson.dumps({"inputs": heads, **fields})
    return b"".join((head, *tails)), str(len(head))


def assert_same(found: InputTensor, expected: InputTensor) -> None:
    assert (found.name, found.datatype) == (expected.name, expected.datatype)
    assert found.array.shape == expected.array.shape
    assert encode_raw(found.datatype, found.array) == encode_raw(found.datatype, expected.array)


@given(st.lists(tensors(), max_size=4), st.text())
def test_binary_request_survives(inputs: list[InputTensor], id_: str) -> None:
    body, length = request_body(inputs, id=id_)
    decoded = decode(body, length, None)
    assert decoded.id == id_
    assert len(decoded.inputs) == len(inputs)
    for found, expected in zip(decoded.inputs, inputs, strict=True):
        assert_same(found, expected)


@given(st.lists(tensors(), min_size=1, max_size=3), st.booleans(), st.data())
def test_answer_can_be_read_back(
    given_outputs: list[InputTensor], by_default: bool, data: st.DataObject
) -> None:
    outputs = {tensor.name: tensor for tensor in given_outputs}
    choices = data.draw(st.dictionaries(st.sampled_from(sorted(outputs)), st.booleans()))
    request = RestRequest(inputs=[], binary_by_default=by_default, binary=choices)
    if any(has_no_json(t) and not choices.get(t.name, by_default) for t in outputs.values()):
        with pytest.raises(InvalidRequestError, match=r"binary_data: true"):
            encode(answer_of(outputs), request)
        return
    body = encode(answer_of(outputs), request)
    content = b"".join(body.parts)
    assert body.length == len(content)
    length = len(content) if body.json_length is None else body.json_length
    document = json.loads(content[:length])
    position = length
    assert [output["name"] for output in document["outputs"]] == list(outputs)
    for output in document["outputs"]:
        tensor = outputs[output["name"]]
        assert (output["datatype"], tuple(output["shape"])) == (
            tensor.datatype, tensor.array.shape
        )  # fmt: skip
        assert ("data" in output) != choices.get(tensor.name, by_default)
        if "data" not in output:
            size = output["parameters"]["binary_data_size"]
            raw = content[position : position + size]
            found = decode_raw(tensor.datatype, output["shape"], raw)
            assert encode_raw(tensor.datatype, found) == encode_raw(tensor.datatype, tensor.array)
            position += size
    assert position == len(content)


def has_no_json(tensor: InputTensor) -> bool:
    match tensor.datatype:
        case "FP16" | "BF16":
            return True
        case "BYTES":
            texts = (element.decode("utf-8", "ignore") for element in tensor.array.ravel().tolist())
            return [text.encode() for text in texts] != tensor.array.ravel().tolist()
    return False


def answer_of(outputs: dict[str, InputTensor]) -> InferReply:
    arrays = {name: tensor.array for name, tensor in outputs.items()}
    datatypes = {name: tensor.datatype for name, tensor in outputs.items()}
    return reply_of(arrays, Lane("m", 3), datatypes=datatypes)


def test_answer_without_binary_outputs_has_no_header() -> None:
    tensor = InputTensor(name="y", datatype="INT8", array=np.array([[1, 2]], np.int8))
    body = encode(answer_of({"y": tensor}), RestRequest(id="7", inputs=[]))
    assert body.json_length is None
    assert orjson.loads(b"".join(body.parts)) == {
        "model_name": "m",
        "model_version": "3",
        "id": "7",
        "outputs": [{"name": "y", "datatype": "INT8", "shape": [1, 2], "data": [1, 2]}],
    }


def test_large_binary_outputs_are_not_copied() -> None:
    """They are written from the answer's own memory; small and strided ones have to be copied."""
    wanted = {
        "large": np.arange(MIN_VIEWED_BYTES, dtype=np.uint8).reshape(2, -1),
        "strided": np.arange(MIN_VIEWED_BYTES, dtype="<f4")[::2],
        "empty": np.zeros((0, 3), np.int8),
        "flags": np.ones(MIN_VIEWED_BYTES, np.bool_),
        "small": np.ones(3, np.int16),
    }
    outputs = {
        name: InputTensor(name=name, datatype=datatype_of(array), array=array)
        for name, array in wanted.items()
    }
    body = encode(answer_of(outputs), RestRequest(inputs=[], binary_by_default=True))
    head, *tail = body.parts
    assert body.json_length == len(head)
    assert [bytes(part) for part in tail] == [a.tobytes() for a in wanted.values() if a.size]
    views = [np.frombuffer(part, np.uint8) for part in tail]
    shared = [np.shares_memory(view, array) for view, array in zip(
        views, [array for array in wanted.values() if array.size], strict=True
    )]  # fmt: skip
    assert shared == [True, False, True, False]


def test_small_binary_outputs_are_one_part() -> None:
    tensor = InputTensor(name="y", datatype="INT8", array=np.array([1, 2], np.int8))
    (content,) = encode(
        answer_of({"y": tensor}), RestRequest(inputs=[], binary_by_default=True)
    ).parts
    assert bytes(content).endswith(b"}\x01\x02")


@pytest.mark.parametrize("datatype", ["FP32", "FP64"])
@pytest.mark.parametrize("count", [4, 40_000], ids=["small", "in slices"])
def test_nan_and_infinity_both_ways(datatype: str, count: int) -> None:
    array = np.resize(np.array([1, np.nan, np.inf, -np.inf], DATATYPES[datatype]), (1, count))
    outputs = {"y": InputTensor(name="y", datatype=datatype, array=array)}
    answer = b"".join(encode(answer_of(outputs), RestRequest(inputs=[])).parts)
    told = json.loads(answer)["outputs"][0]
    np.testing.assert_array_equal(np.array(told["data"], array.dtype), array[0])
    body = json.dumps({"inputs": [told | {"name": "x"}]}).encode()
    np.testing.assert_array_equal(decode(body, None, None).inputs[0].array, array)


@pytest.mark.parametrize(
    "data", ["[NaN,nan]", "[NaN,]", "[-NaN]", "[+Infinity]", "[Inf]", '["\\ud800",NaN]', "[NaN"]
)
def test_other_words_are_no_numbers(data: str) -> None:
    body = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[2],"data":%b}]}' % data.encode()
    with pytest.raises(InvalidRequestError, match="not valid JSON"):
        decode(body, None, None)


def test_nan_is_no_integer_and_no_other_field() -> None:
    entry = b'{"name":"x","datatype":"%b","shape":[%b],"data":[NaN]}'
    for datatype, shape in ((b"INT8", b"1"), (b"BOOL", b"1"), (b"BYTES", b"1"), (b"FP32", b"NaN")):
        with pytest.raises(InvalidRequestError):
            decode(b'{"inputs":[%b]}' % (entry % (datatype, shape)), None, None)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
@pytest.mark.parametrize("count", [3, 20_000, 300_000], ids=["usual", "large", "huge"])
def test_body_in_any_buffer(kind: type, count: int) -> None:
    array = np.arange(count, dtype=np.float32)
    entry = {"name": "x", "datatype": "FP32", "shape": [count], "data": array.tolist()}
    body = orjson.dumps({"inputs": [entry]})
    assert (len(body) > MIN_LARGE_BYTES) == (count > 3)
    decoded = decode(kind(body), None, None)
    assert decoded.inputs[0].array.tolist() == array.tolist()


@pytest.mark.parametrize("raw", [False, True])
def test_binary_inputs_view_the_body(raw: bool) -> None:
    row = np.arange(6, dtype=np.float32).reshape(1, 2, 3)
    body, length = request_body([InputTensor(name="x", datatype="FP32", array=row)])
    held = bytearray(row.tobytes() if raw else body)
    decoded = decode(held, "0" if raw else length, IMAGE)
    held[-4:] = np.float32(7).tobytes()
    assert decoded.inputs[0].array[0, 1, 2] == 7


def large_body(datatype: str, values: list[Any], **fields: Any) -> bytes:
    entry = {"name": "x", "datatype": datatype, "shape": [len(values)], "data": values}
    body = orjson.dumps({"inputs": [entry], **fields})
    assert len(body) > MIN_LARGE_BYTES
    return body


@pytest.mark.parametrize(
    ("datatype", "value"), [("FP32", 0.5), ("INT8", -1), ("BOOL", True), ("BYTES", "text")]
)
def test_large_body(datatype: str, value: object) -> None:
    decoded = decode(large_body(datatype, [value] * 20_000, id="7"), None, None)
    wanted = value.encode() if isinstance(value, str) else value
    assert decoded.inputs[0].array.tolist() == [wanted] * 20_000
    assert decoded.id == "7"


@pytest.mark.parametrize(
    ("datatype", "value", "message"),
    [
        ("INT32", 1.5, "whole numbers for INT32; it holds a fraction"),
        ("FP32", True, "numbers for FP32; it holds a boolean"),
        ("FP32", 1e39, "outside the range of FP32"),
        ("UINT8", 256, "outside the range of UINT8"),
        ("FP32", [1], "not nested as its shape"),
    ],
)
def test_large_body_with_one_wrong_value(datatype: str, value: object, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        decode(large_body(datatype, [1] * 20_000 + [value]), None, None)


@pytest.mark.parametrize("length", [-1, 2**63, 2**64, 10**30])
def test_a_shape_beyond_64_bits_is_told_its_limit(length: int) -> None:
    """It is a list of whole numbers, though the parser makes floats of those from 2**64 on."""
    head = b'{"inputs":[{"name":"x","datatype":"INT8","shape":[%d],"data":[1]}]}' % length
    with pytest.raises(InvalidRequestError, match="whole numbers from 0 to 9223372036854775807, a"):
        decode(head, None, None)


@given(st.binary(max_size=60), st.none() | st.text(max_size=3) | st.integers(-2, 70).map(str))
def test_any_bytes_are_refused(body: bytes, length: str | None) -> None:
    """Nothing but a ServingError, whatever comes; a raw body of 24 bytes is the one good case."""
    try:
        decoded = decode(body, length, IMAGE)
    except ServingError:
        return
    assert length == "0"
    assert [tensor.array.shape for tensor in decoded.inputs] == [(1, 2, 3)]


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)
PARAMETERS = st.dictionaries(
    st.sampled_from(["binary_data", "binary_data_size", "binary_data_output", "p"]), JSON_VALUES
)
INPUTS = st.fixed_dictionaries(
    {},
    optional={
        "name": st.just("x") | JSON_VALUES,
        "datatype": st.sampled_from(sorted(DATATYPES)) | JSON_VALUES,
        "shape": st.lists(st.integers(0, 3), max_size=3) | JSON_VALUES,
        "data": st.lists(st.integers(0, 3), max_size=4) | JSON_VALUES,
        "parameters": PARAMETERS | JSON_VALUES,
    },
)
DOCUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "id": JSON_VALUES,
        "inputs": st.lists(INPUTS, max_size=2) | JSON_VALUES,
        "outputs": st.lists(INPUTS, max_size=2) | JSON_VALUES,
        "parameters": PARAMETERS | JSON_VALUES,
    },
)


@given(DOCUMENTS | JSON_VALUES, st.binary(max_size=8), st.booleans())
def test_any_document_is_refused_or_understood(
    document: object, tail: bytes, with_header: bool
) -> None:
    head = orjson.dumps(document)
    try:
        decoded = decode(head + tail, str(len(head)) if with_header else None, IMAGE)
    except ServingError:
        return
    assert isinstance(document, dict)
    assert [tensor.name for tensor in decoded.inputs] == [t["name"] for t in document["inputs"]]
    for found, given_input in zip(decoded.inputs, document["inputs"], strict=True):
        assert list(found.array.shape) == given_input["shape"]
        assert found.array.dtype == DATATYPES[found.datatype]


@given(st.lists(tensors(), min_size=1, max_size=2), st.integers(-3, 3).filter(bool))
def test_tail_of_another_length_is_refused(inputs: list[InputTensor], change: int) -> None:
    body, length = request_body(inputs)
    wrong = body[:change] if change < 0 else body + b"\0" * change
    if len(wrong) >= int(length):
        with pytest.raises(InvalidRequestError):
            decode(wrong, length, None)


@pytest.mark.parametrize("value", ["-1", "31", "1e1", "+5", " 5", "0x5", "", "5.0", "9" * 30, "٣"])
def test_header_length_that_is_no_length(value: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"in range \(0, 30\)"):
        decode(b" " * 30, value, IMAGE)


@pytest.mark.parametrize("where", ["request", "input", "output"])
def test_shared_memory_where_it_is_not_taken(where: str) -> None:
    tensor: dict[str, Any] = {"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}
    output: dict[str, Any] = {"name": "y"}
    document: dict[str, Any] = {"inputs": [tensor], "outputs": [output]}
    {"request": document, "input": tensor, "output": output}[where]["parameters"] = {REGION: 1}
    with pytest.raises(UnsupportedError, match=REGION):
        decode(orjson.dumps(document), None, IMAGE)
    assert UnsupportedError.http_status == 501


@pytest.mark.parametrize("rows", [1, 20_000], ids=["small", "large"])
def test_null_is_as_good_as_leaving_a_field_out(rows: int) -> None:
    entry = {"name": "x", "datatype": "FP32", "shape": [rows], "data": [1.5] * rows}
    plain = decode(orjson.dumps({"inputs": [entry]}), None, None)
    document = {
        "id": None,
        "parameters": None,
        "inputs": [entry | {"parameters": None}],
        "outputs": None,
    }
    found = decode(orjson.dumps(document), None, None)
    assert (found.id, [*found.outputs], found.binary) == ("", [], {})
    assert_same(found.inputs[0], plain.inputs[0])
    named = document | {"outputs": [{"name": "y", "parameters": None}]}
    assert list(decode(orjson.dumps(named), None, None).outputs) == ["y"]


def test_null_for_the_data_of_a_binary_input() -> None:
    entry = {
        "name": "x", "datatype": "FP32", "shape": [1], "data": None,
        "parameters": {"binary_data_size": 4},
    }  # fmt: skip
    head = orjson.dumps({"inputs": [entry]})
    found = decode(head + b"\0\0\x80?", str(len(head)), None)
    assert found.inputs[0].array.tolist() == [1.0]


def test_a_field_that_must_be_there_is_told_in_json_s_words() -> None:
    body = {"inputs": [{"name": None, "datatype": "FP32", "shape": [1], "data": [1]}]}
    with pytest.raises(InvalidRequestError, match="name of an input must be a string, and is null"):
        decode(orjson.dumps(body), None, None)


def test_raw_body_with_one_dimension_that_varies() -> None:
    spec = TensorSpec(name="x", datatype="INT16", shape=(-1, -1, 2))
    signature = IMAGE.model_copy(update={"inputs": (spec,)})
    decoded = decode(np.arange(6, dtype=np.int16).tobytes(), "0", signature)
    assert decoded.inputs[0].array.tolist() == [[[0, 1], [2, 3], [4, 5]]]
    assert decoded.binary_by_default
    with pytest.raises(InvalidRequestError, match="10 bytes"):
        decode(b"0123456789", "0", signature)


@pytest.mark.parametrize(
    "shape", [(-1, -1, -1), (-1, 0, -1)], ids=["two that vary", "nothing to divide by"]
)
def test_raw_body_whose_shape_cannot_be_told(shape: tuple[int, ...]) -> None:
    spec = TensorSpec(name="x", datatype="INT16", shape=shape)
    signature = IMAGE.model_copy(update={"inputs": (spec,)})
    with pytest.raises(InvalidRequestError):
        decode(b"0123", "0", signature)


def test_raw_body_of_bytes_elements_takes_its_own_lengths() -> None:
    spec = TensorSpec(name="x", datatype="BYTES", shape=(-1,))
    signature = IMAGE.model_copy(update={"inputs": (spec,)})
    decoded = decode(b"\x02\0\0\0ab", "0", signature)
    assert decoded.inputs[0].array.tolist() == [b"ab"]


def test_raw_body_without_a_model_to_ask() -> None:
    with pytest.raises(InvalidRequestError, match="exactly one input"):
        decode(b"1234", "0", None)
