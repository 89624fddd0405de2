"""The configuration of a version, as message and as JSON."""

from typing import Any

import pytest
from google.protobuf import json_format

from flambeau.protocol.signature import Signature
from protos import model_config_pb2 as pb
from services.gateway.edges.administration.message_document import document_of
from services.gateway.edges.administration.model_config import config_message
from services.queueing.records import (
    PIPELINE_PLATFORM,
    Execution,
    Lane,
    PipelineStep,
    ServedVersion,
)
from tests.fixtures.signatures import one_to_one

LANE = Lane("m", 2)


def served(execution: Execution | None = None, **fields: Any) -> ServedVersion:
    found = {"platform": "onnx_onnxv1", "artifact": "onnx", **fields}
    return ServedVersion(lane=LANE, state="ready", execution=execution, **found)


def config(signature: Signature, execution: Execution | None = None, **fields: Any) -> Any:
    return document_of(config_message(served(execution, **fields), signature, [1, 2]))


def test_a_batched_model() -> None:
    execution = Execution(instances=2, file="model.onnx", batch_wait_us=1500, preferred_rows=(4, 8))
    assert config(one_to_one((3, -1), rows=8), execution, semver="1.2.0") == {
        "name": "m",
        "platform": "onnx_onnxv1",
        "backend": "flambeau",
        "runtime": "",
        "version_policy": {"specific": {"versions": [1, 2]}},
        "max_batch_size": 8,
        "input": [{
            "name": "x", "data_type": "TYPE_FP32", "format": "FORMAT_NONE", "dims": [3, -1],
            "is_shape_tensor": False, "allow_ragged_batch": False, "optional": False,
            "is_non_linear_format_io": False,
        }],
        "output": [{
            "name": "y", "data_type": "TYPE_FP32", "dims": [3, -1], "label_filename": "",
            "is_shape_tensor": False, "is_non_linear_format_io": False,
        }],
        "instance_group": [{"name": "m_0", "count": 2, "gpus": [], "kind": "KIND_CPU"}],
        "default_model_filename": "model.onnx",
        "dynamic_batching": {
            "preferred_batch_size": [4, 8],
            "max_queue_delay_microseconds": 1500,
            "preserve_ordering": False,
            "priority_levels": 10,
            "default_priority_level": 5,
            "default_queue_policy": {
                "timeout_action": "REJECT", "default_timeout_microseconds": 0,
                "allow_timeout_override": True, "max_queue_size": 0,
            },
            "priority_queue_policy": {},
        },
        "parameters": {"artifact": {"string_value": "onnx"}, "semver": {"string_value": "1.2.0"}},
        "model_transaction_policy": {"decoupled": False},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("device", "group"),
    [
        ("cpu", {"kind": "KIND_CPU", "gpus": []}),
        ("cuda", {"kind": "KIND_GPU", "gpus": [0]}),
        ("cuda:3", {"kind": "KIND_GPU", "gpus": [3]}),
    ],
)
def test_devices(device: str, group: dict[str, Any]) -> None:
    (found,) = config(one_to_one((3,)), Execution(device=device))["instance_group"]
    assert group.items() <= found.items()


def test_a_model_without_a_batch_has_whole_shapes() -> None:
    tensor: dict[str, Any] = {"name": "x", "datatype": "BYTES", "shape": [], "batch_axis": None}
    optional = {"name": "o", "datatype": "FP32", "shape": [-1, 2], "batch_axis": None,
                "optional": True}  # fmt: skip
    signature = Signature.model_validate(
        {"inputs": [tensor, optional], "outputs": [{**tensor, "name": "y"}], "max_batch_size": 1}
    )
    found = config(signature)
    assert found["max_batch_size"] == 0
    assert "dynamic_batching" not in found
    scalar, other = found["input"]
    assert (scalar["data_type"], scalar["dims"]) == ("TYPE_STRING", [1])
    assert scalar["reshape"] == {"shape": []}
    assert (other["dims"], other["optional"]) == ([-1, 2], True)
    assert "reshape" not in other


def test_a_model_with_several_answers_is_decoupled() -> None:
    found = config(one_to_one((3,)), Execution(gives_parts=True))
    assert found["model_transaction_policy"] == {"decoupled": True}


def test_a_pipeline_is_an_ensemble() -> None:
    step = PipelineStep(model="reader", version=-1, inputs={"crop": "a.crops"}, outputs={"t": "t"})
    found = config(
        one_to_one((3,), rows=4), Execution(steps=(step,)), platform=PIPELINE_PLATFORM, artifact=""
    )
    assert (found["platform"], found["backend"]) == ("ensemble", "")
    (told,) = found["ensemble_scheduling"]["step"]
    assert (told["model_name"], told["model_version"]) == ("reader", -1)
    assert (told["input_map"], told["output_map"]) == ({"crop": "a.crops"}, {"t": "t"})
    assert "dynamic_batching" not in found
    assert found["instance_group"] == []


def test_the_document_is_read_back_as_the_same_message() -> None:
    message = config_message(served(Execution(batch_wait_us=7)), one_to_one((3,), rows=4), [2**40])
    assert document_of(message)["version_policy"] == {"specific": {"versions": [2**40]}}
    assert json_format.ParseDict(document_of(message), pb.ModelConfig()) == message
