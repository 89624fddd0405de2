"""TensorFlow Serving's gRPC protocol, in every shape of a server, by messages that others wrote."""

from typing import Any

import grpc
import numpy as np
import pytest
from grpc import StatusCode

from services.gateway.edges.predict.tensor_proto import MAX_REPEATED_BYTES
from tests.e2e.grpc_calls import TIMEOUT_S, error_of, trailing
from tests.e2e.tensor_values import RUNTIME_DATATYPES, VALUES, assert_same_bits, echo_model
from tests.fixtures.tensorflow_messages import tf

Array = Any
ROWS = np.array([[1, 2, 3, 4], [5, 6, 7, 8]], np.float32)
TYPES = {
    "FP32": (1, "float_val"), "FP64": (2, "double_val"), "INT32": (3, "int_val"),
    "UINT8": (4, "int_val"), "INT16": (5, "int_val"), "INT8": (6, "int_val"),
    "BYTES": (7, "string_val"), "INT64": (9, "int64_val"), "BOOL": (10, "bool_val"),
    "UINT16": (17, "int_val"), "FP16": (19, "half_val"), "UINT32": (22, "uint32_val"),
    "UINT64": (23, "uint64_val"),
}  # fmt: skip
"""TensorFlow's number of each datatype, and the field of its elements."""
SPEC = b"\x0a\x08\x0a\x06linear"
PREDICT = "tensorflow.serving.PredictionService/Predict"


def call(channel: grpc.Channel, path: str, request: Any, answer: Any) -> Any:
    unary = channel.unary_unary(f"/{path}", type(request).SerializeToString, answer.FromString)
    return unary.with_call(request, timeout=TIMEOUT_S)


def tensor(datatype: str, array: Array, form: str = "typed") -> Any:
    dtype, field = TYPES[datatype]
    found = tf.TensorProto(dtype=dtype)
    for size in array.shape:
        found.tensor_shape.dim.add(size=size)
    if form == "content":
        found.tensor_content = array.tobytes()
    else:
        bits = array.view("u2") if datatype == "FP16" else array
        getattr(found, field).extend(bits.ravel().tolist())
    return found


def array_of(found: Any) -> tuple[str, Array]:
    datatype = next(name for name, (number, _) in TYPES.items() if number == found.dtype)
    values, dtype = list(getattr(found, TYPES[datatype][1])), VALUES[datatype].dtype
    shape = [dim.size for dim in found.tensor_shape.dim]
    if datatype == "FP16":
        return datatype, np.array(values, "u2").view("f2").reshape(shape)
    return datatype, np.array(values, dtype).reshape(shape)


def predict(channel: grpc.Channel, model: str, inputs: dict[str, Any], **spec: Any) -> Any:
    asked = tf.PredictRequest(model_spec=tf.ModelSpec(name=model, **spec), inputs=inputs)
    return call(channel, PREDICT, asked, tf.PredictResponse)[0]


def version(number: int) -> Any:
    found = tf.ModelSpec().version
    found.value = number
    return found


@pytest.mark.parametrize("form", ["typed", "content"])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_predict(channel: grpc.Channel, number: int, form: str) -> None:
    spec = {"version": version(number)} if number else {}
    reply = predict(channel, "linear", {"x": tensor("FP32", ROWS, form)}, **spec)
    ((name, output),) = reply.outputs.items()
    assert name == "y"
    assert_same_bits(array_of(output)[1], (number or 2) * ROWS)
    assert (reply.model_spec.name, reply.model_spec.version.value) == ("linear", number or 2)
    assert reply.model_spec.signature_name == "serving_default"


@pytest.mark.parametrize("form", ["typed", "content"])
@pytest.mark.parametrize("datatype", [one for one in RUNTIME_DATATYPES if one in TYPES])
def test_datatypes(channel: grpc.Channel, datatype: str, form: str) -> None:
    if datatype == "BYTES" and form == "content":
        return
    array = VALUES[datatype].reshape(1, -1)
    given = {f"in_{datatype}": tensor(datatype, array, form)}
    (output,) = predict(channel, echo_model(datatype), given).outputs.values()
    found, values = array_of(output)
    assert found == datatype
    assert_same_bits(values, array)


def test_some_outputs(channel: grpc.Channel) -> None:
    spec = tf.ModelSpec(name="pair", signature_name="serving_default")
    inputs = {name: tensor("FP32", ROWS) for name in ("a", "b")}
    asked = tf.PredictRequest(model_spec=spec, inputs=inputs, output_filter=["difference"])
    reply, sent = call(channel, PREDICT, asked, tf.PredictResponse)
    assert list(reply.outputs) == ["difference"]
    assert trailing(sent)["x-request-id"]
    asked.output_filter.append("nothing")
    code, words = error_of(lambda: call(channel, PREDICT, asked, tf.PredictResponse))
    assert code is StatusCode.INVALID_ARGUMENT
    assert "nothing" in words


def test_large_tensors(channel: grpc.Channel) -> None:
    array = np.arange(500_000, dtype=np.float32).reshape(1, -1)
    for form in ("typed", "content"):
        reply = predict(channel, "echo-fp32", {"in_FP32": tensor("FP32", array, form)})
        assert_same_bits(array_of(*reply.outputs.values())[1], array)
    whole = np.arange(-30_000, 30_000, dtype=np.int32).reshape(1, -1)
    reply = predict(channel, "echo-int32", {"in_INT32": tensor("INT32", whole)})
    assert_same_bits(array_of(*reply.outputs.values())[1], whole)


def test_one_value_for_all(channel: grpc.Channel) -> None:
    one = tensor("FP32", np.full((2, 4), 3, np.float32))
    del one.float_val[1:]
    (output,) = predict(channel, "linear", {"x": one}).outputs.values()
    assert_same_bits(array_of(output)[1], np.full((2, 4), 6, np.float32))
    one.tensor_shape.dim[1].size = MAX_REPEATED_BYTES
    code, words = error_of(lambda: predict(channel, "linear", {"x": one}))
    assert (code, "send all elements" in words) == (StatusCode.INVALID_ARGUMENT, True)


def changed(**fields: Any) -> Any:
    found = tensor("FP32", ROWS)
    for name, value in fields.items():
        if isinstance(value, list):
            getattr(found, name)[:] = value
        else:
            setattr(found, name, value)
    return found


def shaped(*sizes: int, **fields: Any) -> Any:
    found = changed(**fields)
    del found.tensor_shape.dim[:]
    for size in sizes:
        found.tensor_shape.dim.add(size=size)
    return found


@pytest.mark.parametrize(
    ("model", "given", "code", "words"),
    [
        ("nowhere", {}, "NOT_FOUND", "model 'nowhere' is not served"),
        ("", {}, "NOT_FOUND", "is not served"),
        ("linear", {}, "INVALID_ARGUMENT", "'x' is missing"),
        ("refused", {}, "UNAVAILABLE", "golden"),
        ("linear", {"x": shaped(2, 3)}, "INVALID_ARGUMENT", "holds 8 elements; shape [2, 3]"),
        ("linear", {"x": shaped(1, 8)}, "INVALID_ARGUMENT", "has shape [1,8]"),
        ("linear", {"x": shaped(-1, 4)}, "INVALID_ARGUMENT", "negative dimension"),
        ("linear", {"x": shaped(2**62, 2**62)}, "INVALID_ARGUMENT", "larger than any array"),
        ("linear", {"x": shaped(*[1] * 65)}, "INVALID_ARGUMENT", "65 dimensions"),
        ("linear", {"x": shaped(2, 4, float_val=[])}, "INVALID_ARGUMENT", "holds 0 elements"),
        ("linear", {"x": changed(dtype=0)}, "INVALID_ARGUMENT", "dtype is 0"),
        ("linear", {"x": changed(dtype=8)}, "INVALID_ARGUMENT", "dtype is 8"),
        ("linear", {"x": changed(dtype=2)}, "INVALID_ARGUMENT", "float_val is filled"),
        ("linear", {"x": changed(int_val=[1])}, "INVALID_ARGUMENT", "int_val is filled"),
        ("linear", {"x": changed(tensor_content=b"1" * 32)}, "INVALID_ARGUMENT", "both"),
        ("linear", {"x": changed(tensor_content=b"1", float_val=[])}, "INVALID_ARGUMENT", "1 byte"),
        ("linear", {"y": changed()}, "INVALID_ARGUMENT", "'y'"),
        (
            "echo-int8",
            {"in_INT8": tensor("INT8", np.array([[300]], np.int32))},
            "INVALID_ARGUMENT",
            "int_val holds 300; INT8 takes -128 to 127",
        ),
    ],
)  # fmt: skip
def test_refusals(
    channel: grpc.Channel, model: str, given: dict[str, Any], code: str, words: str
) -> None:
    found, told = error_of(lambda: predict(channel, model, given))
    assert found.name == code, told
    assert words in told


@pytest.mark.parametrize(
    ("spec", "code", "words"),
    [
        ({"version_label": "staging"}, "NOT_FOUND", "no served version 'staging'"),
        ({"version_label": "1"}, "NOT_FOUND", "a number names a version"),
        ({"signature_name": "classify"}, "INVALID_ARGUMENT", "'serving_default' alone"),
    ],
)
def test_versions_and_signatures(
    channel: grpc.Channel, spec: dict[str, Any], code: str, words: str
) -> None:
    found, told = error_of(lambda: predict(channel, "linear", {"x": tensor("FP32", ROWS)}, **spec))
    assert (found.name, words in told) == (code, True), told


@pytest.mark.parametrize(
    "body", [b"\x0a\xff", SPEC + b"\x12\x02\x0a\x01", b"\x0a\x03\x0a\x01\xff", b"\xff"]
)
def test_broken_messages(channel: grpc.Channel, body: bytes) -> None:
    unary = channel.unary_unary(f"/{PREDICT}", lambda _: body, lambda answer: answer)
    code, words = error_of(lambda: unary(None, timeout=TIMEOUT_S))
    assert (code, "not a valid message" in words) == (StatusCode.INVALID_ARGUMENT, True), words


def test_metadata(channel: grpc.Channel) -> None:
    path = "tensorflow.serving.PredictionService/GetModelMetadata"
    asked = tf.GetModelMetadataRequest(
        model_spec=tf.ModelSpec(name="pair"), metadata_field=["signature_def"]
    )
    reply = call(channel, path, asked, tf.GetModelMetadataResponse)[0]
    found = tf.SignatureDefMap()
    assert reply.metadata["signature_def"].Unpack(found)
    ((name, signature),) = found.signature_def.items()
    assert (name, signature.method_name) == ("serving_default", "tensorflow/serving/predict")
    assert sorted(signature.inputs) == ["a", "b"]
    info = signature.outputs["total"]
    assert (info.name, info.dtype) == ("total", TYPES["FP32"][0])
    assert info.tensor_shape.dim[0].size == -1
    for field in ([], ["other"], ["signature_def", "other"]):
        asked.metadata_field[:] = field
        code, _ = error_of(lambda: call(channel, path, asked, tf.GetModelMetadataResponse))
        assert code is StatusCode.INVALID_ARGUMENT


def test_status(channel: grpc.Channel) -> None:
    path, answer = "tensorflow.serving.ModelService/GetModelStatus", tf.GetModelStatusResponse

    def states(model: str, **spec: Any) -> list[Any]:
        asked = tf.GetModelStatusRequest(model_spec=tf.ModelSpec(name=model, **spec))
        return list(call(channel, path, asked, answer)[0].model_version_status)

    found = states("linear")
    assert [(one.version, one.state, one.status.error_code) for one in found] == [
        (2, 30, 0),
        (1, 30, 0),
    ]
    assert [one.version for one in states("linear", version=version(1))] == [1]
    (refused,) = states("refused")
    assert (refused.state, refused.status.error_code) == (50, 2)
    assert "golden" in refused.status.error_message
    for unknown in (
        lambda: states("nowhere"),
        lambda: states("linear", version_label="staging"),
    ):
        assert error_of(unknown)[0] is StatusCode.NOT_FOUND
