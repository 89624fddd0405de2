"""One `Predict` of TensorFlow Serving's gRPC protocol, from request message to response.

In: a message that names a model, and perhaps a version or a label, and has its inputs by name. Out:
`PredictResponse`, or a gRPC status. Labels are aliases. Everything else is that of `ModelInfer`.
"""

from typing import TYPE_CHECKING, NamedTuple

from google.protobuf.wrappers_pb2 import Int64Value

from model_store.safety.protobuf_fields import BYTES, fields_of
from protos import open_inference_pb2 as inference_pb
from protos import tensorflow_serving_pb2 as pb
from services.errors import InvalidRequestError, NotFoundError
from services.gateway.admission import InferCall, InputTensor
from services.gateway.edges.binary_texts import Reserve
from services.gateway.edges.grpc_infer import InferenceCall
from services.gateway.edges.grpc_large_answer import is_large_message
from services.gateway.edges.grpc_raw import Allowance
from services.gateway.edges.predict.predict_codec import DEFAULT_SIGNATURE
from services.gateway.edges.predict.tensor_proto import named_parts, read_tensor, tensor_parts
from services.gateway.edges.raw_parts import Part
from services.gateway.edges.shared_memory.grpc_regions import InRegions
from services.gateway.refusals import naming_input
from services.gateway.sliced_work import Slices, at_once
from services.gateway.triton.classes import Classes
from services.queueing.records import InferReply
from services.wire.body import Body
from services.wire.http2.grpc_call import parsed

if TYPE_CHECKING:
    from services.access.caller import Caller

SERVICE = "tensorflow.serving.PredictionService"
MAX_NAMES_BYTES = 64 * 1024
"""Most bytes of names in a message: of the model, its version, inputs and outputs."""
_AT_ONCE_BYTES = 4096
"""Largest message that is read in one turn: at most 2,048 fields, in some 1.5 ms."""
_OUTPUTS = b"\x0a"
"""Tag of `PredictResponse.outputs`."""
_BROKEN = "the request is not a valid message of this call: broken, or text not in UTF-8"


class Asked(NamedTuple):
    """A request message whose tensors are not read yet."""

    request: inference_pb.ModelInferRequest
    """What it asks for, without inputs."""
    entries: list[tuple[int, int]]
    """Start and end of each input's entry."""
    allowance: Allowance


def named_version(spec: pb.ModelSpec) -> str:
    """Returns the version that a message asks for, as a number or an alias; empty for none.

    Raises:
        NotFoundError: its label is a number.
    """
    if spec.WhichOneof("version_choice") == "version":
        return str(spec.version.value)
    if spec.version_label.isdecimal():
        raise NotFoundError(
            f"model '{spec.name[:128]}' has no label '{spec.version_label[:128]}': a number names "
            "a version"
        )
    return spec.version_label


def read_request(message: memoryview) -> Asked:
    """Finds the parts of a request.

    Raises:
        InvalidRequestError: it is malformed or exceeds a limit; or asks for another signature.
        NotFoundError: its label is a number.
    """
    allowance, names = Allowance(), 0
    model_spec = memoryview(b"")
    entries: list[tuple[int, int]] = []
    filters: list[memoryview] = []
    try:
        for number, wire, start, end in fields_of(message, 0, len(message)):
            allowance.take()
            if wire != BYTES:
                continue
            if number == 2:
                entries.append((start, end))
            elif number in (1, 3):
                names += end - start
                if number == 1:
                    model_spec = message[start:end]
                else:
                    filters.append(message[start:end])
        _check_names(names)
        outputs = [str(name, "utf-8") for name in filters]
    except (ValueError, IndexError) as error:
        raise InvalidRequestError(_BROKEN) from error
    spec = parsed(pb.ModelSpec, bytes(model_spec))
    if spec.signature_name not in ("", DEFAULT_SIGNATURE):
        raise InvalidRequestError(
            f"signature_name is '{spec.signature_name[:128]}'; models here have "
            f"'{DEFAULT_SIGNATURE}' alone"
        )
    request = inference_pb.ModelInferRequest(
        model_name=spec.name,
        model_version=named_version(spec),
        outputs=[
            inference_pb.ModelInferRequest.InferRequestedOutputTensor(name=o) for o in outputs
        ],
    )
    return Asked(request, entries, allowance)


def _check_names(size: int) -> None:
    if size > MAX_NAMES_BYTES:
        raise InvalidRequestError(
            f"the names in the message have {size} bytes, and {MAX_NAMES_BYTES} is the limit"
        )


def read_inputs(message: memoryview, asked: Asked, reserve: Reserve) -> Slices[list[InputTensor]]:
    """Reads the tensors of a request.

    Raises:
        InvalidRequestError: they are invalid; the message says why.
        BufferFullError: there is no room for them.
    """
    inputs, names = [], 0
    try:
        for start, end in asked.entries:
            key, tensor = memoryview(b""), (start, start)
            for number, wire, at, after in fields_of(message, start, end):
                asked.allowance.take_inner()
                if wire == BYTES and number == 1:
                    key = message[at:after]
                elif wire == BYTES and number == 2:
                    tensor = at, after
            names += len(key)
            _check_names(names)
            name = str(key, "utf-8")
            with naming_input(name):
                datatype, array = yield from read_tensor(message, *tensor, asked.allowance, reserve)
            inputs.append(InputTensor(name=name, datatype=datatype, array=array))
    except (ValueError, IndexError) as error:
        raise InvalidRequestError(_BROKEN) from error
    return inputs


def encode(
    reply: InferReply,
    request: inference_pb.ModelInferRequest | InRegions,
    reserve: Reserve,
    classes: Classes | None = None,
) -> bytes | Slices[list[Part]]:
    """Serialises a response; returns slices of the work if it is large."""
    if is_large_message(list(reply.outputs.values()), typed=True):
        return _parts(reply, reserve)
    return b"".join(at_once(_parts(reply, lambda _: None)))


def _parts(reply: InferReply, reserve: Reserve) -> Slices[list[Part]]:
    reserve(sum(array.nbytes for array in reply.outputs.values()))
    lane = reply.lane
    version = Int64Value(value=lane.version)
    spec = pb.ModelSpec(name=lane.model, version=version, signature_name=DEFAULT_SIGNATURE)
    parts: list[Part] = [pb.PredictResponse(model_spec=spec).SerializeToString()]
    for name, array in reply.outputs.items():
        tensor = yield from tensor_parts(reply.datatypes[name], array, reserve)
        parts += named_parts(_OUTPUTS, name, tensor)
    return parts


class PredictCall(InferenceCall):
    """One inference."""

    __slots__ = ("_asked",)
    _asked: Asked

    def begin_in_turn(self, body: Body, received_at: float) -> None:
        """Finds the parts of the message, which names the model, and starts the inference."""
        route = self._route
        try:
            asked = self._asked = read_request(memoryview(body))
        except (InvalidRequestError, NotFoundError) as error:
            self.refuse(error)
            return
        self._request = request = asked.request
        inference = self._inference = route.path.open(
            self, received_at, route.given_id, request.model_name, request.model_version,
            route.traceparent,
        )  # fmt: skip
        inference.begin(body, route.authorization)

    def decode(self, body: Body, caller: "Caller | None") -> InferCall | Slices[InferCall]:
        """Reads the tensors."""
        slices = self._decode(memoryview(body), caller)
        return at_once(slices) if len(body) <= _AT_ONCE_BYTES else slices

    def _decode(self, message: memoryview, caller: "Caller | None") -> Slices[InferCall]:
        inputs = yield from read_inputs(message, self._asked, self.reserve)
        return self._call(self._asked.request, inputs, caller)
