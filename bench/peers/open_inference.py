"""Requests and responses of the Open Inference Protocol v2 for our server, Triton and MLServer.

Its three bodies: JSON; JSON followed by the tensors' bytes (Triton's binary tensor data
extension, HTTP only); and the gRPC message with raw contents.
"""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from bench.peers.peer import Array, Ask, Floats, Form
from bench.peers.plain_json import nested
from bench.peers.served_model import ServedModel
from protos import open_inference_pb2 as pb

FORMS: dict[Form, str] = {
    Form.JSON: "Open Inference Protocol, JSON",
    Form.BINARY: "Open Inference Protocol, binary tensor data",
    Form.GRPC: "Open Inference Protocol, raw contents",
}
INFER = "/inference.GRPCInferenceService/ModelInfer"
HEADER_LENGTH = "Inference-Header-Content-Length"


def infer(model: ServedModel, form: Form, rows: Array) -> Ask:
    """Requests the single output for some rows."""
    match form:
        case Form.JSON:
            return _json(model, rows)
        case Form.BINARY:
            return _binary(model, rows)
        case Form.GRPC:
            return _grpc(model, rows)


def _path(model: ServedModel) -> str:
    return f"/v2/models/{model.name}/infer"


def _input(model: ServedModel, rows: Array) -> dict[str, Any]:
    return {"name": model.input, "datatype": model.datatype, "shape": list(rows.shape)}


def _json(model: ServedModel, rows: Array) -> Ask:
    return Ask(
        path=_path(model),
        body=json.dumps(
            {"inputs": [_input(model, rows) | {"data": nested(rows.ravel())}]}
        ).encode(),
        headers={"Content-Type": "application/json"},
        read=_read_json,
    )


def _read_json(headers: Mapping[str, str], body: bytes) -> Floats:
    output = json.loads(body)["outputs"][0]
    return np.array(output["data"], np.float32).reshape(output["shape"])


def _binary(model: ServedModel, rows: Array) -> Ask:
    data = rows.tobytes()
    tensor = _input(model, rows) | {"parameters": {"binary_data_size": len(data)}}
    head = {"inputs": [tensor], "parameters": {"binary_data_output": True}}
    text = json.dumps(head).encode()
    return Ask(
        path=_path(model),
        body=text + data,
        headers={"Content-Type": "application/octet-stream", HEADER_LENGTH: str(len(text))},
        read=_read_binary,
    )


def _read_binary(headers: Mapping[str, str], body: bytes) -> Floats:
    length = int(headers[HEADER_LENGTH.lower()])
    shape = json.loads(body[:length])["outputs"][0]["shape"]
    return np.frombuffer(body[length:], np.float32).reshape(shape)


def _grpc(model: ServedModel, rows: Array) -> Ask:
    message = pb.ModelInferRequest(model_name=model.name)
    message.inputs.add(name=model.input, datatype=model.datatype, shape=rows.shape)
    message.raw_input_contents.append(rows.tobytes())
    return Ask(path=INFER, body=message.SerializeToString(), read=_read_grpc)


def _read_grpc(headers: Mapping[str, str], body: bytes) -> Floats:
    message = pb.ModelInferResponse.FromString(body)
    output = message.outputs[0]
    if message.raw_output_contents:
        return np.frombuffer(message.raw_output_contents[0], np.float32).reshape(output.shape)
    return np.array(output.contents.fp32_contents, np.float32).reshape(output.shape)
