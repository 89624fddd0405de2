"""Metadata and states of models over TensorFlow Serving's gRPC protocol.

In: messages that name a model, and perhaps a version or a label. Out: its inputs and outputs as a
signature, or the states of its versions.
"""

from collections.abc import Sequence
from typing import Any

from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import Message
from google.protobuf.wrappers_pb2 import Int64Value

from flambeau.protocol.signature import TensorSpec
from protos import tensorflow_serving_pb2 as pb
from services.access.caller import Principal
from services.errors import InvalidRequestError
from services.gateway.edges.binary_texts import Reserve
from services.gateway.edges.grpc_large_answer import SlowAnswer
from services.gateway.edges.predict.grpc_predict import SERVICE as PREDICTION_SERVICE
from services.gateway.edges.predict.grpc_predict import named_version
from services.gateway.edges.predict.model_status import METHOD, SIGNATURES, STATES
from services.gateway.edges.predict.predict_codec import DEFAULT_SIGNATURE
from services.gateway.edges.predict.tensor_proto import shape_of, type_of
from services.gateway.edges.raw_parts import Part
from services.queueing.directory import Directory
from services.queueing.records import ServedVersion

SERVICE = "tensorflow.serving.ModelService"
UNKNOWN = 2
"""gRPC's code of an error that has none."""


class ModelCalls:
    """The calls beside inference.

    Args:
        directory: versions that are served.
    """

    def __init__(self, directory: Directory) -> None:
        self._directory = directory

    def calls(self) -> dict[str, tuple[SlowAnswer, type[Message]]]:
        """Returns the handler and the request message of each call, by the call's path."""
        return {
            f"/{PREDICTION_SERVICE}/GetModelMetadata": (self._metadata, pb.GetModelMetadataRequest),
            f"/{SERVICE}/GetModelStatus": (self._status, pb.GetModelStatusRequest),
        }

    async def _metadata(
        self, request: pb.GetModelMetadataRequest, principal: Principal, reserve: Reserve
    ) -> list[Part]:
        spec = request.model_spec
        principal.require_seen(spec.name)
        if list(request.metadata_field[:2]) != [SIGNATURES]:
            raise InvalidRequestError(f"metadata_field must be '{SIGNATURES}', the only one")
        served, signature = self._directory.resolve(spec.name, named_version(spec))
        found = pb.SignatureDef(
            inputs=_infos(signature.inputs),
            outputs=_infos(signature.outputs),
            method_name=METHOD,
        )
        packed = AnyMessage()
        packed.Pack(pb.SignatureDefMap(signature_def={DEFAULT_SIGNATURE: found}))
        version = Int64Value(value=served.lane.version)
        return _parts(
            pb.GetModelMetadataResponse(
                model_spec=pb.ModelSpec(name=spec.name, version=version),
                metadata={SIGNATURES: packed},
            ),
            reserve,
        )

    async def _status(
        self, request: pb.GetModelStatusRequest, principal: Principal, reserve: Reserve
    ) -> list[Part]:
        spec = request.model_spec
        principal.require_seen(spec.name)
        if version := named_version(spec):
            told = [self._directory.find(spec.name, version)]
        else:
            self._directory.versions(spec.name)  # an unknown model is NOT_FOUND
            told = sorted(self._directory.of_model(spec.name), key=lambda one: one.lane)[::-1]
        return _parts(
            pb.GetModelStatusResponse(model_version_status=map(_version_status, told)), reserve
        )


def _infos(tensors: Sequence[TensorSpec]) -> dict[str, pb.TensorInfo]:
    return {
        tensor.name: pb.TensorInfo(
            name=tensor.name,
            dtype=type_of(tensor.datatype),
            tensor_shape=shape_of(tensor.shape),
        )
        for tensor in tensors
    }


def _version_status(served: ServedVersion) -> pb.ModelVersionStatus:
    has_failed = served.state == "failed"
    return pb.ModelVersionStatus(
        version=served.lane.version,
        state=STATES[served.state],
        status=pb.StatusProto(
            error_code=UNKNOWN if has_failed else 0,
            error_message=served.reason if has_failed else "",
        ),
    )


def _parts(message: Any, reserve: Reserve) -> list[Part]:
    part: bytes = message.SerializeToString()
    reserve(len(part))
    return [part]
