"""The calls of system shared memory, as paths of an OpenAPI document."""

from typing import Any

from services.gateway.edges.documentation.openapi_parts import (
    DONE,
    errors_of,
    json_body,
    object_of,
    operation,
    path_parameter,
    responses_of,
)

_BASE = "/v2/systemsharedmemory"


def region_paths() -> dict[str, Any]:
    """Returns the paths: of one region, and of all of the caller."""
    unknown = {"404": "The region is not registered"}
    region = [path_parameter("region", "Name of the region.")]
    paths: dict[str, Any] = {}
    for place, parameters, of in (("", [], "All"), ("/region/{region}", region, "")):
        found = responses_of("Regions", unknown)
        paths[f"{_BASE}{place}/status"] = {
            "parameters": parameters,
            "get": operation(f"regionStatus{of}", "Registered regions of shared memory", found),
        }
        paths[f"{_BASE}{place}/unregister"] = {
            "parameters": parameters,
            "post": operation(f"unregisterRegion{of}", "Unregister regions of shared memory", DONE),
        }
    refused = {
        "400": "The object, or the part of it, is refused",
        "409": "The name is taken",
        "413": "The body is over the limit",
        "503": "There are too many regions",
    }
    paths[f"{_BASE}/region/{{region}}/register"] = {
        "parameters": region,
        "post": operation(
            "registerRegion",
            "Register a part of a shared memory object",
            {**DONE, **errors_of(refused)},
            requestBody=json_body("RegionPlace"),
        ),
    }
    return paths


def region_schemas() -> dict[str, Any]:
    """Returns the schemas that the paths refer to."""
    place = {
        "key": {"type": "string", "description": "Name of the object, such as /input."},
        "offset": {"type": "integer", "minimum": 0},
        "byte_size": {"type": "integer", "minimum": 1},
    }
    region = object_of(["name", *place], name={"type": "string"}, **place)
    return {
        "RegionPlace": object_of(["key", "byte_size"], **place),
        "Regions": {"type": "array", "items": region},
    }
