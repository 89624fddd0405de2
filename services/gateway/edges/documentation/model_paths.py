"""The calls of one served model, as paths of an OpenAPI document.

In: a version and its signature. Out: the paths of its metadata and its inference; the schema of a
request has its inputs' names, datatypes, shapes and limits, and an example that the model takes.
"""

import math
from typing import Any

import numpy as np

from flambeau.protocol.signature import Signature, TensorSpec
from flambeau.protocol.tensors import DATATYPES
from services.gateway.edges.documentation.openapi_parts import (
    JSON,
    content_of,
    reference,
    responses_of,
)
from services.gateway.edges.openapi import INFER_HEADERS
from services.queueing.records import ServedVersion

EXAMPLE_ELEMENTS = 64
"""An example has at most so many elements: a longer one would be most of the document."""
_WITHOUT_JSON = ("FP16", "BF16")


def model_paths(served: ServedVersion, signature: Signature, *, is_live: bool) -> dict[str, Any]:
    """Returns the paths of a version.

    Args:
        served: the version.
        signature: its signature.
        is_live: True if requests without a version reach it; the paths are without one, then.
    """
    model, version = served.lane.model, str(served.lane.version)
    base = f"/v2/models/{model}" + ("" if is_live else f"/versions/{version}")
    facts = {"tags": [model], "x-model": {"name": model, "version": version}}
    return {
        base: {
            "get": {
                "operationId": f"modelMetadata-{model}",
                "summary": f"Metadata of {model}",
                **facts,
                "responses": responses_of("ModelMetadata", _REFUSED),
            }
        },
        f"{base}/infer": {
            "post": {
                "operationId": f"modelInfer-{model}",
                "summary": f"Run {model}",
                "description": f"Outputs: {'; '.join(map(_words, signature.outputs))}.",
                **facts,
                "parameters": list(INFER_HEADERS),
                "requestBody": {"required": True, "content": _content(signature)},
                "responses": responses_of("InferResponse", _REFUSED, binary=True),
            }
        },
    }


_REFUSED = {"default": "Refused, or failed; the model's general path lists the statuses"}


def _words(spec: TensorSpec) -> str:
    return f"{spec.name} {spec.datatype} {spec.shape_words()}"


def _content(signature: Signature) -> dict[str, Any]:
    """Returns the forms of a request: JSON if every required input has such a form."""
    needed = [spec for spec in signature.inputs if not _is_optional(signature, spec)]
    content = content_of("InferRequest")
    if any(spec.datatype in _WITHOUT_JSON for spec in needed):
        del content[JSON]
        return content
    content[JSON] = {"schema": _request_schema(signature, needed)}
    elements = sum(math.prod(_example_shape(signature, spec)) for spec in needed)
    if elements <= EXAMPLE_ELEMENTS:
        content[JSON]["example"] = {"inputs": [_example(signature, spec) for spec in needed]}
    return content


def _request_schema(signature: Signature, needed: list[TensorSpec]) -> dict[str, Any]:
    each = [
        _input_schema(signature, s) for s in signature.inputs if s.datatype not in _WITHOUT_JSON
    ]
    inputs = {
        "type": "array",
        "minItems": len(needed),
        "maxItems": len(signature.inputs),
        "items": each[0] if len(each) == 1 else {"oneOf": each},
    }
    if len(each) > 1:
        inputs["allOf"] = [
            {"contains": {"properties": {"name": {"const": spec.name}}}} for spec in needed
        ]
    output = {"type": "string", "enum": [spec.name for spec in signature.outputs]}
    return {
        "type": "object",
        "required": ["inputs"],
        "properties": {
            "id": {"type": "string"},
            "parameters": reference("Parameters"),
            "inputs": inputs,
            "outputs": {
                "type": "array",
                "items": {
                    "type": "object",
                    "required": ["name"],
                    "properties": {"name": output, "parameters": reference("Parameters")},
                },
            },
        },
    }


def _input_schema(signature: Signature, spec: TensorSpec) -> dict[str, Any]:
    rank = len(spec.shape)
    shape: dict[str, Any] = {"type": "array", "minItems": rank, "maxItems": rank}
    if rank:
        shape["prefixItems"] = [_size_schema(signature, spec, axis) for axis in range(rank)]
    return {
        "type": "object",
        "title": spec.name,
        "description": _words(spec),
        "required": ["name", "shape", "datatype", "data"],
        "properties": {
            "name": {"const": spec.name},
            "datatype": {"const": spec.datatype},
            "shape": shape,
            "data": {"type": "array", "items": _element_schema(spec.datatype)},
        },
    }


def _element_schema(datatype: str) -> dict[str, Any]:
    """Returns the schema of an element of `data`, or of a list of them where it is nested."""
    dtype = DATATYPES[datatype]
    if dtype.kind in "iu":
        limits = np.iinfo(dtype.str)
        return {
            "type": ["integer", "array"],
            "minimum": int(limits.min),
            "maximum": int(limits.max),
        }
    return {"type": [{"b": "boolean", "f": "number", "O": "string"}[dtype.kind], "array"]}


def _size_schema(signature: Signature, spec: TensorSpec, axis: int) -> dict[str, Any]:
    low, high = _sizes(signature, spec, axis)
    if low == high:
        return {"const": low}
    schema: dict[str, Any] = {"type": "integer", "minimum": low}
    if high is not None:
        schema["maximum"] = high
    return schema


def _sizes(signature: Signature, spec: TensorSpec, axis: int) -> tuple[int, int | None]:
    """Returns the smallest and the largest size of a dimension; None for no largest."""
    size, name = spec.shape[axis], spec.name
    if size >= 0:
        return size, size
    if axis == spec.batch_axis:
        return 1, signature.max_batch_size
    if (limits := signature.dynamic.get(name, {}).get(axis)) is not None:
        return limits
    if (limit := signature.limits.get(name, {}).get(axis)) is not None:
        return limit
    padding = signature.padding
    if padding is not None and axis == padding.axis_of(name):
        return 1, padding.buckets[-1]
    return 1, None


def _is_optional(signature: Signature, spec: TensorSpec) -> bool:
    padding = signature.padding
    return spec.optional or (padding is not None and padding.is_optional(spec.name))


def _example_shape(signature: Signature, spec: TensorSpec) -> list[int]:
    return [_sizes(signature, spec, axis)[0] for axis in range(len(spec.shape))]


def _example(signature: Signature, spec: TensorSpec) -> dict[str, Any]:
    shape = _example_shape(signature, spec)
    kind = DATATYPES[spec.datatype].kind
    element: object = {"b": False, "O": "text"}.get(kind, 0)
    data = [element] * math.prod(shape)
    return {"name": spec.name, "shape": shape, "datatype": spec.datatype, "data": data}
