"""Triton's configuration of a model with sequences, as Triton's own messages read it."""

import pytest
from google.protobuf import text_format

from flambeau.protocol.tensor_spec import TensorSpec
from protos import model_config_pb2 as pb
from tests.unit.protocol.test_sequence_spec import CONTROLS, INPUTS, STATES, declared, tensor
from training.exporters.triton_config import config_pbtxt

KINDS = pb.ModelSequenceBatching.Control


def parsed(text: str) -> pb.ModelConfig:
    return text_format.Parse(text, pb.ModelConfig())


def test_states_and_controls_are_no_inputs_or_outputs() -> None:
    signature = declared(
        states=STATES, **CONTROLS, max_idle_s=0.5, max_sequences=9, inputs=_batch_first()
    )
    config = parsed(config_pbtxt("m", "onnx", "model.onnx", signature))
    assert [one.name for one in config.input] == ["x"]
    assert [one.name for one in config.output] == ["y"]
    batching = config.sequence_batching
    assert batching.max_sequence_idle_microseconds == 500_000
    assert batching.oldest.max_candidate_sequences == 9
    controls = {one.name: one.control[0] for one in batching.control_input}
    assert {name: one.kind for name, one in controls.items()} == {
        "first": KINDS.CONTROL_SEQUENCE_START,
        "last": KINDS.CONTROL_SEQUENCE_END,
        "on": KINDS.CONTROL_SEQUENCE_READY,
        "who": KINDS.CONTROL_SEQUENCE_CORRID,
    }
    assert list(controls["first"].fp32_false_true) == [0, 1]
    assert list(controls["last"].int32_false_true) == [-1, 1]
    assert list(controls["on"].bool_false_true) == [False, True]
    assert controls["who"].data_type == pb.TYPE_UINT64
    h, total = batching.state
    assert (h.input_name, h.output_name, h.data_type, list(h.dims)) == (
        "h", "h_out", pb.TYPE_FP32, [2, 3],
    )  # fmt: skip
    assert h.initial_state[0].zero_data
    assert total.initial_state[0].data_file == "sum"


def test_state_whose_batch_is_not_the_first_axis_is_that_of_one_sequence() -> None:
    config = parsed(config_pbtxt("m", "onnx", "model.onnx", declared(states=STATES)))
    assert config.max_batch_size == 0
    assert list(config.sequence_batching.state[0].dims) == [2, 1, 3]


def test_torchscript_tells_tensors_apart_by_their_place_among_all() -> None:
    signature = declared(states=STATES, strategy="direct", inputs=_batch_first())
    config = parsed(config_pbtxt("m", "torchscript", "model.pt", signature))
    assert [one.name for one in config.input] == [
        "x__0", "first__3", "last__4", "on__5", "who__6",
    ]  # fmt: skip
    states = [(one.input_name, one.output_name) for one in config.sequence_batching.state]
    assert states == [("h__1", "h_out__1"), ("sum__2", "sum_out__2")]
    assert config.sequence_batching.HasField("direct")


@pytest.mark.parametrize("kind", ["onnx", "torchscript"])
def test_model_without_sequences_has_no_sequence_batching(kind: str) -> None:
    signature = declared().model_copy(update={"sequence": None})
    text = config_pbtxt("m", "onnx", "model.onnx", signature)
    assert not parsed(text).HasField("sequence_batching")


def _batch_first() -> tuple[TensorSpec, ...]:
    return (INPUTS[0], tensor("h", "FP32", 2, 3), *INPUTS[2:])
