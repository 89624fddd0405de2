"""Bodies of `:predict`: both forms, every datatype, and what is refused."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson
import pytest

from flambeau.protocol.signature import Signature
from flambeau.protocol.tensors import DATATYPES, Array, object_array
from services.errors import InvalidRequestError, PayloadTooLargeError, UnsupportedError
from services.gateway.edges import rest_codec
from services.gateway.edges.json_bodies.strict_request import RestRequest
from services.gateway.edges.predict import predict_codec
from services.gateway.sliced_work import at_once
from services.queueing.records import InferReply, Lane
from tests.fixtures.signatures import one_to_one


def two_inputs(**further: Any) -> Signature:
    tensors = [{"name": "a", "datatype": "FP32", "shape": [-1, 2]},
               {"name": "t", "datatype": "BYTES", "shape": [-1]}]  # fmt: skip
    return Signature.model_validate(
        {"inputs": tensors, "outputs": tensors, "max_batch_size": 8, **further}
    )


def read(body: Any, signature: Signature) -> tuple[dict[str, Array], bool]:
    text = body if isinstance(body, bytes) else orjson.dumps(body)
    found = predict_codec.decode(text, signature)
    return {one.name: one.array for one in found.inputs}, found.is_row


@pytest.mark.parametrize(
    ("body", "is_row"),
    [
        ({"instances": [[1, 2], [3, 4]]}, True),
        ({"instances": [{"x": [1, 2]}, {"x": [3, 4]}]}, True),
        ({"inputs": [[1, 2], [3, 4]]}, False),
        ({"inputs": {"x": [[1, 2], [3, 4]]}, "signature_name": "serving_default"}, False),
        ({"inputs": {"x": [[1, 2.0], [3, 4]]}, "signature_name": "", "other": 1}, False),
    ],
)
def test_forms_of_one_input(body: Any, is_row: bool) -> None:
    found, was_row = read(body, one_to_one((2,), rows=4))
    assert was_row is is_row
    assert found["x"].dtype == np.float32
    assert found["x"].tolist() == [[1, 2], [3, 4]]


def test_forms_of_two_inputs() -> None:
    rows = [{"a": [1, 2], "t": "é"}, {"a": [3, 4], "t": {"b64": "AP8="}}]
    columns = {"a": [[1, 2], [3, 4]], "t": ["é", {"b64": "AP8="}]}
    for body in ({"instances": rows}, {"inputs": columns}):
        found, _ = read(body, two_inputs())
        assert found["a"].tolist() == [[1, 2], [3, 4]]
        assert found["t"].tolist() == ["é".encode(), b"\x00\xff"]


@pytest.mark.parametrize("datatype", [name for name in DATATYPES if name != "BF16"])
def test_datatypes(datatype: str) -> None:
    signature = one_to_one((2,), rows=4, datatype=datatype)
    row: list[Any] = ["a", "b"] if datatype == "BYTES" else [1, 0]
    if datatype == "BOOL":
        row = [True, False]
    found, _ = read({"instances": [row]}, signature)
    assert found["x"].shape == (1, 2)
    assert found["x"].dtype == DATATYPES[datatype]


B64 = {"instances": [{"b64": "?"}]}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"[" * 5000, "not JSON"),
        ([], "must be a JSON object"),
        ({}, "neither"),
        ({"instances": [[1, 2]], "inputs": [[1, 2]]}, "both"),
        ({"instances": []}, "at least one row"),
        ({"instances": 3}, "at least one row"),
        ({"instances": [[1], [1, 2]]}, "ragged"),
        ({"instances": [1, [1, 2]]}, "ragged|numbers"),
        ({"instances": [["a", "b"]]}, "must hold numbers"),
        ({"instances": [[None, 1]]}, "must hold numbers"),
        ({"instances": [[1e300, 1]]}, "outside the range"),
        ({"instances": [{"x": [1, 2]}, [1, 2]]}, "instance 1 has other inputs"),
        ({"instances": [[1, 2], {"x": [1, 2]}]}, "some of the instances"),
        ({"instances": [{"z": [1, 2]}]}, "unknown input 'z'"),
        ({"inputs": {"z": [1, 2]}}, "unknown input 'z'"),
        ({"inputs": None}, "must hold numbers"),
        ({"instances": [[1, 2]], "signature_name": "other"}, "'serving_default' alone"),
        ({"instances": [[1, 2]], "signature_name": 7}, "'serving_default' alone"),
        (b'{"instances":[[NaN,1]]}', "not JSON"),
        (b'{"instances":' + b"[" * 40 + b"1" + b"]" * 40 + b"}", "deeper than"),
    ],
)
def test_refusals(body: Any, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        read(body, one_to_one((2,), rows=4))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"b64": "?"}, "not base64"),
        ({"b64": 3}, "is no text"),
        ({"b64": "AA==", "c": 1}, "unknown input|is no text"),
        (3, "is no text"),
        (None, "is no text"),
    ],
)
def test_what_is_no_text(value: Any, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        read({"inputs": value}, one_to_one((), rows=4, datatype="BYTES"))


def test_several_inputs_need_names() -> None:
    with pytest.raises(InvalidRequestError, match="inputs a, t; give an object"):
        read({"instances": [[1, 2]]}, two_inputs())


def test_a_model_without_rows_has_the_column_form_alone() -> None:
    tensor = {"name": "x", "datatype": "FP32", "shape": [2], "batch_axis": None}
    signature = Signature.model_validate(
        {"inputs": [tensor], "outputs": [{**tensor, "name": "y"}], "max_batch_size": 1}
    )
    with pytest.raises(InvalidRequestError, match="no row form"):
        read({"instances": [[1, 2]]}, signature)
    assert read({"inputs": [1, 2]}, signature)[0]["x"].tolist() == [1, 2]


@pytest.mark.parametrize(("key", "is_row"), [(b"instances", True), (b"inputs", False)])
@pytest.mark.parametrize("before", [b"", b' "signature_name" : "serving_default" ,'])
def test_a_large_body_is_read_in_slices(key: bytes, is_row: bool, before: bytes) -> None:
    rows = np.arange(40_000, dtype=np.float32).reshape(100, 400)
    body = b'\n{%b"%b": %b }  ' % (before, key, orjson.dumps(rows.tolist()))
    assert not predict_codec.fits_at_once(body)
    text, was_row = predict_codec.as_inference(body, one_to_one((400,), rows=128))
    assert was_row is is_row
    decoded = rest_codec.decode(text, None, None)
    request = decoded if isinstance(decoded, RestRequest) else at_once(decoded)
    assert np.array_equal(request.inputs[0].array, rows)


@pytest.mark.parametrize("body", [
    b'{"instances":%b,"other":1}', b'{"instances":%b', b'{"other":1,"instances":%b}', b"%b",
    b'{"instances":{"x":%b}}', b'{"instances":%b}}',
])  # fmt: skip
def test_a_large_body_of_another_form_is_refused(body: bytes) -> None:
    data = orjson.dumps([[1] * 400] * 100)

    def read_large() -> None:
        text, _ = predict_codec.as_inference(body % data, one_to_one((400,), rows=128))
        decoded = rest_codec.decode(text, None, None)
        assert not isinstance(decoded, RestRequest)
        at_once(decoded)

    with pytest.raises(InvalidRequestError):
        read_large()


def test_sizes_have_a_limit() -> None:
    predict_codec.check_size(b" " * predict_codec.MAX_PLAIN_BYTES)
    with pytest.raises(PayloadTooLargeError):
        predict_codec.check_size(b" " * (predict_codec.MAX_PLAIN_BYTES + 1))
    assert not predict_codec.fits_at_once(b'"%b"' % (b"a" * predict_codec.MAX_PARSED_BYTES))
    with pytest.raises(PayloadTooLargeError):
        predict_codec.as_inference(b'{"instances":[[1]]}', one_to_one((-1,), rows=4))


def written(outputs: Mapping[str, Array], is_row: bool, datatype: str = "FP32") -> Any:
    reply = InferReply(
        lane=Lane("m", 1), outputs=outputs, datatypes=dict.fromkeys(outputs, datatype),
        batch_rows=1, queue_s=0, execution_s=0,
    )  # fmt: skip
    predict_codec.check_form(reply)
    return json.loads(b"".join(predict_codec.encode(reply, is_row)))


def test_answers() -> None:
    y, t = np.array([[1, 2], [3, 4]], np.float32), object_array([b"a", b"b"])
    assert written({"y": y}, True) == {"predictions": [[1, 2], [3, 4]]}
    assert written({"y": y}, False) == {"outputs": [[1, 2], [3, 4]]}
    assert written({"y": y, "t": t}, False) == {"outputs": {"y": [[1, 2], [3, 4]], "t": ["a", "b"]}}
    assert written({"y": y, "t": t}, True) == {
        "predictions": [{"y": [1, 2], "t": "a"}, {"y": [3, 4], "t": "b"}]
    }


def test_texts_and_binary_values() -> None:
    outputs = {"t_bytes": object_array([b"a"]), "u": object_array([b"\xff"]),
               "v": object_array(["é".encode()])}  # fmt: skip
    assert written(outputs, True, "BYTES") == {
        "predictions": [{"t_bytes": {"b64": "YQ=="}, "u": {"b64": "/w=="}, "v": "é"}]
    }


def test_numbers_that_json_does_not_have_are_bare() -> None:
    y = np.array([[np.nan, np.inf, -np.inf, 1]], np.float32)
    text = b"".join(
        predict_codec.encode(
            InferReply(lane=Lane("m", 1), outputs={"y": y}, datatypes={"y": "FP32"}, batch_rows=1,
                       queue_s=0, execution_s=0),
            True,
        )
    )  # fmt: skip
    assert text == b'{"predictions":[[NaN,Infinity,-Infinity,1.0]]}'


@pytest.mark.parametrize(
    "shape", [(3, 5), (20_000,), (3, 9_000), (2, 3, 5_000), (30_000, 1), (0, 4)]
)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int64])
def test_large_answers_come_in_pieces(shape: tuple[int, ...], dtype: Any) -> None:
    y = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    assert written({"y": y}, False)["outputs"] == y.tolist()
    rows = written({"y": y, "z": y}, True)["predictions"]
    assert [row["z"] for row in rows] == y.tolist()


def test_bf16_has_no_form() -> None:
    with pytest.raises(UnsupportedError, match="BF16"):
        written({"y": np.zeros((1, 2), np.uint16)}, True, "BF16")
