"""The OpenAPI document of the REST edge, for people and tools; nothing here runs a request.

Source: Open Inference Protocol v2; the published OpenAPI file's defects (literal `$` in paths,
missing version-less paths, `data` required beside binary data) are not repeated.
"""

from typing import Any

from flambeau.protocol.accuracies import ACCURACIES
from flambeau.protocol.tensors import DATATYPES
from services.queueing.records import LOWEST_PRIORITY

_JSON = "application/json"
_BINARY = "application/octet-stream"


def openapi_document(version: str, *, with_jobs: bool) -> dict[str, Any]:
    """Builds the document.

    Args:
        version: version of the server.
        with_jobs: True if the server keeps jobs; without them, their calls only answer 501.
    """
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "flambeau",
            "version": version,
            "description": "Open Inference Protocol v2 with the binary tensor data extension.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": {
            **_server_paths(),
            **_model_paths("", []),
            **_versioned_paths(),
            **(_job_paths() if with_jobs else {}),
        },
        "components": {"schemas": _schemas() | (_job_schemas() if with_jobs else {})},
    }


def _server_paths() -> dict[str, Any]:
    ready = _responses("ServerReady", {"503": "Starting, draining, or a model was refused"})
    return {
        "/v2": {"get": _operation("serverMetadata", "Server metadata", "ServerMetadata")},
        "/v2/health/live": {"get": _operation("serverLive", "Server liveness", "ServerLive")},
        "/v2/health/ready": {
            "get": {"operationId": "serverReady", "summary": "Server readiness", "responses": ready}
        },
    }


def _versioned_paths() -> dict[str, Any]:
    return _model_paths("/versions/{version}", [_version_parameter()])


def _model_paths(middle: str, extra: list[dict[str, Any]]) -> dict[str, Any]:
    suffix = "Version" if middle else ""
    parameters = [_path_parameter("model", "Name of the model."), *extra]
    errors = {
        "404": "Unknown model or version",
        "503": "Not ready, or overloaded; the body has the reason, Retry-After the delay",
    }
    base = f"/v2/models/{{model}}{middle}"
    infer_errors = {
        "400": "The request is inconsistent, or does not match the model's signature",
        "408": "The body did not arrive within the timeout",
        "413": "The body is over the limit",
        "431": "The URL and headers are over the limit",
        **errors,
        "500": "The model failed",
        "501": "The server does not support the extension",
        "504": "The deadline passed",
    }
    return {
        base: {
            "parameters": parameters,
            "get": {
                "operationId": f"modelMetadata{suffix}",
                "summary": "Model metadata",
                "responses": _responses("ModelMetadata", errors),
            },
        },
        f"{base}/ready": {
            "parameters": parameters,
            "get": {
                "operationId": f"modelReady{suffix}",
                "summary": "Model readiness",
                "responses": _responses("ModelReady", errors),
            },
        },
        f"{base}/infer": {
            "parameters": parameters,
            "post": {
                "operationId": f"modelInfer{suffix}",
                "summary": "Run inference",
                "parameters": [*_INFER_HEADERS],
                "requestBody": {"required": True, "content": _content("InferRequest")},
                "responses": _responses("InferResponse", infer_errors, binary=True),
            },
        },
        **_generate_paths(base, suffix, parameters, infer_errors),
    }


def _generate_paths(
    base: str, suffix: str, parameters: list[dict[str, Any]], errors: dict[str, str]
) -> dict[str, Any]:
    one = _responses("Generated", errors)
    events = {"text/event-stream": {"schema": {"type": "string"}}}
    many = one | {"200": {"description": "An event for each answer, an object", "content": events}}
    body = {"required": True, "content": {_JSON: {"schema": _reference("GenerateRequest")}}}
    calls = (
        ("generate", "modelGenerate", "Run inference with exactly one answer", one),
        ("generate_stream", "modelGenerateStream", "Run inference with any number", many),
    )
    return {
        f"{base}/{path}": {
            "parameters": parameters,
            "post": {
                "operationId": f"{name}{suffix}",
                "summary": summary,
                "requestBody": body,
                "responses": responses,
            },
        }
        for path, name, summary, responses in calls
    }


def _job_paths() -> dict[str, Any]:
    number = _path_parameter("id", "Id from the response to the submission.")
    unknown = {"404": "Unknown or expired job", "501": "The server does not support jobs"}
    refused = {
        "400": "The request is inconsistent, or does not match the model's signature",
        "409": "The idempotency key belongs to another job",
        **unknown,
        "503": "The queue is full or unreachable",
    }
    return {
        **_job_submission("", [], refused, unknown),
        **_job_submission("/versions/{version}", [_version_parameter()], refused),
        "/v2/jobs/{id}": {
            "parameters": [number],
            "get": {
                "operationId": "getJob",
                "summary": "State of a job; `wait` blocks until it has finished",
                "parameters": [
                    {
                        "name": "wait",
                        "in": "query",
                        "description": "Longest wait, such as 30s or 500ms; a minute at most.",
                        "schema": {"type": "string"},
                    }
                ],
                "responses": _responses("Job", unknown),
            },
            "delete": {
                "operationId": "cancelJob",
                "summary": "Cancel a job that has not finished",
                "responses": _responses("Job", unknown),
            },
        },
        "/v2/jobs/{id}/result": {
            "parameters": [number],
            "get": {
                "operationId": "jobResult",
                "summary": "Result of a job, in the form of an inference response",
                "responses": _responses(
                    "InferResponse",
                    {**unknown, "409": "Not finished, or cancelled", "500": "The job failed"},
                    binary=True,
                ),
            },
        },
    }


def _job_submission(
    middle: str,
    extra: list[dict[str, Any]],
    refused: dict[str, str],
    unknown: dict[str, str] | None = None,
) -> dict[str, Any]:
    """Describes the submission of a model's jobs, and their list if `unknown` is given."""
    suffix = "Version" if middle else ""
    accepted = _responses("Job", refused)
    accepted["202"] = {**accepted["200"], "description": "Accepted; 200 if it was submitted before"}
    path: dict[str, Any] = {
        "parameters": [_path_parameter("model", "Name of the model."), *extra],
        "post": {
            "operationId": f"submitJob{suffix}",
            "summary": "Submit an asynchronous inference job",
            "parameters": [*_INFER_HEADERS, *_JOB_HEADERS],
            "requestBody": {"required": True, "content": _content("InferRequest")},
            "responses": accepted,
        },
    }
    if unknown is not None:
        path["get"] = {
            "operationId": "listJobs",
            "summary": "List the model's newest jobs, without results",
            "responses": _responses("Jobs", unknown),
        }
    return {f"/v2/models/{{model}}{middle}/jobs": path}


def _operation(operation: str, summary: str, schema: str) -> dict[str, Any]:
    return {"operationId": operation, "summary": summary, "responses": _responses(schema, {})}


def _responses(schema: str, errors: dict[str, str], *, binary: bool = False) -> dict[str, Any]:
    content = _content(schema) if binary else {_JSON: {"schema": _reference(schema)}}
    return {
        "200": {"description": "OK", "content": content},
        **{
            status: {"description": text, "content": {_JSON: {"schema": _reference("Error")}}}
            for status, text in errors.items()
        },
    }


def _content(schema: str) -> dict[str, Any]:
    return {_JSON: {"schema": _reference(schema)}, _BINARY: {"schema": {"type": "string"}}}


def _reference(schema: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{schema}"}


def _version_parameter() -> dict[str, Any]:
    return _path_parameter("version", "Number of the version, such as 3.")


def _path_parameter(name: str, description: str) -> dict[str, Any]:
    return {
        "name": name,
        "in": "path",
        "required": True,
        "description": description,
        "schema": {"type": "string"},
    }


def _header(name: str, description: str, **schema: Any) -> dict[str, Any]:
    return {
        "name": name,
        "in": "header",
        "required": False,
        "description": description,
        "schema": schema,
    }


_INFER_HEADERS = (
    _header(
        "Inference-Header-Content-Length",
        "Bytes of JSON before the binary data; 0 for one raw tensor.",
        type="integer",
        minimum=0,
    ),
    _header(
        "X-Request-Timeout-Ms",
        "Timeout in milliseconds, whole or decimal, from the last byte of the request; then the "
        "response is 504. The parameter `timeout` is the same in microseconds; the smaller counts.",
        type="number",
        exclusiveMinimum=0,
    ),
    _header(
        "X-Request-Id",
        "Returned in the response and logged; generated without it and the body's `id`.",
        type="string",
        maxLength=128,
    ),
)


_JOB_HEADERS = (
    _header(
        "Idempotency-Key",
        "Submissions with the same key create one job.",
        type="string",
        maxLength=255,
    ),
    _header(
        "Webhook-Url",
        "Called when the job has finished, if its host is among the server's `webhook_hosts`.",
        type="string",
        maxLength=2048,
    ),
)


def _object(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": required, "properties": properties}


def _array(schema: str) -> dict[str, Any]:
    return {"type": "array", "items": _reference(schema)}


_PARAMETERS: dict[str, Any] = {
    "timeout": {
        "type": "integer",
        "minimum": 0,
        "description": "Timeout in microseconds; 0 for none of its own.",
    },
    "priority": {
        "type": "integer",
        "minimum": 0,
        "maximum": LOWEST_PRIORITY,
        "description": "1 is the highest priority; 0 for the default.",
    },
    "artifact": {
        "type": "string",
        "description": "Name of the loaded artifact that must run the request.",
    },
    "accuracy": {
        "type": "string",
        "enum": list(ACCURACIES),
        "description": "Least accuracy: the fastest loaded artifact that has it runs the request.",
    },
    "sequence_id": {
        "type": ["integer", "string"],
        "description": "The sequence that the request is a step of; 0 or empty for none.",
    },
    "sequence_start": {"type": "boolean", "description": "True for its first step."},
    "sequence_end": {"type": "boolean", "description": "True for its last step."},
}
"""Request parameters of its timeout, priority, artifact and sequence."""

_OUTPUT_PARAMETERS: dict[str, Any] = {
    "binary_data": {"type": "boolean", "description": "True for binary data behind the JSON."},
    "classification": {
        "type": "integer",
        "minimum": 0,
        "description": "Number of largest values to return as `value:index[:label]`; 0 for none.",
    },
}


def _schemas() -> dict[str, Any]:
    text, flag = {"type": "string"}, {"type": "boolean"}
    texts = {"type": "array", "items": text}
    shape = {"type": "array", "items": {"type": "integer"}}
    datatype = {"type": "string", "enum": list(DATATYPES)}
    parameters = {
        "type": "object",
        "additionalProperties": {"type": ["string", "number", "boolean"]},
    }
    data = {"type": "array", "items": {}, "description": "Nested by shape, or flat (row-major)."}
    tensor = {"name": text, "shape": shape, "datatype": datatype, "parameters": parameters}
    return {
        "Error": _object(["error"], error=text),
        "GenerateRequest": {
            "type": "object",
            "description": "Inputs by name, as elements or lists; all other keys are parameters.",
        },
        "Generated": {
            **_object(
                ["model_name", "model_version"], model_name=text, model_version=text, id=text
            ),
            "description": "Outputs by name, as elements or flat lists.",
        },
        "ServerLive": _object(["live"], live=flag),
        "ServerReady": _object(["ready"], ready=flag, reason=text),
        "ServerMetadata": _object(
            ["name", "version", "extensions"], name=text, version=text, extensions=texts
        ),
        "ModelReady": _object(["name", "ready"], name=text, ready=flag),
        "ModelMetadata": _object(
            ["name", "platform", "inputs", "outputs"],
            name=text,
            versions=texts,
            platform=text,
            inputs=_array("TensorMetadata"),
            outputs=_array("TensorMetadata"),
            properties={"type": "object", "additionalProperties": text},
        ),
        "TensorMetadata": _object(
            ["name", "datatype", "shape"], name=text, datatype=datatype, shape=shape
        ),
        "InferRequest": _object(
            ["inputs"],
            id=text,
            parameters={**parameters, "properties": _PARAMETERS},
            inputs=_array("Tensor"),
            outputs=_array("RequestedOutput"),
        ),
        "RequestedOutput": _object(
            ["name"], name=text, parameters={**parameters, "properties": _OUTPUT_PARAMETERS}
        ),
        "Tensor": _object(["name", "shape", "datatype"], **tensor, data=data),
        "InferResponse": _object(
            ["model_name", "outputs"],
            model_name=text,
            model_version=text,
            id=text,
            outputs=_array("Tensor"),
        ),
    }


def _job_schemas() -> dict[str, Any]:
    text, moment = {"type": "string"}, {"type": "string", "format": "date-time"}
    return {
        "Job": _object(
            ["id", "model_name", "model_version", "state", "created_at", "deadline"],
            id=text,
            model_name=text,
            model_version=text,
            state={
                "type": "string",
                "enum": ["queued", "running", "done", "failed", "cancelled", "expired"],
            },
            created_at=moment,
            deadline=moment,
            finished_at=moment,
            error=text,
            result=_reference("InferResponse"),
            result_url=text,
        ),
        "Jobs": _object(["jobs"], jobs=_array("Job")),
    }
