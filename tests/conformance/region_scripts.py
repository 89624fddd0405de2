"""Tensors in regions of shared memory, at a live Triton and at ours."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from tests.conformance.both_servers import Both, Reasons, Script
from tests.conformance.calls import GRPC, REST
from tests.fixtures.triton_messages import pb

OBJECTS = "conformance-"
"""Beginning of the names of objects that callers may register."""
BYTES = 32
ROWS = [2, 4]
PATH = "/v2/systemsharedmemory"
GIVEN = np.arange(8, dtype=np.float32)


@contextmanager
def _objects() -> Iterator[tuple[Path, Path]]:
    """Makes an object with a tensor, and one of zeros; removes them after the block."""
    paths = [Path("/dev/shm") / f"{OBJECTS}{os.getpid()}-{name}" for name in ("in", "out")]
    try:
        paths[0].write_bytes(GIVEN.tobytes())
        paths[1].write_bytes(bytes(BYTES))
        yield paths[0], paths[1]
    finally:
        for path in paths:
            path.unlink(missing_ok=True)


def _register(server: Both, path: Path, name: str, size: int = BYTES) -> Any:
    asked = {"key": f"/{path.name}", "offset": 0, "byte_size": size}
    return server.rest("POST", f"{PATH}/region/{name}/register", asked)


def _in_regions(ask: Callable[[Both], Any]) -> Callable[[Both], Any]:
    """Returns a script: two regions, some calls, the bytes of the second, and no regions again."""

    def script(server: Both) -> Any:
        with _objects() as (given, made):
            found = [_register(server, given, "in"), _register(server, made, "out")]
            found.append(ask(server))
            found.append(np.frombuffer(made.read_bytes(), np.float32).tolist())
            found.append(server.rest("POST", f"{PATH}/unregister"))
            found.append(server.rest("GET", f"{PATH}/status"))
        return found

    return script


def _parameters(region: str, size: int = BYTES, **more: int) -> dict[str, Any]:
    return {"shared_memory_region": region, "shared_memory_byte_size": size, **more}


def _rest_infer(given: dict[str, Any], made: dict[str, Any] | None) -> Callable[[Both], Any]:
    asked: dict[str, Any] = {
        "inputs": [{"name": "x", "datatype": "FP32", "shape": ROWS, "parameters": given}]
    }
    if made is not None:
        asked["outputs"] = [{"name": "y", "parameters": made}]
    return lambda server: server.rest("POST", "/v2/models/linear/infer", asked)


def _grpc_infer(given: dict[str, Any], made: dict[str, Any] | None) -> Callable[[Both], Any]:
    message = pb.ModelInferRequest(model_name="linear")
    tensor = message.inputs.add(name="x", datatype="FP32", shape=ROWS)
    places = [(tensor, given)]
    if made is not None:
        places.append((message.outputs.add(name="y"), made))
    for place, parameters in places:
        for name, value in parameters.items():
            kind = "string_param" if isinstance(value, str) else "int64_param"
            setattr(place.parameters[name], kind, value)
    return lambda server: server.grpc("ModelInfer", message)


def _status(server: Both) -> Any:
    found = server.rest("GET", f"{PATH}/status")
    return found[0], sorted((one["name"], one["offset"], one["byte_size"]) for one in found[1])


def _twice(server: Both) -> Any:
    with _objects() as (given, _):
        found = [_register(server, given, "in") for _ in range(2)]
        server.rest("POST", f"{PATH}/unregister")
    return found


def _beyond(server: Both) -> Any:
    with _objects() as (given, _):
        found = _register(server, given, "in", 2**20)
        server.rest("POST", f"{PATH}/unregister")
    return found


REGIONS: Sequence[Script] = [
    Script("regions, status", REST, _in_regions(_status)),
    Script("regions, both", REST, _in_regions(_rest_infer(_parameters("in"), _parameters("out")))),
    Script("regions, both", GRPC, _in_regions(_grpc_infer(_parameters("in"), _parameters("out")))),
    Script("regions, input", REST, _in_regions(_rest_infer(_parameters("in"), None))),
    Script("regions, input", GRPC, _in_regions(_grpc_infer(_parameters("in"), None))),
    Script("regions, unknown", REST, _in_regions(_rest_infer(_parameters("nope"), None))),
    Script("regions, too short", REST, _in_regions(_rest_infer(_parameters("in", 16), None))),
    Script("regions, output too short", REST,
           _in_regions(_rest_infer(_parameters("in"), _parameters("out", 16)))),
    Script("regions, beyond", REST,
           _in_regions(_rest_infer(_parameters("in", shared_memory_offset=4096), None))),
    Script("region registered twice", REST, _twice),
    Script("region beyond its object", REST, _beyond),
]  # fmt: skip
OF_REGIONS: Reasons = {
    "answers name the region of an output, and its bytes": ("regions, both",),
    "a name that is taken is 409; Triton says 400": ("region registered twice",),
    "an output that its place cannot hold is 400; Triton says 500": ("regions, output too short",),
    "the words of regions are ours": (
        "shared memory, unknown region", "regions, unknown", "regions, too short",
        "regions, beyond", "region beyond its object",
    ),
}  # fmt: skip
"""Differences on purpose, as in `scripts.py`."""
