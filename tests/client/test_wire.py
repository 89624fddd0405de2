"""The codec: arrays of every datatype survive the wire, and broken answers become errors."""

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from flambeau.client import Client
from flambeau.errors import InvalidRequestError, ServerError
from flambeau.protocol.messages import inference as pb
from flambeau.protocol.tensors import DATATYPES, object_array
from flambeau.wire import infer_call, read_outputs
from tests.client.scripted_server import echo

SHAPES = npst.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)


def request_of(array: Any, *, bf16: tuple[str, ...] = ()) -> Any:
    call = infer_call("m", {"x": array}, version="", outputs=(), request_id="", bf16=bf16)
    return call.request


@st.composite
def typed_arrays(draw: st.DrawFn) -> tuple[str, Any]:
    datatype = draw(st.sampled_from(sorted(DATATYPES)))
    shape = draw(SHAPES)
    if datatype != "BYTES":
        return datatype, draw(npst.arrays(DATATYPES[datatype], shape))
    count = int(np.prod(shape))
    elements = draw(st.lists(st.binary(max_size=8), min_size=count, max_size=count))
    return datatype, object_array(elements).reshape(shape)


@given(typed_arrays())
def test_every_datatype_comes_back_as_it_went(typed: tuple[str, Any]) -> None:
    datatype, array = typed
    request = request_of(array, bf16=("x",) if datatype == "BF16" else ())

    returned = read_outputs(echo(request, None))["x"]

    assert request.inputs[0].datatype == datatype
    assert returned.shape == array.shape
    assert returned.dtype == array.dtype
    if datatype == "BYTES":
        assert returned.tolist() == array.tolist()
    else:
        assert returned.tobytes() == array.tobytes()  # NaN equals NaN, bit by bit


def test_a_strided_array_is_sent_row_major() -> None:
    array = np.arange(12, dtype=np.int32).reshape(3, 4).T[::2]
    np.testing.assert_array_equal(read_outputs(echo(request_of(array), None))["x"], array)


def test_text_is_sent_as_utf8() -> None:
    returned = read_outputs(echo(request_of(np.array([["é", ""]])), None))["x"]
    assert returned.tolist() == [["é".encode(), b""]]


def test_arrays_of_an_answer_are_the_callers_own() -> None:
    returned = read_outputs(echo(request_of(np.zeros(3, np.float32)), None))["x"]
    returned += 1
    assert returned.sum() == 3


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.zeros(2, np.complex64), "input 'x': arrays of type complex64 have no datatype"),
        (np.array([1, 2], np.object_), "input 'x': a BYTES element is a int; give bytes or text"),
        ([1.0, 2.0], "input 'x' is a list; give a NumPy array"),
    ],
)
def test_what_the_protocol_cannot_carry_is_refused(value: Any, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=re.escape(message)):
        request_of(value)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ({"accuracy": 5}, "accuracy is 5; give text (str)"),
        (
            {"artifact": "a\udc80"},
            r"artifact is 'a\udc80', which UTF-8 cannot hold",
        ),
        ({"version": 3}, "version is 3; give text (str)"),
        ({"request_id": b"a"}, "request_id is b'a'; give text (str)"),
        ({"model": None}, "model is None; give text (str)"),
        ({"outputs": "logits"}, "outputs is 'logits'; give a list of names, such as ['logits']"),
        ({"outputs": [5]}, "a name in outputs is 5; give text (str)"),
        ({"bf16": 5}, "bf16 is 5; give a list of names"),
        ({"inputs": "x"}, "inputs is a str; give arrays by input name"),
        ({"inputs": {5: np.zeros(1)}}, "the name of an input is 5; give text (str)"),
    ],
)
def test_an_argument_of_a_wrong_type_is_refused_in_words(argument: Any, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=re.escape(message)):
        infer_call(**{"model": "m", "inputs": {}, **argument})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("127.0.0.1:1", {"timeout_s": "5"}), "timeout_s is '5'; give a positive number"),
        (("127.0.0.1:1", {"retries": 1.5}), "retries is 1.5; give 0 to 20"),
        (("127.0.0.1:1", {"max_message_bytes": "1"}), "max_message_bytes is '1'; give 1 to"),
        (("127.0.0.1:1", {"token": 5}), "the token is a int; give text"),
        ((5, {}), "the address is 5; give HOST:PORT"),
        (("a\udc80:1", {}), r"the address is 'a\udc80:1'; give HOST:PORT"),
    ],
)
def test_settings_of_a_client_of_a_wrong_type_are_refused(arguments: Any, message: str) -> None:
    target, settings = arguments
    with pytest.raises(ValueError, match=re.escape(message)):
        Client(target, **settings)


def test_bf16_is_taken_as_bit_patterns_only() -> None:
    with pytest.raises(InvalidRequestError, match="'x' has datatype FP32; expected BF16, given as"):
        request_of(np.zeros(2, np.float32), bf16=("x",))


def answer(datatype: str, shape: list[int], *raw: bytes) -> Any:
    reply = pb.ModelInferResponse(raw_output_contents=raw)
    reply.outputs.add(name="y", datatype=datatype, shape=shape)
    return reply


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (answer("FP32", [1]), "1 outputs and 0 raw contents; this client reads raw contents only"),
        (answer("FP32", [2], bytes(4)), "output 'y' of the answer: 4 bytes of raw data; FP32"),
        (answer("FP8", [2], bytes(2)), "output 'y' of the answer: datatype 'FP8' is unknown"),
        (answer("FP32", [-1], bytes(4)), "has a negative dimension"),
    ],
)
def test_an_answer_that_breaks_the_protocol_is_the_servers_error(reply: Any, message: str) -> None:
    with pytest.raises(ServerError, match=re.escape(message)):
        read_outputs(reply)
