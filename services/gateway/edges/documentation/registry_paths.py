"""The calls of the registry, as paths of an OpenAPI document."""

from typing import Any

from services.gateway.edges.documentation.alias_paths import alias_paths, alias_schemas
from services.gateway.edges.documentation.openapi_parts import (
    MODEL,
    VERSION,
    array_of,
    errors_of,
    json_body,
    object_of,
    operation,
    path_parameter,
    responses_of,
)
from services.gateway.edges.documentation.rollout_paths import rollout_paths, rollout_schemas

_BASE = "/v1/registry/"
_COUNT: dict[str, Any] = {"type": "integer", "minimum": 0}
_NUMBER: dict[str, Any] = {"type": "integer", "minimum": 1, "maximum": 999_999_999}
_TEXT: dict[str, Any] = {"type": "string"}
_UPLOAD = path_parameter("id", "The id of the upload.")
_FILE = path_parameter("file", "Name of the file.")
_UNKNOWN = {
    "403": "The caller may not, or would need a credential",
    "404": "Unknown, or the caller has no scope of the registry on the model",
    "503": "Too many calls, or the store cannot be reached",
}
_CHANGING = {
    **_UNKNOWN,
    "400": "The body is not as described",
    "409": "The state of the model, the version or the upload does not allow it",
    "507": "The disk is full",
}
_FILES = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}


def registry_paths() -> dict[str, Any]:
    """Returns the paths: of models and versions, of uploads, and of events."""
    found = {
        **_model_paths(),
        **_version_paths(),
        **_upload_paths(),
        **_event_paths(),
    }
    models = _BASE + "models/"
    return (
        {_BASE + path: item for path, item in found.items()}
        | alias_paths(models, _CHANGING, _LIMIT)
        | rollout_paths(models)
    )


def _query(name: str, description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "query", "description": description, "schema": schema}


_LIMIT = _query("limit", "Entries of a page.", {"type": "integer", "minimum": 1, "maximum": 100})


def _model_paths() -> dict[str, Any]:
    after = _query("after", "The name before the first one.", _TEXT)
    before = _query("before", "The version behind the first one.", _COUNT)
    changed = responses_of("RegistryAnnotations", _CHANGING)
    earlier = _query("before", "The generation behind the first one.", _COUNT)
    at = _query("at", "A time in ISO 8601; without a zone it is UTC.", _TEXT)
    errors = {"400": "It is no time, or lies before the moves that one call reads"}
    return {
        "models": {
            "get": operation(
                "registryModels",
                "Models of the registry, by name",
                responses_of("RegistryModels", _UNKNOWN),
                parameters=[after, _LIMIT],
            )
        },
        "models/{model}": {
            "parameters": [MODEL],
            "get": operation(
                "registryModel",
                "A model, and its versions from the newest on",
                responses_of("RegistryModel", _UNKNOWN),
                parameters=[before, _LIMIT],
            ),
            "patch": operation(
                "annotateModel",
                "Change description and tags of a model",
                changed,
                requestBody=json_body("RegistryChanges"),
            ),
        },
        "models/{model}/history": {
            "parameters": [MODEL],
            "get": operation(
                "registryHistory",
                "The moves of the aliases, the newest first; or, with `at`, the aliases at a time",
                responses_of("RegistryHistory", _UNKNOWN | errors),
                parameters=[earlier, _LIMIT, at],
            ),
        },
    }


def _event_paths() -> dict[str, Any]:
    after = _query(
        "after", "The id of the last event that arrived; 0 for all that are kept.", _TEXT
    )
    events = {"text/event-stream": {"schema": _TEXT}}
    errors = {
        "400": "`after` is no id, or events after it are no longer kept",
        "503": "Too many readers",
    }
    return {
        "events": {
            "get": operation(
                "registryEvents",
                "Events of the registry, as they happen",
                {"200": {"description": "OK", "content": events}, **errors_of(_UNKNOWN | errors)},
                parameters=[after],
            )
        }
    }


def _version_paths() -> dict[str, Any]:
    why = _query("why", "The reason, for the audit log.", {**_TEXT, "maxLength": 500})
    part = {"description": "OK", "content": _FILES}
    download = {"200": part, "206": {**part, "description": "The part that Range asks for"}}
    outside = {"416": {"description": "No byte of the file is in the range"}}
    path = "models/{model}/versions/{version}"
    return {
        path: {
            "parameters": [MODEL, VERSION],
            "get": operation(
                "registryVersion",
                "Manifest, report, aliases and annotations of a version",
                responses_of("RegistryVersion", _UNKNOWN),
            ),
            "patch": operation(
                "annotateVersion",
                "Change description and tags of a version",
                responses_of("RegistryAnnotations", _CHANGING),
                requestBody=json_body("RegistryChanges"),
            ),
            "delete": operation(
                "deleteVersion",
                "Delete a version that is not in use",
                responses_of("RegistryTombstone", _CHANGING),
                parameters=[why],
            ),
        },
        f"{path}/files/{{file}}": {
            "parameters": [MODEL, VERSION, _FILE],
            "get": operation(
                "downloadFile",
                "A file of a version; its ETag is the sha256",
                {**download, **outside, **errors_of(_UNKNOWN)},
            ),
        },
    }


def _upload_paths() -> dict[str, Any]:
    large = {"413": "The body is over the limit"}
    offset = {**_query("offset", "Bytes of the file that have arrived.", _COUNT), "required": True}
    return {
        "uploads": {
            "get": operation(
                "registryUploads",
                "The open uploads of the caller, the newest first",
                responses_of("RegistryUploads", _UNKNOWN),
            ),
            "post": operation(
                "beginUpload",
                "Begin the upload of a version, or resume it",
                responses_of("RegistryUpload", {**_CHANGING, **large}),
                requestBody=json_body("RegistryDeclaration"),
            ),
        },
        "uploads/{id}": {
            "parameters": [_UPLOAD],
            "get": operation(
                "registryUpload",
                "The bytes of an upload that have arrived",
                responses_of("RegistryUpload", _UNKNOWN),
            ),
            "delete": operation(
                "abandonUpload",
                "Abandon an upload",
                {"204": {"description": "It is removed"}, **errors_of(_UNKNOWN)},
            ),
        },
        "uploads/{id}/files/{file}": {
            "parameters": [_UPLOAD, _FILE],
            "put": operation(
                "appendToFile",
                "Append the body, at most 8 MiB, to a file",
                responses_of("RegistryReceived", {**_CHANGING, **large}),
                parameters=[offset],
                requestBody={"required": True, "content": _FILES},
            ),
        },
        "uploads/{id}/finish": {
            "parameters": [_UPLOAD],
            "post": operation(
                "finishUpload",
                "Check all files and publish the version",
                responses_of("RegistryPublished", _CHANGING),
                requestBody=json_body("RegistryReason"),
            ),
        },
    }


def registry_schemas() -> dict[str, Any]:
    """Returns the schemas that the paths refer to."""
    numbers = {"type": "object", "additionalProperties": _NUMBER}
    texts = {"type": "object", "additionalProperties": _TEXT}
    noted = {"description": _TEXT, "tags": texts}
    names = {"type": "array", "items": _TEXT}
    following = {"type": ["string", "null"], "description": "The `after` of the next page."}
    earlier = {"type": ["integer", "null"], "description": "The `before` of the next page."}
    version = {"model": _TEXT, "version": _NUMBER}
    return {
        "RegistryModels": object_of(
            ["models", "next"],
            models={
                "type": "array",
                "items": object_of(["name"], name=_TEXT, newest=_NUMBER, aliases=numbers),
            },
            next=following,
        ),
        "RegistryModel": object_of(
            ["name", "versions", "next"],
            name=_TEXT,
            **noted,
            aliases=numbers,
            generation=_COUNT,
            versions={
                "type": "array",
                "items": object_of(
                    ["version", "aliases"],
                    version=_NUMBER,
                    aliases=names,
                    semver={"type": ["string", "null"]},
                    created_at={**_TEXT, "format": "date-time"},
                    size_bytes=_COUNT,
                    **noted,
                ),
            },
            next=earlier,
        ),
        "RegistryVersion": object_of(
            ["model", "version", "manifest", "report"],
            **version,
            **noted,
            aliases=names,
            is_signed={"type": "boolean"},
            manifest={"type": "object"},
            report={},
        ),
        **_act_schemas(noted, numbers, version),
        **_upload_schemas(version),
        **alias_schemas(),
        **rollout_schemas(),
    }


def _act_schemas(
    noted: dict[str, Any], numbers: dict[str, Any], version: dict[str, Any]
) -> dict[str, Any]:
    changes = {"type": "object", "additionalProperties": {"type": ["string", "null"]}}
    reason = {"why": {**_TEXT, "maxLength": 500}}
    told = {"who": _TEXT, "when": {**_TEXT, "format": "date-time"}, "why": _TEXT}
    number = {"type": ["integer", "null"]}
    change = object_of(["alias", "from", "to"], **{"alias": _TEXT, "from": number, "to": number})
    return {
        "RegistryHistory": object_of(
            ["name"],
            name=_TEXT,
            moves=array_of("RegistryMove"),
            next={**number, "description": "The `before` of the next page."},
            at={**_TEXT, "description": "The time that was asked for, in place of `moves`."},
            generation=_COUNT,
            aliases=numbers,
            **{name: {"type": ["string", "null"]} for name in told},
        ),
        "RegistryMove": object_of(
            ["generation", "aliases", *told],
            generation=_COUNT,
            aliases=numbers,
            changes={"type": "array", "items": change},
            ended={"type": "array", "items": _TEXT},
            traffic={"type": "object"},
            traffic_changes=array_of("RegistryTrafficChange"),
            evidence={"type": "object"},
            approval=object_of(["request", "by"], request=_COUNT, by=_TEXT, why=_TEXT),
            **told,
        ),
        "RegistryAnnotations": object_of(["description", "tags"], **noted),
        "RegistryChanges": {
            "type": "object",
            "properties": {"description": {"type": ["string", "null"]}, "tags": changes},
        },
        "RegistryTombstone": object_of([*version, *told], **version, **told),
        "RegistryReason": {"type": "object", "properties": reason},
    }


def _upload_schemas(version: dict[str, Any]) -> dict[str, Any]:
    file = {"file": _TEXT, "size_bytes": _COUNT}
    flag = {"type": "boolean"}
    declared = object_of([*file, "sha256"], **file, sha256=_TEXT)
    arrived = object_of([*file, "received"], **file, received=_COUNT, is_linked=flag)
    return {
        "RegistryDeclaration": object_of(
            ["model", "version", "files"],
            **version,
            files={"type": "array", "minItems": 1, "maxItems": 1024, "items": declared},
        ),
        "RegistryUpload": object_of(
            ["id", "model", "version", "files"],
            id=_TEXT,
            **version,
            is_published=flag,
            files={"type": "array", "items": arrived},
            taken_semvers={"type": "array", "maxItems": 1024, "items": _TEXT},
        ),
        "RegistryUploads": object_of(
            ["uploads"],
            uploads={
                "type": "array",
                "items": object_of(
                    ["id", "model", "version", "size_bytes", "received", "begun_at"],
                    id=_TEXT,
                    **version,
                    size_bytes=_COUNT,
                    received=_COUNT,
                    begun_at={**_TEXT, "format": "date-time"},
                ),
            },
        ),
        "RegistryReceived": object_of(["file", "received"], file=_TEXT, received=_COUNT),
        "RegistryPublished": object_of(
            ["model", "version", "is_published"],
            **version,
            is_published=flag,
            files=_COUNT,
            breaks=_TEXT,
        ),
    }
