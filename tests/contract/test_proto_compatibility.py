"""Our .proto files equal tritonclient's on the wire: every name, number and type we define."""

from typing import Any

import pytest
from google.protobuf.descriptor import FileDescriptor

from flambeau.protocol.messages import inference, jobs, training
from protos import model_config_pb2, open_inference_pb2, tensorflow_serving_pb2
from protos.flambeau.v1 import jobs_pb2, training_pb2
from tests.contract.proto_description import described, together
from tests.fixtures.tensorflow_messages import FILES
from tests.fixtures.triton_messages import DESCRIPTOR

OURS_ALONE = "ModelMetadataResponse.properties"
ITS_MAP_ENTRY = {f"ModelMetadataResponse.PropertiesEntry.{name}" for name in ("key", "value")}
"""The Open Inference Protocol has it, Triton does not: a client without it skips the bytes."""
LEFT_OUT = {
    "ModelConfig.batch_input", "ModelConfig.batch_output", "ModelConfig.cc_model_filenames",
    "ModelConfig.metric_tags", "ModelConfig.model_metrics", "ModelConfig.model_operations",
    "ModelConfig.model_repository_agents", "ModelConfig.model_warmup", "ModelConfig.optimization",
    "ModelConfig.response_cache", "ModelInstanceGroup.host_policy", "ModelInstanceGroup.passive",
    "ModelInstanceGroup.profile", "ModelInstanceGroup.rate_limiter",
    "ModelInstanceGroup.secondary_devices",
}  # fmt: skip
"""Parts of a configuration that describe no model of ours; we send configurations, read none."""


@pytest.fixture(scope="module")
def ours() -> dict[str, Any]:
    files: list[FileDescriptor] = [open_inference_pb2.DESCRIPTOR, model_config_pb2.DESCRIPTOR]
    return together(*map(described, files))


@pytest.fixture(scope="module")
def theirs() -> dict[str, Any]:
    return together(described(DESCRIPTOR), *map(described, DESCRIPTOR.dependencies))


def test_package_is_theirs(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert ours["package"] == theirs["package"] == "inference"


def test_fields_are_theirs(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert len(ours["fields"]) > 200
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
    assert added - set(ours["fields"]) == LEFT_OUT


def test_enums_are_theirs(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert len(ours["enums"]) == 5
    assert ours["enums"] == {name: theirs["enums"].get(name) for name in ours["enums"]}


def test_methods_are_theirs(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert len(ours["methods"]) == 20
    assert ours["methods"] == theirs["methods"]


@pytest.mark.parametrize(
    ("file", "stubs"),
    [
        (inference.ModelInferRequest.DESCRIPTOR.file, open_inference_pb2.DESCRIPTOR),
        (
            inference.ModelConfigResponse().config.DESCRIPTOR.file,
            model_config_pb2.DESCRIPTOR,
        ),
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


def test_tensorflow_serving_is_theirs() -> None:
    """Their tensors are of another package; fields of ours have their names, numbers and types."""

    def plain(found: dict[str, Any]) -> dict[str, Any]:
        return {
            name.rpartition("tensorflow.")[2].removeprefix("serving."): {
                key: value.rpartition(".")[2] if isinstance(value, str) else value
                for key, value in field.items()
            }
            for name, field in found["fields"].items()
        }

    ours = plain(described(tensorflow_serving_pb2.DESCRIPTOR))
    theirs = {name: field for file in FILES for name, field in plain(described(file)).items()}
    assert len(ours) > 50
    apart = {"StatusProto.error_code"}  # an enum there, of gRPC's codes
    same = {name: field for name, field in ours.items() if name not in apart}
    assert same == {name: theirs.get(name) for name in same}
    types = tensorflow_serving_pb2.DataType.DESCRIPTOR.values_by_name
    (enum,) = (
        f.enum_types_by_name["DataType"] for f in FILES if "DataType" in f.enum_types_by_name
    )
    assert {name: one.number for name, one in types.items()} == {
        name: enum.values_by_name[name].number for name in types
    }
