"""Parts of an OpenAPI document: schemas, bodies, responses and parameters of paths."""

from collections.abc import Mapping
from typing import Any

JSON = "application/json"
_BINARY = "application/octet-stream"
DONE: Mapping[str, Any] = {"200": {"description": "OK"}}
"""The response of a call that says nothing."""


def reference(schema: str) -> dict[str, str]:
    """Refers to a schema of the document."""
    return {"$ref": f"#/components/schemas/{schema}"}


def object_of(required: list[str], **properties: Any) -> dict[str, Any]:
    """Returns the schema of an object with some members."""
    return {"type": "object", "required": required, "properties": properties}


def array_of(schema: str) -> dict[str, Any]:
    """Returns the schema of a list."""
    return {"type": "array", "items": reference(schema)}


def content_of(schema: str) -> dict[str, Any]:
    """Describes a body that is JSON, or JSON with binary data."""
    return {JSON: {"schema": reference(schema)}, _BINARY: {"schema": {"type": "string"}}}


def json_body(schema: str, *, required: bool = True) -> dict[str, Any]:
    """Describes the body of a request that is JSON."""
    return {"required": required, "content": {JSON: {"schema": reference(schema)}}}


def responses_of(schema: str, errors: Mapping[str, str], *, binary: bool = False) -> dict[str, Any]:
    """Describes the responses of a call: the one that succeeds, and errors by status."""
    content = content_of(schema) if binary else {JSON: {"schema": reference(schema)}}
    return {"200": {"description": "OK", "content": content}, **errors_of(errors)}


def errors_of(errors: Mapping[str, str]) -> dict[str, Any]:
    """Describes responses that are errors, by status."""
    content = {JSON: {"schema": reference("Error")}}
    return {status: {"description": text, "content": content} for status, text in errors.items()}


def operation(name: str, summary: str, responses: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """Describes a call.

    Args:
        name: its `operationId`.
        summary: one line for people.
        responses: by status.
        more: other members, such as `requestBody`.
    """
    return {"operationId": name, "summary": summary, **more, "responses": responses}


def path_parameter(name: str, description: str) -> dict[str, Any]:
    """Describes a place in a path."""
    return {
        "name": name,
        "in": "path",
        "required": True,
        "description": description,
        "schema": {"type": "string"},
    }


MODEL = path_parameter("model", "Name of the model.")
VERSION = path_parameter("version", "Number of the version, such as 3, or one of its aliases.")
