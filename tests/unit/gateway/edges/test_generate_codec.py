"""The JSON of generate: keys to inputs and parameters, shapes, limits, and answers back."""

import json
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flambeau.protocol.signature import Signature, TensorSpec
from flambeau.protocol.tensors import Array, object_array
from services.errors import InvalidRequestError
from services.gateway.edges.json_bodies.strict_request import RestRequest
from services.gateway.edges.streams.generate_codec import (
    MAX_MEMBERS,
    encode_generated,
    read_generate,
)
from services.gateway.sliced_work import at_once
from services.queueing.records import InferReply, Lane


def signature(shape: tuple[int, ...], datatype: str = "FP32", name: str = "x") -> Signature:
    spec = TensorSpec(name=name, datatype=datatype, shape=shape)
    return Signature(inputs=(spec,), outputs=(spec,), max_batch_size=8)


def read(document: Any, found: Signature) -> RestRequest:
    body = document if isinstance(document, bytes) else orjson.dumps(document)
    decoded = read_generate(body, found)
    return decoded if isinstance(decoded, RestRequest) else at_once(decoded)


@pytest.mark.parametrize(
    ("spec", "value", "shape"),
    [
        ((-1,), 5, (1,)),
        ((-1,), [5, 6], (2,)),
        ((-1, 1), 5, (1, 1)),
        ((-1, 4), [1, 2, 3, 4], (1, 4)),
        ((-1, 4), [1, 2, 3, 4, 5, 6, 7, 8], (2, 4)),
        ((-1, -1), [1, 2, 3], (1, 3)),
        ((-1, -1, 2), [1, 2, 3, 4], (1, 2, 2)),
        ((-1, 2, 2), [[[1, 2], [3, 4]]], (1, 2, 2)),
        ((-1,), [], (0,)),
    ],
)
def test_shape_of_an_input(spec: tuple[int, ...], value: Any, shape: tuple[int, ...]) -> None:
    (tensor,) = read({"x": value}, signature(spec)).inputs
    assert (tensor.name, tensor.datatype, tensor.array.shape) == ("x", "FP32", shape)
    flat = np.array(value, np.float32).ravel()
    np.testing.assert_array_equal(tensor.array.ravel(), flat)


@pytest.mark.parametrize(
    ("spec", "value"),
    [((-1, 4), [1, 2, 3]), ((-1, 4), 1), ((-1, -1), [[1], [2, 3]]), ((-1,), {"a": 1}), ((-1,), "")],
)
def test_value_that_fits_no_shape(spec: tuple[int, ...], value: Any) -> None:
    with pytest.raises(InvalidRequestError, match="input 'x'"):
        read({"x": value}, signature(spec))


def test_elements_that_a_fixed_shape_does_not_take() -> None:
    spec = TensorSpec(name="x", datatype="FP32", shape=(2, 2), batch_axis=None)
    fixed = Signature(inputs=(spec,), outputs=(spec,), max_batch_size=1)
    assert read({"x": [1] * 4}, fixed).inputs[0].array.shape == (2, 2)
    with pytest.raises(InvalidRequestError, match="has 8 elements, which fit no shape"):
        read({"x": [1] * 8}, fixed)


def test_key_beside_parameters_and_in_them() -> None:
    for name in ("x", "timeout"):
        with pytest.raises(InvalidRequestError, match=f"'{name}' occurs twice"):
            read({name: 1, "parameters": {name: 1}}, signature((-1,)))


def test_other_keys_are_parameters() -> None:
    nested = {"x": 1, "parameters": {"timeout": 5, "stream": False}, "priority": 2, "id": "me"}
    found = read(nested, signature((-1,)))
    assert (found.timeout_us, found.priority, found.id) == (5, 2, "me")
    inputs = read({"parameters": {"x": 1}}, signature((-1,))).inputs
    assert [one.name for one in inputs] == ["x"]
    named = read({"parameters": 1, "id": "me"}, signature((-1,), name="parameters"))
    assert [one.name for one in named.inputs] == ["parameters"]
    assert [one.name for one in read({"id": 3}, signature((-1,), name="id")).inputs] == ["id"]


def test_members_of_a_large_body_are_limited() -> None:
    long = read({"x": ['a, [b] {c} \\ " ' * 5000]}, signature((-1,), "BYTES"))
    assert len(long.inputs[0].array[0]) == 5000 * 15
    with pytest.raises(InvalidRequestError, match=f"more than {MAX_MEMBERS}"):
        read(b'{"x": [' + b"1," * 40_000 + b"1]}", signature((-1,)))
    with pytest.raises(InvalidRequestError, match="not valid JSON"):
        read(b'{"x": "' + b"1" * 40_000, signature((-1,)))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=12,
)


@given(
    st.dictionaries(st.sampled_from(["x", "id", "parameters", "timeout", "a"]), JSON),
    st.sampled_from([(-1,), (-1, 2), (-1, -1, 3), (2, -1)]),
    st.sampled_from(["FP32", "BYTES", "BOOL", "INT8", "FP16"]),
)
def test_any_object_is_read_or_refused(
    document: dict[str, Any], shape: tuple[int, ...], datatype: str
) -> None:
    try:
        body = orjson.dumps(document)
    except TypeError:
        return  # an integer beyond 64 bits
    spec = TensorSpec(name="x", datatype=datatype, shape=(-1, *shape[1:]))
    try:
        found = read(body, Signature(inputs=(spec,), outputs=(spec,), max_batch_size=8))
    except InvalidRequestError:
        return
    assert len(found.inputs) <= 1


def answer(outputs: dict[str, Array], datatypes: dict[str, str], id: str = "") -> Any:
    reply = InferReply(
        lane=Lane("m", 2), outputs=outputs, datatypes=datatypes, batch_rows=1, queue_s=0.0,
        execution_s=0.0,
    )  # fmt: skip
    encoded = encode_generated(reply, RestRequest(inputs=[], id=id), lambda _: None)
    parts = encoded if isinstance(encoded, list) else at_once(encoded)  # type: ignore[arg-type]
    return json.loads(b"".join(parts))


def test_answer() -> None:
    outputs = {"a": np.array([[1.5]], np.float32), "b": np.array([[1, 2], [3, 4]])}
    found = answer(outputs, {"a": "FP32", "b": "INT64"}, "me")
    named = {"model_name": "m", "model_version": "2", "id": "me"}
    assert found == named | {"a": 1.5, "b": [1, 2, 3, 4]}
    texts = object_array(["é".encode() * 200_000])
    assert answer({"a": texts}, {"a": "BYTES"})["a"] == "é" * 200_000
    assert answer({"a": np.zeros(0)}, {"a": "FP64"})["a"] == []
    many = np.arange(30_000)
    assert answer({"a": many}, {"a": "INT64"})["a"] == many.tolist()


def test_answer_that_json_cannot_hold() -> None:
    with pytest.raises(InvalidRequestError, match="not UTF-8; use infer"):
        answer({"a": object_array([b"\xff"])}, {"a": "BYTES"})


def test_answer_has_nan_and_infinity_as_infer_does() -> None:
    found = answer({"a": np.array([np.nan, np.inf, 1.0])}, {"a": "FP64"})["a"]
    np.testing.assert_array_equal(found, [np.nan, np.inf, 1.0])
