"""The parameters `timeout` and `priority`: parsed alike from JSON and protobuf; clear errors."""

import json
from typing import Any

import pytest

from protos import open_inference_pb2 as pb
from services.errors import InvalidRequestError
from services.gateway.edges import grpc_codec
from services.gateway.scheduling_parameters import time_for_work
from tests.unit.gateway.edges.rest_bodies import decode

TENSOR = {"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}


def over_rest(**parameters: Any) -> tuple[int, int]:
    body = json.dumps({"inputs": [TENSOR], "parameters": parameters}).encode()
    request = decode(body, None, None)
    return request.timeout_us, request.priority


def over_grpc(**parameters: Any) -> tuple[int, int]:
    choices = {int: "int64_param", str: "string_param", bool: "bool_param", float: "double_param"}
    request = pb.ModelInferRequest()
    for name, value in parameters.items():
        parameter = request.parameters[name]
        if value is not None:
            setattr(parameter, choices[type(value)], value)
    sent = pb.ModelInferRequest.FromString(request.SerializeToString())
    return grpc_codec.asked_parameters(sent)[:2]


EDGES = pytest.mark.parametrize("read", [over_rest, over_grpc])


@EDGES
@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({}, (0, 0)),
        ({"timeout": 0, "priority": 0}, (0, 0)),
        ({"timeout": 50_000}, (50_000, 0)),
        ({"priority": 1}, (0, 1)),
        ({"timeout": 2**63 - 1, "priority": 10}, (2**63 - 1, 10)),
        ({"timeout": 7, "colour": "red"}, (7, 0)),
    ],
)
def test_given(read: Any, parameters: dict[str, Any], expected: tuple[int, int]) -> None:
    assert read(**parameters) == expected


@EDGES
@pytest.mark.parametrize("value", [-1, 5000.0, 0.5, "5000", True])
def test_timeout_that_is_none(read: Any, value: object) -> None:
    with pytest.raises(InvalidRequestError, match=r"'timeout' must be .*microseconds.* is "):
        read(timeout=value)


@pytest.mark.parametrize("value", [2**63, 2**64])
def test_a_timeout_that_is_too_long_is_told_the_longest(value: int) -> None:
    """JSON's 2**64 comes as a float, and is none the less a whole number."""
    with pytest.raises(InvalidRequestError, match=r"from 0 \(no limit\) to 9223372036854775807, "):
        over_rest(timeout=value)


@EDGES
@pytest.mark.parametrize("value", [-1, 11, 1.0, "1", False])
def test_priority_that_is_none(read: Any, value: object) -> None:
    with pytest.raises(InvalidRequestError, match=r"'priority' must be .* to 10 \(last\), and is"):
        read(priority=value)


def test_unsigned_parameters_of_grpc() -> None:
    request = pb.ModelInferRequest()
    request.parameters["timeout"].uint64_param = 9
    request.parameters["priority"].uint64_param = 2
    assert grpc_codec.asked_parameters(request)[:2] == (9, 2)
    request.parameters["timeout"].uint64_param = 2**63
    with pytest.raises(InvalidRequestError, match="9223372036854775808"):
        grpc_codec.asked_parameters(request)


def test_parameter_of_grpc_without_a_value() -> None:
    with pytest.raises(InvalidRequestError, match="is None"):
        over_grpc(timeout=None)


def test_timeout_beyond_what_grpc_can_say() -> None:
    with pytest.raises(InvalidRequestError, match="9223372036854775808"):
        over_rest(timeout=2**63)


@pytest.mark.parametrize(
    ("timeout_s", "left_s"), [(1.0, 0.996), (0.05, 0.046), (0.04, 0.036), (0.02, 0.018), (0.0, 0.0)]
)
def test_an_answer_leaves_before_its_caller_gives_up(timeout_s: float, left_s: float) -> None:
    assert time_for_work(timeout_s, way_back_s=0.004) == pytest.approx(left_s)
