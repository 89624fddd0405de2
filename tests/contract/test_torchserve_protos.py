"""Our .proto files of TorchServe's protocols equal TorchServe's: every name, number and type."""

from typing import Any

import pytest

from protos.torchserve import inference_pb2, management_pb2
from tests.contract.proto_description import described
from tests.fixtures.torchserve_messages import FILES, pb

OURS = {"inference": inference_pb2.DESCRIPTOR, "management": management_pb2.DESCRIPTOR}
RENAMED = {"org.pytorch.serve.grpc.inference.Status": "google.rpc.Status"}
"""A message with another name is the same on the wire."""


def _renamed(fields: dict[str, Any]) -> dict[str, Any]:
    return {
        name: {**field, "message": RENAMED.get(field["message"], field["message"])}
        for name, field in fields.items()
        if name.rpartition(".")[0] not in RENAMED
    }


@pytest.mark.parametrize(("name", "count"), [("inference", 10), ("management", 28)])
def test_fields_are_theirs(name: str, count: int) -> None:
    ours, theirs = described(OURS[name]), described(FILES[name])
    assert ours["package"] == theirs["package"]
    assert len(theirs["fields"]) == count
    assert _renamed(ours["fields"]) == theirs["fields"]
    assert ours["enums"] == theirs["enums"] == {}


@pytest.mark.parametrize(("name", "count"), [("inference", 4), ("management", 6)])
def test_calls_are_theirs(name: str, count: int) -> None:
    ours, theirs = described(OURS[name])["methods"], described(FILES[name])["methods"]
    assert len(theirs) == count
    assert ours == theirs


def test_status_is_theirs() -> None:
    (ours,) = RENAMED
    found = {
        name.removeprefix(f"{ours}."): field
        for name, field in described(OURS["inference"])["fields"].items()
        if name.startswith(ours)
    }
    fields = described(FILES["status"])["fields"].items()
    assert found == {name.rpartition(".")[2]: field for name, field in fields}


def test_presence_survives_the_wire() -> None:
    """An empty text of an optional field is not the same as none."""
    sent = pb.PredictionsRequest(model_name="m", input={"data": b"\0"}, sequence_id="")
    read = inference_pb2.PredictionsRequest.FromString(sent.SerializeToString())
    assert read.HasField("sequence_id")
    assert dict(read.input) == {"data": b"\0"}
    answer = inference_pb2.PredictionResponse(prediction=b"x")
    answer.status.code = 13
    told = pb.PredictionResponse.FromString(answer.SerializeToString())
    assert (told.status.code, told.HasField("sequence_id")) == (13, False)
