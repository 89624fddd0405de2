"""`sequence_batching` of a Triton repository is read as a declaration, or refused by name."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from onnx import helper
from torch import Tensor, nn

from flambeau.protocol.sequence_spec import MAX_IDLE_S, MAX_INITIAL, MAX_OPEN, Sequences
from flambeau.protocol.tensors import Array
from tests.fixtures import onnx_models
from tests.fixtures.stateful_models import SEQUENCE, running_sum
from training.errors import SourceError
from training.exporters.triton_config import config_pbtxt, initial_states
from training.importing.original import Original
from training.importing.sources import onnx_file
from training.importing.sources.source_options import SourceOptions
from training.importing.sources.triton.triton_repository import read
from training.process.quiet import quiet

CONTROLS = """
  control_input {
    name: "first" control { kind: CONTROL_SEQUENCE_START bool_false_true: [false, true] }
  }
  control_input { name: "last" control { kind: CONTROL_SEQUENCE_END int32_false_true: [0, 1] } }
  control_input { name: "who" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } }
"""
STATE = 'state { input_name: "total" output_name: "after" data_type: TYPE_FP32 dims: [ 1 ] }'


def config(batching: str) -> str:
    """Returns the configuration of the running sum."""
    return (
        'platform: "onnxruntime_onnx" max_batch_size: 8\n'
        'input [ { name: "x" data_type: TYPE_FP32 dims: [ 1 ] } ]\n'
        'output [ { name: "sum" data_type: TYPE_FP32 dims: [ 1 ] },\n'
        '  { name: "told" data_type: TYPE_FP64 dims: [ 3 ] } ]\n'
        f"sequence_batching {{ {batching} }}\n"
    )


def repository(
    folder: Path, text: str, data: bytes | None = None, initial: Array | None = None
) -> Path:
    """Writes a model folder; `initial` is the file `start` of an initial state."""
    (folder / "net/1").mkdir(parents=True)
    (folder / "net/1/model.onnx").write_bytes(data or running_sum())
    (folder / "net/config.pbtxt").write_text(text)
    if initial is not None:
        (folder / "net/initial_state").mkdir()
        (folder / "net/initial_state/start").write_bytes(initial.tobytes())
    return folder


def read_one(folder: Path) -> Original:
    (found,) = read(folder, SourceOptions(), folder / "staging")
    assert isinstance(found, Original)
    return found


def sequences(folder: Path) -> Sequences:
    found = read_one(folder).signature.sequence
    assert found is not None
    return found


def test_what_we_write_is_read_back_as_declared(tmp_path: Path) -> None:
    file = tmp_path / "net.onnx"
    file.write_bytes(running_sum())
    declared = Sequences.model_validate({**SEQUENCE, "max_sequences": 9, "max_idle_s": 2.5})
    written = onnx_file.read(file, SourceOptions(), tmp_path / "own").with_sequences(declared)
    text = config_pbtxt("net", "onnx", "model.onnx", written.signature)
    initial = np.array([100], np.float32)
    assert initial_states(written.signature) == {"state_0": initial.tobytes()}
    text = text.replace('data_file: "state_0"', 'data_file: "start"')
    original = read_one(repository(tmp_path / "r", text, initial=initial))
    assert original.signature == written.signature


def test_defaults_are_those_of_triton(tmp_path: Path) -> None:
    found = sequences(repository(tmp_path, config(CONTROLS + STATE)))
    assert (found.strategy, found.max_idle_s) == ("direct", 1)
    assert found.states["total"].initial == 0
    assert found.inputs == ("total", "first", "last", "who")


@pytest.mark.parametrize(
    ("datatype", "initial", "expected"),
    [
        ("FP32", np.array([0.5, 0.5], np.float32), 0.5),
        ("INT64", np.array([3, -4], np.int64), (3, -4)),
        ("BF16", np.array([0x3F80, 0x4000], np.uint16), (1.0, 2.0)),
        ("BOOL", np.array([True, True]), 1),
    ],
)
def test_initial_states_are_read_from_their_files(
    tmp_path: Path, datatype: str, initial: Array, expected: Any
) -> None:
    state = (
        f'state {{ input_name: "h" output_name: "h2" data_type: TYPE_{datatype} dims: [ 2 ] '
        f"initial_state {{ data_type: TYPE_{datatype} dims: [ 2 ] data_file: "
        '"start" name: "any" } }'
    )
    declared = "BF16" if datatype == "BF16" else datatype
    assert declared in state
    if datatype == "BF16":  # ONNX Runtime takes none from numpy: the reader alone
        from training.importing.sources.triton.triton_model import read_model

        repository(tmp_path, config(state), initial=initial)
        found = read_model(tmp_path / "net").sequences
    else:
        data = onnx_models.model(
            [helper.make_node("Identity", ["h"], ["h2"]), helper.make_node("Neg", ["x"], ["sum"]),
             helper.make_node("Cast", ["x"], ["told"], to=11)],
            [("x", "FP32", [-1, 1]), ("h", datatype, [-1, 2])],
            [("sum", "FP32", [-1, 1]), ("told", "FP64", [-1, 1]), ("h2", datatype, [-1, 2])],
            {},
        )  # fmt: skip
        found = sequences(repository(tmp_path, config(state), data, initial))
    assert found is not None
    assert found.states["h"].initial == expected


def test_limits_above_ours_and_settings_of_the_server_are_noted(tmp_path: Path) -> None:
    text = config(
        f"{CONTROLS}{STATE} max_sequence_idle_microseconds: 7200000000 "
        "oldest { max_candidate_sequences: 100000 max_queue_delay_microseconds: 5 }"
    )
    original = read_one(repository(tmp_path, text))
    found = original.signature.sequence
    assert found is not None
    assert (found.max_idle_s, found.max_sequences) == (MAX_IDLE_S, MAX_OPEN)
    notes = "\n".join(original.notes)
    assert "sequences end after an hour" in notes
    assert "sequences beyond 65,536 get 503 here" in notes
    assert "max_queue_delay_microseconds are settings of the server" in notes
    assert "not understood" not in notes


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("state {", "iterative_sequence: true state {", "iterative_sequence runs a request"),
        ("state {", "next_field: 1 state {", "sequence_batching.next_field is not understood"),
        ("state {", "direct { new: 1 } state {", "direct.new is not understood"),
        ("state {", "direct {} oldest {} state {", "direct and oldest; keep one"),
        ("state {", "oldest { max_candidate_sequences: -1 } state {", "write 1 up"),
        ("state {", "state { use_growable_memory: true ", "grows"),
        ("state {", f"{STATE} state {{", "is there twice"),
        ("TYPE_FP32 dims: [ 1 ] }", "TYPE_STRING dims: [ 1 ] }", "is text, which has no fixed"),
        ("TYPE_FP32 dims: [ 1 ] }", "TYPE_FP33 dims: [ 1 ] }", "did you mean 'TYPE_FP3"),
        ('"after"', '"aftr"', "names output 'aftr'.*did you mean 'after'"),
        ('"first"', '"frst"', "names input 'frst'.*did you mean 'first'"),
        ("SEQUENCE_START", "SEQUENCE_BEGIN", "kind 'BEGIN'; write one of"),
        ("SEQUENCE_START", "SEQUENCE_END", "second control of its kind"),
        ("bool_false_true: [false, true]", "", "needs one of int32_false_true"),
        ("[false, true]", "[false]", "has 1 values of bool_false_true"),
        ("[0, 1]", "[0, inf]", "write two numbers"),
        ("control { kind", "control { } control { kind", "has 2 controls"),
        ("dims: [ 1 ] }", "dims: [ 1 ] initial_state { data_file: '../x' data_type: TYPE_FP32 } }",
         "asks for the file"),
        ("dims: [ 1 ] }", "dims: [ 1 ] initial_state { data_file: 'y' data_type: TYPE_FP32 } }",
         "is not in"),
        ("dims: [ 1 ] }", "dims: [ 1 ] initial_state { data_file: 'y' data_type: TYPE_FP64 } }",
         "differ in data_type"),
        ("dims: [ 1 ] }", "dims: [ 1 ] initial_state {} initial_state {} }", "2 initial states"),
    ],
)  # fmt: skip
def test_what_cannot_be_kept_is_refused_by_name(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    text = config((CONTROLS + STATE).replace(old, new, 1))
    with pytest.raises(SourceError, match=message):
        read_one(repository(tmp_path, text))


def test_the_file_decides_on_sizes_and_a_state_may_be_listed_as_an_output(tmp_path: Path) -> None:
    text = config(CONTROLS + STATE.replace("dims: [ 1 ]", "dims: [ -1 ]"))
    text = text.replace("output [", 'output [ { name: "after" data_type: TYPE_FP32 dims: [ 1 ] },')
    assert sequences(repository(tmp_path, text)).outputs == ("after",)


@pytest.mark.parametrize(
    ("dims", "initial", "message"),
    [
        (2, np.zeros(3, np.float32), "2 elements of FP32, 8 bytes, and .* has 12"),
        (2, np.array([1, np.nan], np.float32), "infinite or undefined numbers"),
        (MAX_INITIAL + 1, np.arange(MAX_INITIAL + 1, dtype=np.float32), "65,536 are kept"),
        (2**25, np.zeros(1, np.float32), "the limit is 67,108,864"),
    ],
)
def test_initial_states_that_cannot_be_kept(
    tmp_path: Path, dims: int, initial: Array, message: str
) -> None:
    state = (
        'state { input_name: "total" output_name: "after" data_type: TYPE_FP32 '
        f'dims: [ {dims} ] initial_state {{ data_type: TYPE_FP32 data_file: "start" }} }}'
    )
    with pytest.raises(SourceError, match=message):
        read_one(repository(tmp_path, config(CONTROLS + state), initial=initial))


def test_made_up_rows_of_a_model_with_its_own_state_are_first_steps(tmp_path: Path) -> None:
    data = onnx_models.model(
        [helper.make_node("Add", ["x", "start"], ["part"]),
         helper.make_node("Add", ["part", "end"], ["y"])],
        [(name, "FP32", [-1, 1]) for name in ("x", "start", "end")], [("y", "FP32", [-1, 1])], {},
    )  # fmt: skip
    text = """
    platform: "onnxruntime_onnx" max_batch_size: 8
    input [ { name: "x" data_type: TYPE_FP32 dims: [ 1 ] } ]
    output [ { name: "y" data_type: TYPE_FP32 dims: [ 1 ] } ]
    sequence_batching { oldest { }
      control_input [
        { name: "start" control [ { fp32_false_true: [ 2, 3 ] } ] },
        { name: "end" control [ { kind: 2 fp32_false_true: [ 0, 1 ] } ] }
      ] }
    """
    original = read_one(repository(tmp_path, text, data))
    assert original.made_up
    assert original.examples is not None
    assert set(original.examples["start"].ravel()) == {3}
    assert set(original.examples["end"].ravel()) == {0}


class Summing(nn.Module):
    """A running sum, whose tensors Triton tells apart by position."""

    def forward(self, total: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Returns twice the input, and the sum with it."""
        return x * 2, total + x


SCRIPT = """
platform: "pytorch_libtorch" max_batch_size: 8
input [ { name: "X__1" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [
  { name: "Y__0" data_type: TYPE_FP32 dims: [ 1 ] },
  { name: "H__1" data_type: TYPE_FP32 dims: [ 1 ] }
]
sequence_batching { state {
  input_name: "H__0" output_name: "H__1" data_type: TYPE_FP32 dims: [ 1 ]
} }
"""


def script_repository(folder: Path, text: str = SCRIPT) -> Path:
    repository(folder, text)
    with quiet(DeprecationWarning):
        torch.jit.script(Summing()).save(folder / "net/1/model.pt")  # type: ignore[no-untyped-call]
    return folder


def test_states_of_torchscript_are_told_by_position(tmp_path: Path) -> None:
    script_repository(tmp_path)
    signature = read_one(tmp_path).signature
    assert [spec.name for spec in signature.inputs] == ["H__0", "X__1"]
    assert [spec.name for spec in signature.outputs] == ["Y__0", "H__1"]
    assert signature.sequence is not None
    assert signature.sequence.states["H__0"].output == "H__1"


def test_state_of_torchscript_has_fixed_sizes(tmp_path: Path) -> None:
    before, after = SCRIPT.split("output_name")
    text = f"{before}output_name{after.replace('[ 1 ]', '[ -1 ]')}"
    with pytest.raises(SourceError, match="every dimension but the batch must have a fixed size"):
        read_one(script_repository(tmp_path, text))


def test_sequences_of_a_platform_that_is_not_read_refuse_nothing(tmp_path: Path) -> None:
    repository(tmp_path, config(CONTROLS + STATE))
    (tmp_path / "llm").mkdir()
    text = 'backend: "python" sequence_batching { iterative_sequence: true }'
    (tmp_path / "llm/config.pbtxt").write_text(text)
    assert read_one(tmp_path).name == "net"
