"""One table of what a client can do wrong: REST and gRPC refuse each with the same words.

Whatever the client did wrong is 400 and INVALID_ARGUMENT, but for names that are unknown.
"""

from typing import Any

import grpc
import pytest

from tests.e2e.grpc_calls import error_of
from tests.e2e.rest_calls import infer, tensor
from tests.e2e.tensor_values import CONTENTS_FIELDS
from tests.fixtures.servers import ServerProcess
from tests.fixtures.triton_messages import pb

ROW = [1.0, 2.0, 3.0, 4.0]
X = tensor("x", "FP32", [1, 4], ROW)
NOT_FOUND = (404, grpc.StatusCode.NOT_FOUND)
INVALID = (400, grpc.StatusCode.INVALID_ARGUMENT)
UNSUPPORTED = (501, grpc.StatusCode.UNIMPLEMENTED)
NOT_READY = (503, grpc.StatusCode.UNAVAILABLE)

Case = dict[str, Any]
TABLE: dict[str, tuple[tuple[int, grpc.StatusCode], str, Case]] = {
    "unknown model": (NOT_FOUND, "model 'nope' is not served", {"model": "nope"}),
    "unknown version": (NOT_FOUND, "no served version '9'", {"version": "9"}),
    "version that is no number": (NOT_FOUND, "no served version 'one'", {"version": "one"}),
    "refused at load": (NOT_READY, "golden", {"model": "refused"}),
    "unknown input": (INVALID, "unknown input 'z'", {"inputs": [{**X, "name": "z"}]}),
    "input too many": (INVALID, "unknown input 'z'", {"inputs": [X, {**X, "name": "z"}]}),
    "no input": (INVALID, "input 'x' is missing", {"inputs": []}),
    "input twice": (INVALID, "input 'x' occurs twice", {"inputs": [X, X]}),
    "another datatype": (
        INVALID, "input 'x' has datatype INT32; expected FP32",
        {"inputs": [tensor("x", "INT32", [1, 4], [1, 2, 3, 4])]},
    ),
    "unknown datatype": (
        INVALID, "datatype 'FLOAT' is unknown", {"inputs": [tensor("x", "FLOAT", [1, 4], ROW)]},
    ),
    "another shape": (
        INVALID, "input 'x' has shape [1,3]", {"inputs": [tensor("x", "FP32", [1, 3], ROW[:3])]},
    ),
    "another rank": (
        INVALID, "input 'x' has shape [4]", {"inputs": [tensor("x", "FP32", [4], ROW)]},
    ),
    "batch too large": (
        INVALID, "the batch has 9 rows; at most 8 fit",
        {"inputs": [tensor("x", "FP32", [9, 4], ROW * 9)]},
    ),
    "batch of none": (
        INVALID, "the batch has 0 rows", {"inputs": [tensor("x", "FP32", [0, 4], [])]},
    ),
    "unknown output": (INVALID, "unknown output 'q'", {"outputs": [{"name": "q"}]}),
    "output twice": (INVALID, "asked for twice", {"outputs": [{"name": "y"}, {"name": "y"}]}),
    "too few elements": (
        INVALID, "shape [1, 4] takes 4", {"inputs": [tensor("x", "FP32", [1, 4], ROW[:2])]},
    ),
    "number out of range": (
        INVALID, "INT8", {"model": "echo-int8",
                          "inputs": [tensor("in_INT8", "INT8", [1, 2], [1, 300])]},
    ),
    "no form in this protocol": (
        INVALID, "FP16", {"model": "echo-fp16",
                          "inputs": [tensor("in_FP16", "FP16", [1, 1], [1])]},
    ),
    "timeout": (INVALID, "'timeout'", {"parameters": {"timeout": "soon"}}),
    "priority": (INVALID, "'priority'", {"parameters": {"priority": -1}}),
    "artifact": (NOT_FOUND, "artifact", {"parameters": {"artifact": "nope"}}),
    "classes": (
        INVALID, "output 'y' has classification -1",
        {"outputs": [{"name": "y", "parameters": {"classification": -1}}]},
    ),
    "classes of booleans": (
        INVALID, "unsupported type 'BOOL'",
        {"model": "echo-bool", "inputs": [tensor("in_BOOL", "BOOL", [1, 1], [True])],
         "outputs": [{"name": "out_BOOL", "parameters": {"classification": 1}}]},
    ),
    "shared memory": (
        UNSUPPORTED, "'shared_memory_region'",
        {"inputs": [{**X, "parameters": {"shared_memory_region": "r"}}]},
    ),
}  # fmt: skip
"""Statuses over REST and gRPC, a part of the message, and what differs from a good request."""
DIFFERENT_WORDS = {"too few elements", "number out of range", "no form in this protocol"}
"""Refusals that name the field of the form that was sent: `data`, or the field of contents."""


def message_of(case: Case) -> Any:
    """Returns the same request as a message, with typed contents."""
    request = pb.ModelInferRequest(
        model_name=case.get("model", "linear"), model_version=case.get("version", "")
    )
    for entry in case.get("inputs", [X]):
        tensor = request.inputs.add(
            name=entry["name"], datatype=entry["datatype"], shape=entry["shape"]
        )
        field = CONTENTS_FIELDS.get(entry["datatype"], "fp32_contents")
        getattr(tensor.contents, field).extend(entry["data"])
        _set(tensor.parameters, entry.get("parameters", {}))
    for entry in case.get("outputs", []):
        _set(request.outputs.add(name=entry["name"]).parameters, entry.get("parameters", {}))
    _set(request.parameters, case.get("parameters", {}))
    return request


def _set(parameters: Any, values: dict[str, object]) -> None:
    for name, value in values.items():
        field = "string_param" if isinstance(value, str) else "int64_param"
        setattr(parameters[name], field, value)


@pytest.mark.parametrize("name", TABLE)
def test_refusal(server: ServerProcess, stub: Any, name: str) -> None:
    (status, code), words, case = TABLE[name]
    fields = {key: case[key] for key in ("outputs", "parameters") if key in case}
    reply = infer(
        server, case.get("model", "linear"), *case.get("inputs", [X]),
        version=case.get("version", ""), **fields,
    )  # fmt: skip
    found, details = error_of(lambda: stub.ModelInfer(message_of(case)))
    assert (reply.status, found) == (status, code)
    assert words in reply.error()
    assert words in details
    if name not in DIFFERENT_WORDS:
        assert details == reply.error()
