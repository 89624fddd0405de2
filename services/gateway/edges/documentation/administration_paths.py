"""The calls beside inference, as paths of an OpenAPI document.

They are the configuration and the statistics of models, the repository, and the settings of logs
and traces.
"""

from typing import Any

from services.gateway.edges.documentation.openapi_parts import (
    DONE,
    MODEL,
    VERSION,
    errors_of,
    json_body,
    object_of,
    operation,
    path_parameter,
    responses_of,
)

_UNKNOWN = {"404": "Unknown model or version"}
_NOT_READY = {**_UNKNOWN, "503": "Not ready; the body has the reason"}
_BAD_BODY = {
    "400": "The body is not as described",
    "408": "The body did not arrive within the timeout",
    "413": "The body is over the limit",
}
_FORBIDDEN = {"403": "The caller may not, or would need a credential"}


def administration_paths() -> dict[str, Any]:
    """Returns the paths."""
    return {**_model_paths(), **_repository_paths(), **_setting_paths()}


def _model_paths() -> dict[str, Any]:
    paths: dict[str, Any] = {
        "/v2/models/stats": {
            "get": operation(
                "allStatistics", "Statistics of all models", responses_of("Statistics", {})
            )
        }
    }
    for middle, parameters, suffix in (
        ("", [MODEL], ""),
        ("/versions/{version}", [MODEL, VERSION], "Version"),
    ):
        for path, name, summary, schema in (
            ("config", "modelConfig", "Configuration, as Triton's ModelConfig", "ModelConfig"),
            ("stats", "modelStatistics", "Statistics since the start of the server", "Statistics"),
        ):
            found = responses_of(schema, _NOT_READY)
            paths[f"/v2/models/{{model}}{middle}/{path}"] = {
                "parameters": parameters,
                "get": operation(f"{name}{suffix}", summary, found),
            }
    return paths


def _repository_paths() -> dict[str, Any]:
    index = operation(
        "repositoryIndex",
        "Models of the store, and the states of their versions",
        responses_of("RepositoryIndex", _BAD_BODY),
        requestBody=json_body("IndexRequest", required=False),
    )
    errors = {
        **_BAD_BODY,
        **_FORBIDDEN,
        "404": "Unknown model",
        "500": "The model cannot be loaded; the body has the reason",
        "501": "A parameter that this server refuses",
        "503": "Callers load no models here (model_control), or too many are being loaded",
        "504": "It takes longer than request_timeout_s, and goes on",
    }
    paths: dict[str, Any] = {"/v2/repository/index": {"post": index}}
    for act, summary in (("load", "Load a model"), ("unload", "Unload a model")):
        paths[f"/v2/repository/models/{{model}}/{act}"] = {
            "parameters": [MODEL],
            "post": operation(
                f"{act}Model",
                summary,
                {**DONE, **errors_of(errors)},
                requestBody=json_body("RepositoryParameters", required=False),
            ),
        }
    return paths


def _setting_paths() -> dict[str, Any]:
    errors = {**_BAD_BODY, **_FORBIDDEN, "501": "A value that this server cannot set"}
    of_model = [path_parameter("model", "Name of a model; the settings are the server's.")]
    paths: dict[str, Any] = {}
    for path, name, what, schema, parameters in (
        ("logging", "LogSettings", "Settings of logs", "LogSettings", []),
        ("trace/setting", "TraceSettings", "Settings of traces", "TraceSettings", []),
        ("models/{model}/trace/setting", "ModelTraceSettings", "Settings of traces",
         "TraceSettings", of_model),
    ):  # fmt: skip
        unknown = _UNKNOWN if parameters else {}
        paths[f"/v2/{path}"] = {
            "parameters": parameters,
            "get": operation(f"get{name}", what, responses_of(schema, unknown)),
            "post": operation(
                f"set{name}",
                f"{what}: change some",
                responses_of(schema, {**errors, **unknown}),
                requestBody=json_body(f"{schema}Change", required=False),
            ),
        }
    return paths


def administration_schemas() -> dict[str, Any]:
    """Returns the schemas that the paths refer to."""
    text, flag = {"type": "string"}, {"type": "boolean"}
    count = {"type": "integer", "minimum": 0}
    parameter = {"type": ["string", "integer", "boolean"]}
    entry = object_of(["name"], name=text, version=text, state=text, reason=text)
    return {
        "ModelConfig": {
            **object_of(
                ["name", "platform", "max_batch_size"],
                name=text,
                platform=text,
                max_batch_size=count,
            ),
            "description": "Triton's message `ModelConfig`; integers of 64 bits are numbers.",
        },
        "Statistics": object_of(
            ["model_stats"],
            model_stats={
                "type": "array",
                "items": object_of(
                    ["name", "version", "inference_count", "execution_count"],
                    name=text,
                    version=text,
                    last_inference={**count, "description": "Milliseconds of Unix time."},
                    inference_count={**count, "description": "Rows."},
                    execution_count={**count, "description": "Runs."},
                    inference_stats={"type": "object"},
                    response_stats={"type": "object"},
                    batch_stats={"type": "array", "items": {"type": "object"}},
                ),
            },
        ),
        "IndexRequest": {
            "type": "object",
            "properties": {"ready": {**flag, "description": "True to leave out all others."}},
        },
        "RepositoryIndex": {"type": "array", "items": entry},
        "RepositoryParameters": {
            "type": "object",
            "properties": {
                "parameters": {
                    "type": "object",
                    "additionalProperties": parameter,
                    "properties": {
                        "unload_dependents": {
                            **flag,
                            "description": "True to unload the models of a pipeline's steps, too.",
                        }
                    },
                }
            },
        },
        **_setting_schemas(),
    }


def _setting_schemas() -> dict[str, Any]:
    text, flag = {"type": "string"}, {"type": "boolean"}
    logs = {
        "log_file": text,
        "log_info": flag,
        "log_warning": flag,
        "log_error": flag,
        "log_verbose_level": {"type": "integer", "minimum": 0},
        "log_format": text,
    }
    levels = {"type": "array", "items": {"type": "string", "enum": ["OFF", "TIMESTAMPS"]}}
    traces: dict[str, Any] = {
        "trace_level": levels,
        **dict.fromkeys(
            ("trace_rate", "trace_count", "log_frequency", "trace_file", "trace_mode"), text
        ),
    }
    changes = {
        name: {"description": "A text, a list of texts, or null for the first value."}
        for name in traces
    }
    return {
        "LogSettings": object_of(list(logs), **logs),
        "LogSettingsChange": {"type": "object", "properties": logs},
        "TraceSettings": object_of(list(traces), **traces),
        "TraceSettingsChange": {"type": "object", "properties": changes},
    }
