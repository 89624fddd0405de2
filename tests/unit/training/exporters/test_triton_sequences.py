"""Triton's configuration of a model with sequences, as Triton's own messages read it."""

import pytest
from google.protobuf import text_format

from flambeau.protocol.called_signature import for_callers
from flambeau.protocol.tensor_spec import TensorSpec
from protos import model_config_pb2 as pb
from services.gateway.edges.administration.model_config import config_message
from services.queueing.records import Execution, Lane, ServedVersion
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
    assert total.initial_state[0].data_file == "state_1"


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


@pytest.mark.parametrize("strategy", ["oldest", "direct", None])
def test_file_and_message_of_a_server_agree_on_what_callers_see(strategy: str | None) -> None:
    """Beside it, the file has states and controls, and batches: a step of a caller has one row."""
    signature = declared(
        states=STATES, max_idle_s=0.5, max_sequences=9, strategy=strategy or "oldest",
        inputs=_batch_first(),
    )  # fmt: skip
    if strategy is None:
        signature = signature.model_copy(update={"sequence": None})
    served = ServedVersion(lane=Lane("m", 1), state="ready", execution=Execution(file="model.onnx"))
    written = parsed(config_pbtxt("m", "onnx", "model.onnx", signature))
    answered = config_message(served, for_callers(signature), [1])
    assert (written.name, written.default_model_filename) == ("m", "model.onnx")
    assert answered.default_model_filename == "model.onnx"
    assert (written.input, written.output) == (answered.input, answered.output)
    assert answered.max_batch_size == (1 if strategy else written.max_batch_size)
    for field in ("state", "control_input"):
        written.sequence_batching.ClearField(field)
    if strategy is None:
        written.ClearField("sequence_batching")
    assert written.sequence_batching == answered.sequence_batching
    assert written.HasField("sequence_batching") == answered.HasField("sequence_batching")
