"""gRPC at wire level: messages made with tritonclient's stubs, not with ours."""

from collections.abc import Callable, Sequence
from typing import Any

import grpc
import numpy as np

from tests.e2e.tensor_values import CONTENTS_FIELDS, VALUES, Array
from tests.fixtures.triton_messages import pb

TIMEOUT_S = 60.0
MODEL_INFER = "/inference.GRPCInferenceService/ModelInfer"


def raw_request(model: str, inputs: dict[str, tuple[str, Array]], **fields: Any) -> Any:
    """Builds a ModelInferRequest with `raw_input_contents`; inputs: (datatype, array) by name."""
    request = pb.ModelInferRequest(model_name=model, **fields)
    for name, (datatype, array) in inputs.items():
        request.inputs.add(name=name, datatype=datatype, shape=array.shape)
        request.raw_input_contents.append(array.tobytes())
    return request


def typed_request(model: str, inputs: dict[str, tuple[str, Array]], **fields: Any) -> Any:
    """Builds the same with typed `contents`."""
    request = pb.ModelInferRequest(model_name=model, **fields)
    for name, (datatype, array) in inputs.items():
        tensor = request.inputs.add(name=name, datatype=datatype, shape=array.shape)
        getattr(tensor.contents, CONTENTS_FIELDS[datatype]).extend(array.ravel().tolist())
    return request


def linear_request(*rows: Sequence[float], **fields: Any) -> Any:
    """Builds a request to a linear model."""
    return raw_request("linear", {"x": ("FP32", np.array(rows, np.float32))}, **fields)


def lookup_request(index: int, work: int = 0, **fields: Any) -> Any:
    """Builds a request to a `slow_lookup` model, one row."""
    inputs = {"work": ("INT64", np.array([work])), "index": ("INT64", np.array([index]))}
    return raw_request("lookup", inputs, **fields)


def outputs(response: Any) -> dict[str, Array]:
    """Returns the output arrays of a response in either form; fails on a mix of both."""
    found: dict[str, Array] = {}
    for position, output in enumerate(response.outputs):
        dtype = VALUES[output.datatype].dtype
        if response.raw_output_contents:
            assert not output.HasField("contents")
            array = np.frombuffer(response.raw_output_contents[position], dtype)
        else:
            array = np.array(getattr(output.contents, CONTENTS_FIELDS[output.datatype]), dtype)
        found[output.name] = array.reshape(output.shape)
    return found


def error_of(call: Callable[[], object]) -> tuple[grpc.StatusCode, str]:
    """Returns status and message of a call that must fail."""
    try:
        answer = call()
    except grpc.RpcError as error:
        return error.code(), error.details() or ""
    raise AssertionError(f"no error but {answer}")


def trailing(error_or_call: Any) -> dict[str, str]:
    """Returns the trailing metadata of a finished call."""
    return {item.key: item.value for item in error_or_call.trailing_metadata()}
