"""The models of `server.py` for Triton's Python backend: the same names, tensors and answers."""

from pathlib import Path

from tests.conformance.generated import ECHOED
from tests.conformance.server import LABELS, MAX_ROWS

PLAIN = """
import json
import triton_python_backend_utils as utils


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.names = config["input"][0]["name"], config["output"][0]["name"]

    def execute(self, requests):
        given, made = self.names
        answers = []
        for request in requests:
            array = utils.get_input_tensor_by_name(request, given).as_numpy()
            array = 2 * array if made == "y" else array
            answers.append(utils.InferenceResponse([utils.Tensor(made, array)]))
        return answers
"""
"""Doubles `x` to `y`; gives any other input back."""
COUNT = """
import triton_python_backend_utils as utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            x = utils.get_input_tensor_by_name(request, "x").as_numpy()
            sender = request.get_response_sender()
            for number in range(int(x[0, 0])):
                sender.send(utils.InferenceResponse([utils.Tensor("y", 0 * x + number)]))
            sender.send(flags=utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
SAY = """
import numpy as np
import triton_python_backend_utils as utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            text, times = (
                utils.get_input_tensor_by_name(request, name).as_numpy()
                for name in ("text", "times")
            )
            sender = request.get_response_sender()
            for number in range(int(times[0])):
                left = np.array([int(times[0]) - number - 1], np.int32)
                tensors = [utils.Tensor("said", text), utils.Tensor("left", left)]
                sender.send(utils.InferenceResponse(tensors))
            sender.send(flags=utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
SUM = """
import numpy as np
import triton_python_backend_utils as utils


class TritonPythonModel:
    def initialize(self, args):
        self.totals = {}

    def execute(self, requests):
        answers = []
        for request in requests:
            x, first, last, who = (
                utils.get_input_tensor_by_name(request, name).as_numpy()
                for name in ("x", "first", "last", "who")
            )
            name = int(who.flat[0])
            total = np.float32(100) if first.flat[0] else self.totals[name]
            self.totals[name] = total + x[0, 0]
            told = [[float(first.flat[0]), float(last.flat[0]), float(name)]]
            answers.append(utils.InferenceResponse([
                utils.Tensor("sum", np.array([[self.totals[name]]], np.float32)),
                utils.Tensor("told", np.array(told, np.float64)),
            ]))
        return answers
"""
CONTROLS = """
sequence_batching {
  max_sequence_idle_microseconds: 60000000
  oldest { max_candidate_sequences: 64 }
  control_input [
    { name: "first" control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } ] },
    { name: "last" control [ { kind: CONTROL_SEQUENCE_END int32_false_true: [ 0, 1 ] } ] },
    { name: "who" control [ { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } ] }
  ]
}"""
DECOUPLED = "model_transaction_policy { decoupled: true }"


def write_models(folder: Path) -> None:
    """Writes the repository."""
    one = _tensor("x", "FP32", "4"), _tensor("y", "FP32", "4")
    labelled = _tensor("y", "FP32", "4", 'label_filename: "labels.txt"')
    _write(folder, "linear", PLAIN, MAX_ROWS, [one[0]], [labelled])
    (folder / "linear" / "labels.txt").write_text("\n".join(LABELS))
    for datatype in ECHOED:
        given, made = (_tensor(f"{way}_{datatype}", datatype, "-1") for way in ("in", "out"))
        _write(folder, f"echo-{datatype.lower()}", PLAIN, MAX_ROWS, [given], [made])
    _write(folder, "count", COUNT, 1, [one[0]], [one[1]], DECOUPLED)
    asked = [_tensor("text", "STRING", "1"), _tensor("times", "INT32", "1")]
    said = [_tensor("said", "STRING", "1"), _tensor("left", "INT32", "1")]
    _write(folder, "say", SAY, 0, asked, said, DECOUPLED)
    sums = [_tensor("sum", "FP32", "1"), _tensor("told", "FP64", "3")]
    _write(folder, "sum", SUM, MAX_ROWS, [_tensor("x", "FP32", "1")], sums, CONTROLS)


def _tensor(name: str, datatype: str, dims: str, more: str = "") -> str:
    return f'{{ name: "{name}" data_type: TYPE_{datatype} dims: [ {dims} ] {more} }}'


def _write(
    folder: Path,
    name: str,
    source: str,
    rows: int,
    inputs: list[str],
    outputs: list[str],
    more: str = "",
) -> None:
    version = folder / name / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(source)
    (version.parent / "config.pbtxt").write_text(
        f'backend: "python"\nmax_batch_size: {rows}\n'
        f"input [ {', '.join(inputs)} ]\noutput [ {', '.join(outputs)} ]\n"
        f"instance_group [ {{ kind: KIND_CPU count: 1 }} ]\n{more}\n"
    )
