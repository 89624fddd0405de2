"""The OpenAPI documents of TorchServe's REST API: of a port, and of one model. Pure.

Source: the paths and the ids of operations of TorchServe 0.12; OpenAPI 3.0.1.
"""

from typing import Any

_ANY = {"*/*": {"schema": {"type": "string", "format": "binary"}}}
_PLACES = {"model_name": "Name of model.", "model_version": "Name of model version."}
_MODEL = "/{model_name}"
_VERSION = "/{model_name}/{model_version}"

_Table = dict[str, dict[str, tuple[str, str, tuple[str, ...]]]]

_EITHER: _Table = {
    "/": {"options": ("apiDescription", "Describe this API.", ())},
    "/api-description": {"get": ("api-description", "Describe this API.", ())},
}
_INFERENCE: _Table = {
    "/ping": {"get": ("ping", "Tell whether all models have their workers.", ())},
    f"/predictions{_MODEL}": {"post": ("predictions", "Predict by the default version.", ())},
    f"/predictions{_VERSION}": {"post": ("version_predictions", "Predict by a version.", ())},
    f"/explanations{_MODEL}": {"post": ("explanations", "Explain by the default version.", ())},
    f"/v1/models{_MODEL}:predict": {"post": ("v1_predict", "Predict: KServe's version 1.", ())},
    f"/v2/models{_MODEL}/infer": {"post": ("v2_infer", "Predict: KServe's version 2.", ())},
}
_DESCRIBE, _SCALE, _REMOVE = (
    ("Describe a version.", ("customized",)),
    ("Change the number of workers.", ("min_worker", "max_worker", "synchronous")),
    ("Unregister a version.", ()),
)
_MANAGEMENT: _Table = {
    "/models": {
        "get": ("listModels", "List the registered models.", ("limit", "next_page_token")),
        "post": (
            "registerModel",
            "Register an archive.",
            (
                "url", "model_name", "handler", "runtime", "batch_size", "max_batch_delay",
                "response_timeout", "startup_timeout", "initial_workers", "synchronous",
            ),
        ),
    },
    f"/models{_MODEL}": {
        "get": ("describeModel", *_DESCRIBE),
        "put": ("setAutoScale", *_SCALE),
        "delete": ("unregisterModel", *_REMOVE),
    },
    f"/models{_VERSION}": {
        "get": ("version_describeModel", *_DESCRIBE),
        "put": ("version_setAutoScale", *_SCALE),
        "delete": ("version_unregisterModel", *_REMOVE),
    },
    f"/models{_VERSION}/set-default": {
        "put": ("setDefault", "Make a version the default one.", ()),
    },
}  # fmt: skip


def describe_api(*, infers: bool, manages: bool) -> dict[str, Any]:
    """Returns the document of a port.

    Args:
        infers: True if it has the calls of inference.
        manages: True if it has those of management.
    """
    table = _EITHER | (_INFERENCE if infers else {}) | (_MANAGEMENT if manages else {})
    paths = {
        path: {method: _operation(path, *facts) for method, facts in methods.items()}
        for path, methods in table.items()
    }
    return _document("TorchServe APIs", paths)


def describe_model(name: str) -> dict[str, Any]:
    """Returns the document of a model.

    Args:
        name: its name.
    """
    path = f"/predictions/{name}"
    facts = ("prediction", f"A predict entry point for model: {name}.", ())
    return _document(f"RESTful API for: {name}", {path: {"post": _operation(path, *facts)}})


def _document(title: str, paths: dict[str, Any]) -> dict[str, Any]:
    return {"openapi": "3.0.1", "info": {"title": title, "version": "0.12.0"}, "paths": paths}


def _operation(path: str, name: str, words: str, query: tuple[str, ...]) -> dict[str, Any]:
    parameters = [
        {
            "in": "path",
            "name": place,
            "required": True,
            "description": told,
            "schema": {"type": "string"},
        }
        for place, told in _PLACES.items()
        if f"{{{place}}}" in path
    ]
    parameters += [{"in": "query", "name": one, "schema": {"type": "string"}} for one in query]
    found: dict[str, Any] = {"operationId": name, "description": words, "parameters": parameters}
    if "predict" in path or "explan" in path or "infer" in path:
        found["requestBody"] = {"required": True, "content": _ANY}
    found["responses"] = {"200": {"description": "OK", "content": _ANY}}
    return found
