"""Converts NumPy arrays to the protocol's messages and back.

In: the caller's arguments. Out: a `Call`, which either client sends, and its response as Python
values. Source: Open Inference Protocol v2 over gRPC; tensors travel as raw contents.

Rules:
- everything that can be checked locally is rejected before a message is built;
- a response that violates the protocol is a `ServerError`, never a wrong array;
- arrays of a response belong to the caller: writable, and not views of a message.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypedDict, TypeVar, Unpack

import numpy as np
import numpy.typing as npt

from flambeau.errors import InvalidRequestError, ServerError, from_status
from flambeau.metadata import ModelMetadata, from_message
from flambeau.protocol.accuracies import ACCURACIES
from flambeau.protocol.messages import inference as pb
from flambeau.protocol.strict import nearest_name
from flambeau.protocol.tensors import DATATYPES, TensorError, datatype_of, decode_raw, encode_raw

Answer = TypeVar("Answer")

Array = npt.NDArray[Any]
"""A NumPy array of any type; `Any` lets callers compute with it under a type checker."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Call(Generic[Answer]):
    """One call to a server: the method, the request, and the parser of the response."""

    method: str
    request: Any
    read: Callable[[Any], Answer]


class RequestOptions(TypedDict, total=False):
    """Options of any request to a model, as `Client.infer` describes them."""

    request_id: str
    artifact: str
    accuracy: str


class InferOptions(RequestOptions, total=False):
    """Options of `infer_call`."""

    version: str
    outputs: Sequence[str]
    bf16: Collection[str]


class CallOptions(RequestOptions, total=False):
    """Options of a call of a model whose version and datatypes are known."""

    timeout_s: float | None


class ModelOptions(CallOptions, total=False):
    """The same, and the outputs to return."""

    outputs: Sequence[str]


def live_call() -> Call[bool]:
    """Builds the call that asks if the process is up."""
    return Call(method="ServerLive", request=pb.ServerLiveRequest(), read=lambda reply: reply.live)


def ready_call(model: str | None, version: str) -> Call[bool]:
    """Builds the call that asks if a model or, without a model, the server is ready."""
    if model is None:
        return Call(method="ServerReady", request=pb.ServerReadyRequest(), read=_ready)
    request = pb.ModelReadyRequest(name=text("model", model), version=text("version", version))
    return Call(method="ModelReady", request=request, read=_ready)


def metadata_call(model: str, version: str) -> Call[ModelMetadata]:
    """Builds the call for the metadata of a model."""
    request = pb.ModelMetadataRequest(name=text("model", model), version=text("version", version))
    return Call(method="ModelMetadata", request=request, read=from_message)


def infer_call(
    model: str,
    inputs: Mapping[str, Array],
    *,
    version: str = "",
    outputs: Sequence[str] = (),
    request_id: str = "",
    bf16: Collection[str] = (),
    artifact: str = "",
    accuracy: str = "",
) -> Call[dict[str, Array]]:
    """Builds the call of an inference; the arguments are those of `Client.infer`.

    Raises:
        InvalidRequestError: an argument has a wrong type; the protocol cannot represent the type of
            an array; the accuracy is unknown, or is given with an artifact.
    """
    request = pb.ModelInferRequest(
        model_name=text("model", model),
        model_version=text("version", version),
        id=text("request_id", request_id),
    )
    _prefer(request, text("artifact", artifact), text("accuracy", accuracy))
    if not isinstance(inputs, Mapping):
        raise InvalidRequestError(
            f"inputs is a {type(inputs).__name__}; give arrays by input name, {{name: array}}"
        )
    bf16 = names("bf16", bf16)
    for name, array in inputs.items():
        text("the name of an input", name)
        datatype = tensor_datatype(name, array, bf16)
        request.inputs.add(name=name, datatype=datatype, shape=array.shape)
        try:
            request.raw_input_contents.append(encode_raw(datatype, array))
        except TensorError as error:
            raise InvalidRequestError(f"input '{name}': {error}") from error
    for name in names("outputs", outputs):
        request.outputs.add(name=name)
    return Call(method="ModelInfer", request=request, read=read_outputs)


def stream_call(
    model: str, inputs: Mapping[str, Array], **options: Unpack[InferOptions]
) -> Call[dict[str, Array]]:
    """Builds the call of an inference with any number of answers.

    Raises:
        InvalidRequestError: as `infer_call`.
    """
    call = infer_call(model, inputs, **options)
    return replace(call, method="ModelStreamInfer", read=read_streamed)


def text(name: str, value: object) -> str:
    """Returns an argument that must be text that UTF-8 can hold.

    Args:
        name: its name, for messages.
        value: its value.

    Raises:
        InvalidRequestError: it is not.
    """
    if not isinstance(value, str):
        raise InvalidRequestError(f"{name} is {value!r}; give text (str)")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequestError(
                f"{name} is {value!r}, which UTF-8 cannot hold; give text without half surrogates"
            ) from error
    return value


def names(name: str, value: object) -> Collection[str]:
    """Returns an argument that must be a collection of texts.

    Args:
        name: its name, for messages.
        value: its value.

    Raises:
        InvalidRequestError: it is not.
    """
    if isinstance(value, str) or not isinstance(value, Collection):
        raise InvalidRequestError(f"{name} is {value!r}; give a list of names, such as ['{value}']")
    for one in value:
        text(f"a name in {name}", one)
    return value


def _prefer(request: pb.ModelInferRequest, artifact: str, accuracy: str) -> None:
    """Adds the parameters that choose among the artifacts of a version."""
    if accuracy and accuracy not in ACCURACIES:
        raise InvalidRequestError(
            f"accuracy is '{accuracy}'{nearest_name(accuracy, ACCURACIES)}; give one of "
            f"{', '.join(ACCURACIES)}"
        )
    if artifact and accuracy:
        raise InvalidRequestError(
            f"artifact '{artifact}' and accuracy '{accuracy}' are both given; keep one"
        )
    for name, value in (("artifact", artifact), ("accuracy", accuracy)):
        if value:
            request.parameters[name].string_param = value


def tensor_datatype(name: str, array: object, bf16: Collection[str]) -> str:
    """Returns the protocol's datatype of an input.

    Args:
        name: name of the input.
        array: array of the input.
        bf16: names of the bfloat16 inputs, for which NumPy has no type: they are given as their
            bit patterns, in uint16 arrays.

    Raises:
        InvalidRequestError: the protocol has no such type, a bfloat16 input is not uint16, or the
            value is not an array.
    """
    if not isinstance(array, np.ndarray):
        raise InvalidRequestError(f"input '{name}' is a {type(array).__name__}; give a NumPy array")
    try:
        datatype = datatype_of(array)
    except TensorError as error:
        raise InvalidRequestError(f"input '{name}': {error}") from error
    if name not in bf16:
        return datatype
    if array.dtype != DATATYPES["BF16"]:
        raise InvalidRequestError(
            f"input '{name}' has datatype {datatype}; expected BF16, "
            "given as its bit pattern in a uint16 array"
        )
    return "BF16"


def read_outputs(reply: pb.ModelInferResponse) -> dict[str, Array]:
    """Returns the arrays of a response, by name, in the server's order.

    Raises:
        ServerError: raw contents are missing, or contradict their datatype or shape.
    """
    if len(reply.raw_output_contents) != len(reply.outputs):
        raise ServerError(
            f"the answer has {len(reply.outputs)} outputs and "
            f"{len(reply.raw_output_contents)} raw contents; this client reads raw contents only"
        )
    arrays: dict[str, Array] = {}
    for output, data in zip(reply.outputs, reply.raw_output_contents, strict=True):
        try:
            arrays[output.name] = decode_raw(output.datatype, output.shape, data).copy()
        except TensorError as error:
            raise ServerError(f"output '{output.name}' of the answer: {error}") from error
    return arrays


def read_streamed(reply: pb.ModelStreamInferResponse) -> dict[str, Array]:
    """Returns the arrays of one answer of many.

    Raises:
        ClientError: it is an error; the class is that of its status.
        ServerError: as `read_outputs`.
    """
    if reply.error_message:
        status = reply.infer_response.parameters["grpc_status"].string_param
        raise from_status(status or "INTERNAL", reply.error_message, 0.0)
    return read_outputs(reply.infer_response)


def single_or_all(outputs: dict[str, Any]) -> Any:
    """Returns the value of the only output, or all by name."""
    return next(iter(outputs.values())) if len(outputs) == 1 else outputs


def _ready(reply: pb.ServerReadyResponse | pb.ModelReadyResponse) -> bool:
    return reply.ready
