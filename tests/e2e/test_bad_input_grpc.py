"""Invalid gRPC requests: a precise status each time, and the next valid request succeeds."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from grpc import StatusCode

from tests.e2e.conftest import MAX_REQUEST_BYTES
from tests.e2e.grpc_calls import (
    MODEL_INFER,
    TIMEOUT_S,
    error_of,
    linear_request,
    lookup_request,
    outputs,
    raw_request,
    typed_request,
)
from tests.fixtures.servers import ServerProcess
from tests.fixtures.triton_messages import pb

ROW = [1.0, 2.0, 3.0, 4.0]
X = np.array([ROW], np.float32)


@pytest.fixture(scope="module", autouse=True)
def _no_request_is_left(server: ServerProcess) -> Iterator[None]:
    """A scrape of 20 models takes as long as a test, and what is left stays."""
    yield
    assert server.metric("flambeau_in_flight_requests") == 0


@pytest.fixture(autouse=True)
def _the_next_good_request_is_answered(stub: Any) -> Iterator[None]:
    yield
    assert outputs(stub.ModelInfer(linear_request(ROW)))["y"].tolist() == [[2, 4, 6, 8]]


def with_input(form: Any = raw_request, array: Any = X, **changes: Any) -> Any:
    """Returns a request whose one input is changed after creation."""
    request = form("linear", {"x": ("FP32", array)})
    shape = changes.pop("shape", None)
    for name, value in changes.items():
        setattr(request.inputs[0], name, value)
    if shape is not None:
        request.inputs[0].shape[:] = shape
    return request


def changed(change: Callable[[Any], object], form: Any = raw_request) -> Any:
    """Returns a valid request with a change applied."""
    request = form("linear", {"x": ("FP32", X)})
    change(request)
    return request


def wanted(*names: str) -> Any:
    return linear_request(
        ROW, outputs=[pb.ModelInferRequest.InferRequestedOutputTensor(name=n) for n in names]
    )


def in_field(field: str, values: list[Any], datatype: str = "FP32") -> Any:
    """Returns a typed request that fills this field of `contents`."""
    request = pb.ModelInferRequest(model_name=f"echo-{datatype.lower()}")
    tensor = request.inputs.add(name=f"in_{datatype}", datatype=datatype, shape=[1, len(values)])
    getattr(tensor.contents, field).extend(values)
    return request


TENSORS: dict[str, tuple[Any, str]] = {
    # names
    "no inputs": (pb.ModelInferRequest(model_name="linear"), "input 'x' is missing"),
    "missing input": (raw_request("pair", {"a": ("FP32", X)}), "input 'b' is missing"),
    "extra input": (
        raw_request("linear", {"x": ("FP32", X), "xx": ("FP32", X)}),
        r"unknown input 'xx' \(did you mean 'x'\?\)",
    ),
    "duplicate input": (
        changed(lambda r: (r.inputs.append(r.inputs[0]), r.raw_input_contents.append(X.tobytes()))),
        "input 'x' occurs twice",
    ),
    "input without a name": (with_input(name=""), "unknown input ''"),
    "unknown output": (wanted("z"), "unknown output 'z'"),
    "output twice": (wanted("y", "y"), "asked for twice"),
    # datatype
    "wrong datatype": (with_input(datatype="INT32"), "has datatype INT32; expected FP32"),
    "unknown datatype": (with_input(datatype="FLOAT"), "datatype 'FLOAT' is unknown"),
    "unknown typed datatype": (with_input(typed_request, datatype="FLOAT"), "'FLOAT' is unknown"),
    "no datatype": (with_input(datatype=""), "datatype '' is unknown"),
    "typed FP16": (with_input(typed_request, datatype="FP16"), "only in raw_input_contents"),
    # shape
    "wrong shape": (with_input(shape=[2, 2]), r"has shape \[2,2\]; expected \[batch,4\]"),
    "wrong rank": (with_input(shape=[4]), r"has shape \[4\]; expected \[batch,4\]"),
    "negative shape": (with_input(shape=[-1, 4]), "negative dimension"),
    "negative typed shape": (with_input(typed_request, shape=[-1, 4]), "negative dimension"),
    "shape beyond memory": (with_input(shape=[2**62, 2**62]), "larger than any array"),
    "huge but empty": (with_input(array=X[:, :0], shape=[0] + [2**62] * 3), "input 'x'"),
    "too many dimensions": (with_input(shape=[1] * 70 + [4]), "input 'x'"),
    "no rows": (with_input(array=X[:0]), "0 rows"),
    "too many rows": (with_input(array=np.zeros((9, 4), np.float32)), "9 rows; at most 8"),
    "different rows": (
        raw_request("pair", {"a": ("FP32", X), "b": ("FP32", np.zeros((2, 4), np.float32))}),
        "differ in batch size",
    ),
    # data
    "raw too short": (
        changed(lambda r: r.raw_input_contents.__setitem__(0, X.tobytes()[:-1])),
        r"15 bytes of raw data; FP32 of shape \[1, 4\] takes 16",
    ),
    "raw too long": (
        changed(lambda r: r.raw_input_contents.__setitem__(0, X.tobytes() + b"x")),
        "17 bytes of raw data",
    ),
    "raw missing": (
        changed(lambda r: r.raw_input_contents.append(b"")),
        "raw_input_contents has 2 entries for 1 inputs",
    ),
    "raw and typed": (
        changed(lambda r: r.raw_input_contents.append(X.tobytes()), typed_request),
        "input 'x' has contents while raw_input_contents is used",
    ),
    "neither raw nor typed": (
        changed(lambda r: r.ClearField("raw_input_contents")),
        r"holds 0 elements; shape \[1, 4\] takes 4",
    ),
    "too few elements": (with_input(typed_request, shape=[1, 5]), "holds 4 elements"),
    "field of another datatype": (
        in_field("fp64_contents", [1, 2]),
        "contents.fp64_contents is filled; FP32 goes into fp32_contents",
    ),
    "out of range": (in_field("int_contents", [128], "INT8"), "holds 128; INT8 takes -128 to 127"),
    "below the range": (in_field("int_contents", [-129], "INT8"), "holds -129; INT8 takes -128"),
}


@pytest.mark.parametrize(("request_", "message"), TENSORS.values(), ids=TENSORS)
def test_tensors(stub: Any, request_: Any, message: str) -> None:
    code, details = error_of(lambda: stub.ModelInfer(request_))
    assert code is StatusCode.INVALID_ARGUMENT
    assert re.search(message, details), details


@pytest.mark.parametrize(
    ("model", "version", "message"),
    [
        ("linaer", "", r"'linaer' is not served \(did you mean 'linear'\?\)"),
        ("", "", "model '' is not served"),
        ("linear", "7", "no served version '7'; served: 1, 2"),
        ("linear", "one", "no served version 'one'"),
        ("linear", "9" * 5000, "no served version"),
    ],
)
def test_unknown_model_or_version(stub: Any, model: str, version: str, message: str) -> None:
    infer = linear_request(ROW, model_version=version)
    infer.model_name = model
    metadata = pb.ModelMetadataRequest(name=model, version=version)
    for call in (lambda: stub.ModelInfer(infer), lambda: stub.ModelMetadata(metadata)):
        code, details = error_of(call)
        assert code is StatusCode.NOT_FOUND
        assert re.search(message, details), details
    assert not stub.ModelReady(pb.ModelReadyRequest(name=model, version=version)).ready


@pytest.mark.parametrize("version", ["", "1"])
def test_model_that_is_not_ready_says_why(stub: Any, version: str) -> None:
    infer = linear_request(ROW, model_version=version)
    infer.model_name = "refused"
    metadata = pb.ModelMetadataRequest(name="refused", version=version)
    for call in (lambda: stub.ModelInfer(infer), lambda: stub.ModelMetadata(metadata)):
        code, details = error_of(call)
        assert code is StatusCode.UNAVAILABLE
        assert "replaying the golden rows on this machine" in details


@pytest.mark.parametrize(
    "place", ["parameters", "input", "output"], ids=["request", "input", "output"]
)
def test_extension_that_is_not_offered(stub: Any, place: str) -> None:
    request = linear_request(ROW)
    request.outputs.add(name="y")
    owner = {
        "parameters": request, "input": request.inputs[0], "output": request.outputs[0]
    }[place]  # fmt: skip
    owner.parameters["shared_memory_region"].string_param = "r"
    code, details = error_of(lambda: stub.ModelInfer(request))
    assert code is StatusCode.UNIMPLEMENTED
    assert "shared_memory_region" in details


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("timeout", {"int64_param": -1}, "'timeout' must be a whole number of microseconds"),
        ("timeout", {"string_param": "1s"}, "'timeout' must be a whole number of microseconds"),
        ("priority", {"int64_param": 11}, "'priority' must be a whole number from 0"),
        ("priority", {"bool_param": True}, "'priority' must be a whole number from 0"),
    ],
)
def test_scheduling_parameters(stub: Any, name: str, value: dict[str, Any], message: str) -> None:
    request = linear_request(ROW)
    request.parameters[name].MergeFrom(pb.InferParameter(**value))
    code, details = error_of(lambda: stub.ModelInfer(request))
    assert code is StatusCode.INVALID_ARGUMENT
    assert message in details


def test_call_this_server_does_not_have(channel: grpc.Channel) -> None:
    call = channel.unary_unary("/inference.GRPCInferenceService/ModelForget", None, None)
    code, _ = error_of(lambda: call(b""))
    assert code is StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize(
    "message",
    [
        b"\x0a\x02\xff\xfe",  # model_name that is not UTF-8
        b"\x0a\x06linear\x1a\x01\xff",  # id that is not UTF-8
        b"\x2a\x03\x0a\x01\xff",  # name of an input that is not UTF-8
        b"\x0a\x7fx",  # a length beyond the end
        b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",  # no tag
    ],
)
def test_message_that_is_none(channel: grpc.Channel, message: bytes) -> None:
    call = channel.unary_unary(MODEL_INFER, None, None)
    code, details = error_of(lambda: call(message, timeout=TIMEOUT_S))
    assert code is StatusCode.INVALID_ARGUMENT
    assert "not a valid message" in details


@pytest.mark.parametrize("method", ["ModelReady", "ModelMetadata"])
def test_text_that_is_not_utf8_in_other_calls(channel: grpc.Channel, method: str) -> None:
    call = channel.unary_unary(f"/inference.GRPCInferenceService/{method}", None, None)
    code, _ = error_of(lambda: call(b"\x0a\x02\xff\xfe", timeout=TIMEOUT_S))
    assert code is StatusCode.INVALID_ARGUMENT


def test_message_over_the_limit(stub: Any) -> None:
    large = np.zeros((1, MAX_REQUEST_BYTES // 4), np.float32)
    request = raw_request("echo-fp32", {"in_FP32": ("FP32", large)})
    code, details = error_of(lambda: stub.ModelInfer(request))
    assert code is StatusCode.RESOURCE_EXHAUSTED
    assert str(MAX_REQUEST_BYTES) in details


def test_compressed_bomb(stub: Any) -> None:
    large = np.zeros((1, MAX_REQUEST_BYTES), np.float32)
    request = raw_request("echo-fp32", {"in_FP32": ("FP32", large)})
    code, _ = error_of(lambda: stub.ModelInfer(request, compression=grpc.Compression.Gzip))
    assert code is StatusCode.RESOURCE_EXHAUSTED


def test_bad_item_harms_no_neighbour_in_its_batch(stub: Any, server: ServerProcess) -> None:
    """One request keeps the worker busy, so that the next three end up in one batch."""
    busy = stub.ModelInfer.future(lookup_request(1, work=100_000))
    server.wait_for_metric(1, "flambeau_in_flight_requests")
    server.wait_for_metric(0, "flambeau_queue_depth", model="lookup")
    good, bad, fine = (
        stub.ModelInfer.future(lookup_request(index, id=f"grpc-neighbour-{index}"))
        for index in (2, 99, 3)
    )
    server.wait_for_metric(3, "flambeau_queue_depth", model="lookup")
    assert not busy.done(), "the batch was never held back; give it more work"
    assert outputs(good.result(TIMEOUT_S))["value"].tolist() == [2]
    assert outputs(fine.result(TIMEOUT_S))["value"].tolist() == [3]
    code, details = error_of(lambda: bad.result(TIMEOUT_S))
    assert code is StatusCode.INTERNAL
    assert "model 'lookup' version 1 failed on this input" in details
    server.wait_for_log(message="backend failed", request_id="grpc-neighbour-99")
