"""The calls of TensorFlow Serving's REST protocol and KServe's version 1, as paths of OpenAPI."""

from collections.abc import Mapping
from typing import Any

from services.gateway.edges.documentation.openapi_parts import (
    JSON,
    MODEL,
    VERSION,
    json_body,
    object_of,
    operation,
    path_parameter,
    reference,
    responses_of,
)


def predict_paths(errors: Mapping[str, str]) -> dict[str, Any]:
    """Returns the paths.

    Args:
        errors: those of an inference, by status.
    """
    unknown = {"404": "Unknown model, version or label"}
    label = path_parameter("label", "An alias of a version, such as canary.")
    states = operation("modelStates", "States of a model", responses_of("ModelStates", unknown))
    content = {JSON: {"schema": reference("ModelStates")}}
    states["responses"]["503"] = {"description": "It is not ready", "content": content}
    paths: dict[str, Any] = {
        "/v1/models": {
            "get": operation("modelNames", "Names of the models", responses_of("ModelNames", {}))
        },
        "/v1/models/{model}": {"parameters": [MODEL], "get": states},
    }
    for middle, parameters, suffix in (
        ("", [MODEL], ""),
        ("/versions/{version}", [MODEL, VERSION], "Version"),
        ("/labels/{label}", [MODEL, label], "Label"),
    ):
        base = f"/v1/models/{{model}}{middle}"
        if middle:
            found = responses_of("VersionStates", unknown)
            paths[base] = {
                "parameters": parameters,
                "get": operation(f"modelStates{suffix}", "State of a version", found),
            }
        paths[f"{base}/metadata"] = {
            "parameters": parameters,
            "get": operation(
                f"modelSignature{suffix}",
                "Inputs and outputs, as TensorFlow Serving tells them",
                responses_of("ModelSignature", {**unknown, "503": "It is not ready"}),
            ),
        }
        paths[f"{base}:predict"] = {
            "parameters": parameters,
            "post": operation(
                f"predict{suffix}",
                "Run inference, by rows or by columns",
                responses_of("Predicted", errors),
                requestBody=json_body("Predict"),
            ),
        }
    return paths


def predict_schemas() -> dict[str, Any]:
    """Returns the schemas that the paths refer to."""
    text = {"type": "string"}
    state = object_of(
        ["version", "state", "status"],
        version=text,
        state={"type": "string", "enum": ["LOADING", "AVAILABLE", "END"]},
        status=object_of(["error_code", "error_message"], error_code=text, error_message=text),
    )
    states = {"type": "array", "items": state}
    size = object_of(["size", "name"], size=text, name=text)
    shape = object_of(
        ["dim", "unknown_rank"],
        dim={"type": "array", "items": size},
        unknown_rank={"type": "boolean"},
    )
    info = object_of(["dtype", "tensor_shape", "name"], dtype=text, tensor_shape=shape, name=text)
    infos = {"type": "object", "additionalProperties": info}
    signature = object_of(
        ["inputs", "outputs", "method_name"], inputs=infos, outputs=infos, method_name=text
    )
    signatures = {"type": "object", "additionalProperties": signature}
    return {
        "ModelSignature": object_of(
            ["model_spec", "metadata"],
            model_spec=object_of(
                ["name", "signature_name", "version"],
                name=text,
                signature_name=text,
                version=text,
            ),
            metadata=object_of(
                ["signature_def"],
                signature_def=object_of(["signature_def"], signature_def=signatures),
            ),
        ),
        "ModelNames": object_of(["models"], models={"type": "array", "items": text}),
        "VersionStates": object_of(["model_version_status"], model_version_status=states),
        "ModelStates": object_of(
            ["name", "ready", "model_version_status"],
            name=text,
            ready={"type": "boolean"},
            model_version_status=states,
        ),
        "Predict": {
            "type": "object",
            "properties": {
                "signature_name": text,
                "instances": {"type": "array", "items": {}, "description": "One value a row."},
                "inputs": {"description": "The one input, or an object with all, by name."},
            },
            "oneOf": [{"required": ["instances"]}, {"required": ["inputs"]}],
        },
        "Predicted": {
            "type": "object",
            "properties": {"predictions": {"type": "array", "items": {}}, "outputs": {}},
        },
    }
