"""Our .proto equals tritonclient's on the wire: every name, number and type that we define."""

from typing import Any

import pytest
from google.protobuf.descriptor import FileDescriptor

from flambeau.protocol.messages import inference, jobs, training
from protos import open_inference_pb2
from protos.flambeau.v1 import jobs_pb2, training_pb2
from tests.contract.proto_description import described
from tests.fixtures.triton_messages import DESCRIPTOR

OURS_ALONE = "ModelMetadataResponse.properties"
ITS_MAP_ENTRY = {f"ModelMetadataResponse.PropertiesEntry.{name}" for name in ("key", "value")}
"""The Open Inference Protocol has it, Triton does not: a client without it skips the bytes."""


@pytest.fixture(scope="module")
def ours() -> dict[str, Any]:
    file: FileDescriptor = open_inference_pb2.DESCRIPTOR
    return described(file)


@pytest.fixture(scope="module")
def theirs() -> dict[str, Any]:
    return described(DESCRIPTOR)


def test_package_is_theirs(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert ours["package"] == theirs["package"] == "inference"


def test_fields_are_theirs(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert len(ours["fields"]) > 60
    apart = {OURS_ALONE, *ITS_MAP_ENTRY}
    common = {name: field for name, field in ours["fields"].items() if name not in apart}
    assert common == {name: theirs["fields"].get(name) for name in common}


def test_field_of_ours_alone_takes_no_number_of_theirs(
    ours: dict[str, Any], theirs: dict[str, Any]
) -> None:
    message = OURS_ALONE.rpartition(".")[0]
    taken = {
        field["number"]
        for name, field in theirs["fields"].items()
        if name.rpartition(".")[0] == message
    }
    assert len(taken) == 5
    assert ours["fields"][OURS_ALONE]["number"] not in taken


def test_fields_they_add_to_our_messages_are_known(
    ours: dict[str, Any], theirs: dict[str, Any]
) -> None:
    """A field of theirs that we do not read would be ignored in silence."""
    messages = {name.rpartition(".")[0] for name in ours["fields"]}
    added = {name for name in theirs["fields"] if name.rpartition(".")[0] in messages}
    assert added - set(ours["fields"]) == set()


def test_methods_are_theirs(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert len(ours["methods"]) == 6
    assert ours["methods"] == {name: theirs["methods"].get(name) for name in ours["methods"]}


@pytest.mark.parametrize(
    ("file", "stubs"),
    [
        (inference.ModelInferRequest.DESCRIPTOR.file, open_inference_pb2.DESCRIPTOR),
        (jobs.Job.DESCRIPTOR.file, jobs_pb2.DESCRIPTOR),
        (training.TrainingJob.DESCRIPTOR.file, training_pb2.DESCRIPTOR),
    ],
    ids=lambda file: file.name,
)
def test_descriptors_of_the_client_are_those_of_the_stubs(
    file: FileDescriptor, stubs: FileDescriptor
) -> None:
    assert described(file) == described(stubs), "run: make protos"
    assert file.pool is not stubs.pool
