"""The parameters of sequences: parsed alike from JSON and protobuf; clear errors."""

import json
from typing import Any

import msgspec
import pytest

from protos import open_inference_pb2 as pb
from services.errors import InvalidRequestError
from services.gateway.edges import grpc_codec
from services.queueing.records import SequenceStep
from tests.unit.gateway.edges.rest_bodies import decode

TENSOR = {"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}
LARGE = {"name": "x", "datatype": "FP32", "shape": [20_000], "data": [1] * 20_000}


def over_rest(tensor: dict[str, Any] = TENSOR, **parameters: Any) -> SequenceStep | None:
    body = json.dumps({"inputs": [tensor], "parameters": parameters}).encode()
    return decode(body, None, None).sequence


def over_rest_in_slices(**parameters: Any) -> SequenceStep | None:
    return over_rest(LARGE, **parameters)


def over_grpc(**parameters: Any) -> SequenceStep | None:
    choices = {int: "uint64_param", str: "string_param", bool: "bool_param", float: "double_param"}
    request = pb.ModelInferRequest()
    for name, value in parameters.items():
        parameter = request.parameters[name]
        if value is not None:
            negative = isinstance(value, int) and value < 0
            setattr(parameter, "int64_param" if negative else choices[type(value)], value)
    sent = pb.ModelInferRequest.FromString(request.SerializeToString())
    return grpc_codec.asked_parameters(sent).sequence


EDGES = pytest.mark.parametrize("read", [over_rest, over_rest_in_slices, over_grpc])


@EDGES
@pytest.mark.parametrize(
    ("parameters", "step"),
    [
        ({}, None),
        ({"sequence_id": 0}, None),
        ({"sequence_id": ""}, None),
        ({"sequence_id": 0, "sequence_start": False, "sequence_end": False}, None),
        ({"sequence_id": 7}, ("7", False, False)),
        ({"sequence_id": 2**64 - 1, "sequence_start": True}, (str(2**64 - 1), True, False)),
        ({"sequence_id": "0", "sequence_end": True}, ("0", False, True)),
        ({"sequence_id": "ä" * 64, "sequence_start": True, "sequence_end": True},
         ("ä" * 64, True, True)),
    ],
)  # fmt: skip
def test_given(read: Any, parameters: dict[str, Any], step: tuple[str, bool, bool] | None) -> None:
    found = read(**parameters)
    assert (found and msgspec.structs.astuple(found)[:3]) == step


@EDGES
@pytest.mark.parametrize("name", ["sequence_start", "sequence_end"])
@pytest.mark.parametrize("sequence", [{}, {"sequence_id": 0}, {"sequence_id": ""}])
def test_control_without_a_sequence(read: Any, name: str, sequence: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match=f"'{name}' is true.*give the 'sequence_id'"):
        read(**sequence, **{name: True})


@EDGES
@pytest.mark.parametrize("name", ["ä" * 65, "x" * 129, "x" * 100_000])
def test_id_that_is_too_long(read: Any, name: str) -> None:
    with pytest.raises(InvalidRequestError, match="more than 128 bytes") as raised:
        read(sequence_id=name)
    assert len(str(raised.value)) < 300


@EDGES
@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("sequence_id", False, "a string, or a whole number .*, and is False; leave it out"),
        ("sequence_id", True, "and is True"),
        ("sequence_id", 0.0, "and is 0.0"),
        ("sequence_id", 1.5, "and is 1.5"),
        ("sequence_id", -1, "and is -1"),
        ("sequence_start", 0, "a boolean, and is 0"),
        ("sequence_start", "false", "a boolean, and is 'false'"),
        ("sequence_end", 1.0, "a boolean, and is 1.0"),
    ],
)
def test_value_of_the_wrong_type(read: Any, name: str, value: object, said: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"'{name}'.*{said}"):
        read(**{name: value})


@pytest.mark.parametrize("value", [2**64, None, [0]])
@pytest.mark.parametrize("read", [over_rest, over_rest_in_slices])
def test_value_that_only_json_has(read: Any, value: object) -> None:
    with pytest.raises(InvalidRequestError, match=r"'sequence_id'.* must be "):
        read(sequence_id=value)


@pytest.mark.parametrize("name", ["sequence_id", "sequence_start", "sequence_end"])
def test_value_that_only_protobuf_has(name: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"'{name}' must be .*, and is None"):
        over_grpc(**{name: None})
