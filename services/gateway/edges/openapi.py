"""The OpenAPI document of the REST edge, for people and tools; nothing here runs a request.

Source: Open Inference Protocol v2; the published OpenAPI file's defects (literal `$` in paths,
missing version-less paths, `data` required beside binary data) are not repeated.
"""

from typing import Any

from flambeau.protocol.accuracies import ACCURACIES
from flambeau.protocol.tensors import DATATYPES
from services.gateway.edges.documentation.administration_paths import (
    administration_paths,
    administration_schemas,
)
from services.gateway.edges.documentation.openapi_parts import (
    MODEL,
    VERSION,
    array_of,
    content_of,
    json_body,
    object_of,
    operation,
    path_parameter,
    reference,
    responses_of,
)
from services.gateway.edges.documentation.predict_paths import predict_paths, predict_schemas
from services.gateway.edges.documentation.region_paths import region_paths, region_schemas
from services.gateway.edges.documentation.registry_paths import registry_paths, registry_schemas
from services.queueing.records import LOWEST_PRIORITY


def openapi_document(
    version: str, *, with_jobs: bool, with_regions: bool = False, with_registry: bool = False
) -> dict[str, Any]:
    """Builds the document.

    Args:
        version: version of the server.
        with_jobs: True if the server keeps jobs; without them, their calls only answer 501.
        with_regions: True if callers may register shared memory; likewise.
        with_registry: True if the server has a registry; likewise.
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
            **(region_paths() if with_regions else {}),
            **(registry_paths() if with_registry else {}),
            **administration_paths(),
            **predict_paths(_INFER_ERRORS),
        },
        "components": {
            "schemas": _schemas()
            | (_job_schemas() if with_jobs else {})
            | (region_schemas() if with_regions else {})
            | (registry_schemas() if with_registry else {})
            | administration_schemas()
            | predict_schemas(),
            "parameters": _HEADERS,
        },
    }


def _server_paths() -> dict[str, Any]:
    ready = responses_of("ServerReady", {"503": "Starting, draining, or a model was refused"})
    return {
        "/v2": {
            "get": operation(
                "serverMetadata", "Server metadata", responses_of("ServerMetadata", {})
            )
        },
        "/v2/health/live": {
            "get": operation("serverLive", "Server liveness", responses_of("ServerLive", {}))
        },
        "/v2/health/ready": {"get": operation("serverReady", "Server readiness", ready)},
    }


_ERRORS = {
    "404": "Unknown model or version",
    "503": "Not ready, or overloaded; the body has the reason, Retry-After the delay",
}
_INFER_ERRORS = {
    "400": "The request is inconsistent, or does not match the model's signature",
    "408": "The body did not arrive within the timeout",
    "413": "The body is over the limit",
    "431": "The URL and headers are over the limit",
    **_ERRORS,
    "500": "The model failed",
    "501": "The server does not support the extension",
    "504": "The deadline passed",
}


def _versioned_paths() -> dict[str, Any]:
    return _model_paths("/versions/{version}", [VERSION])


def _model_paths(middle: str, extra: list[dict[str, Any]]) -> dict[str, Any]:
    suffix = "Version" if middle else ""
    parameters = [MODEL, *extra]
    base = f"/v2/models/{{model}}{middle}"
    return {
        base: {
            "parameters": parameters,
            "get": {
                "operationId": f"modelMetadata{suffix}",
                "summary": "Model metadata",
                "responses": responses_of("ModelMetadata", _ERRORS),
            },
        },
        f"{base}/ready": {
            "parameters": parameters,
            "get": {
                "operationId": f"modelReady{suffix}",
                "summary": "Model readiness",
                "responses": responses_of("ModelReady", _ERRORS),
            },
        },
        f"{base}/infer": {
            "parameters": parameters,
            "post": {
                "operationId": f"modelInfer{suffix}",
                "summary": "Run inference",
                "parameters": [*INFER_HEADERS],
                "requestBody": {"required": True, "content": content_of("InferRequest")},
                "responses": responses_of("InferResponse", _INFER_ERRORS, binary=True),
            },
        },
        **_generate_paths(base, suffix, parameters, _INFER_ERRORS),
    }


def _generate_paths(
    base: str, suffix: str, parameters: list[dict[str, Any]], errors: dict[str, str]
) -> dict[str, Any]:
    one = responses_of("Generated", errors)
    events = {"text/event-stream": {"schema": {"type": "string"}}}
    many = one | {"200": {"description": "An event for each answer, an object", "content": events}}
    body = json_body("GenerateRequest")
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
    number = path_parameter("id", "Id from the response to the submission.")
    unknown = {"404": "Unknown or expired job", "501": "The server does not support jobs"}
    refused = {
        "400": "The request is inconsistent, or does not match the model's signature",
        "409": "The idempotency key belongs to another job",
        **unknown,
        "503": "The queue is full or unreachable",
    }
    return {
        **_job_submission("", [], refused, unknown),
        **_job_submission("/versions/{version}", [VERSION], refused),
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
                "responses": responses_of("Job", unknown),
            },
            "delete": {
                "operationId": "cancelJob",
                "summary": "Cancel a job that has not finished",
                "responses": responses_of("Job", unknown),
            },
        },
        "/v2/jobs/{id}/result": {
            "parameters": [number],
            "get": {
                "operationId": "jobResult",
                "summary": "Result of a job, in the form of an inference response",
                "responses": responses_of(
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
    accepted = responses_of("Job", refused)
    accepted["202"] = {**accepted["200"], "description": "Accepted; 200 if it was submitted before"}
    path: dict[str, Any] = {
        "parameters": [MODEL, *extra],
        "post": {
            "operationId": f"submitJob{suffix}",
            "summary": "Submit an asynchronous inference job",
            "parameters": [*INFER_HEADERS, *_JOB_HEADERS],
            "requestBody": {"required": True, "content": content_of("InferRequest")},
            "responses": accepted,
        },
    }
    if unknown is not None:
        path["get"] = {
            "operationId": "listJobs",
            "summary": "List the model's newest jobs, without results",
            "responses": responses_of("Jobs", unknown),
        }
    return {f"/v2/models/{{model}}{middle}/jobs": path}


def _header(name: str, description: str, **schema: Any) -> dict[str, Any]:
    return {
        "name": name,
        "in": "header",
        "required": False,
        "description": description,
        "schema": schema,
    }


_HEADERS = {
    "HeaderLength": _header(
        "Inference-Header-Content-Length",
        "Bytes of JSON before the binary data; 0 for one raw tensor.",
        type="integer",
        minimum=0,
    ),
    "Timeout": _header(
        "X-Request-Timeout-Ms",
        "Timeout in milliseconds, whole or decimal, from the last byte of the request; then the "
        "response is 504. The parameter `timeout` is the same in microseconds; the smaller counts.",
        type="number",
        exclusiveMinimum=0,
    ),
    "RequestId": _header(
        "X-Request-Id",
        "Returned in the response and logged; generated without it and the body's `id`.",
        type="string",
        maxLength=128,
    ),
}
INFER_HEADERS = tuple({"$ref": f"#/components/parameters/{name}"} for name in _HEADERS)
"""The headers of an inference, as parameters of its path."""


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
    values = {"type": ["string", "number", "boolean"]}
    parameters = {"type": "object", "additionalProperties": values}
    data = {"type": "array", "items": {}, "description": "Nested by shape, or flat (row-major)."}
    tensor = {"name": text, "shape": shape, "datatype": datatype, "parameters": parameters}
    return {
        "Error": object_of(["error"], error=text),
        "GenerateRequest": {
            "type": "object",
            "description": "Inputs by name, as elements or lists; all other keys are parameters.",
        },
        "Generated": {
            **object_of(
                ["model_name", "model_version"], model_name=text, model_version=text, id=text
            ),
            "description": "Outputs by name, as elements or flat lists.",
        },
        "ServerLive": object_of(["live"], live=flag),
        "ServerReady": object_of(["ready"], ready=flag, reason=text),
        "ServerMetadata": object_of(
            ["name", "version", "extensions"], name=text, version=text, extensions=texts
        ),
        "ModelReady": object_of(["name", "ready"], name=text, ready=flag),
        "ModelMetadata": object_of(
            ["name", "platform", "inputs", "outputs"],
            name=text,
            versions=texts,
            platform=text,
            inputs=array_of("TensorMetadata"),
            outputs=array_of("TensorMetadata"),
            properties={"type": "object", "additionalProperties": text},
        ),
        "TensorMetadata": object_of(
            ["name", "datatype", "shape"], name=text, datatype=datatype, shape=shape
        ),
        "InferRequest": object_of(
            ["inputs"],
            id=text,
            parameters=reference("Parameters"),
            inputs=array_of("Tensor"),
            outputs=array_of("RequestedOutput"),
        ),
        "Parameters": {**parameters, "properties": _PARAMETERS},
        "RequestedOutput": object_of(
            ["name"], name=text, parameters={**parameters, "properties": _OUTPUT_PARAMETERS}
        ),
        "Tensor": object_of(["name", "shape", "datatype"], **tensor, data=data),
        "InferResponse": object_of(
            ["model_name", "outputs"],
            model_name=text,
            model_version=text,
            id=text,
            outputs=array_of("Tensor"),
        ),
    }


def _job_schemas() -> dict[str, Any]:
    text, moment = {"type": "string"}, {"type": "string", "format": "date-time"}
    return {
        "Job": object_of(
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
            result=reference("InferResponse"),
            result_url=text,
        ),
        "Jobs": object_of(["jobs"], jobs=array_of("Job")),
    }
