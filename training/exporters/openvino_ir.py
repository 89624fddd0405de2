"""Checkpoint to OpenVINO's intermediate representation: a graph (.xml) and its weights (.bin).

From the exported program, because 8 bits move the answers of attention ten times as far in its ONNX
graph; from that one where the model has recurrent layers or loops, which OpenVINO does not take
from torch.

In FP32; quantized by NNCF, weights and activations or the weights alone. Which precision the
processor computes in is decided where it is loaded.
"""

import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from model_store.signature import Signature, TensorSpec
from model_store.tensors import Array
from training.errors import ExportError
from training.exporters.calibration import calibration_batches
from training.exporters.step_operations import ONNX_PREFIX, is_of_step
from training.process.quiet import quiet

CHATTY_LOGGERS = ("nncf", "openvino")
RECURRENT = {"GRUSequence", "LSTMSequence", "RNNSequence"}
"""OpenVINO's operators of whole layers."""


def write_openvino(
    source: torch.export.ExportedProgram | Path,
    signature: Signature,
    path: Path,
    *,
    calibration: Mapping[str, Array] | None = None,
    weights_only: bool = False,
) -> None:
    """Writes `path` and, beside it, the weights under the same name with `.bin`.

    Args:
        source: the model in FP32, as a program or as an ONNX file.
        signature: names the inputs and outputs.
        path: the file to write, whose name ends in `.xml`.
        calibration: rows of training data by input name, each [rows, ...]: with them, weights and
            activations become 8 bits wide.
        weights_only: only the weights become 8 bits wide.

    Raises:
        ImportError: openvino or nncf is not installed.
        ExportError: it has layers that cannot become 8 bits wide.
        Exception: whatever they raise for a model they cannot take.
    """
    # Without this package of theirs nothing is reported to anybody.
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    import openvino

    with quiet(loggers=CHATTY_LOGGERS):
        model, of_steps = _read(source)
        for ports, specs in ((model.inputs, signature.inputs), (model.outputs, signature.outputs)):
            _name(ports, specs)
        if weights_only or calibration is not None:
            model = _narrow(model, signature, calibration, of_steps)
        openvino.save_model(model, str(path), compress_to_fp16=False)


def _read(source: torch.export.ExportedProgram | Path) -> tuple[Any, set[str]]:
    """OpenVINO's form of a model, and what the operations of its steps are called by."""
    import openvino
    from openvino.frontend.pytorch.fx_decoder import TorchFXPythonDecoder

    if isinstance(source, Path):
        return openvino.convert_model(source), {ONNX_PREFIX.rstrip("/")}
    decoder = TorchFXPythonDecoder.from_exported_program(source)
    of_steps = {node.name for node in decoder.pt_module.graph.nodes if is_of_step(node)}
    return openvino.convert_model(decoder), of_steps


def _name(ports: Any, specs: tuple[TensorSpec, ...]) -> None:
    for port, spec in zip(ports, specs, strict=True):
        port.get_tensor().set_names({spec.name})


def _narrow(
    model: Any, signature: Signature, calibration: Mapping[str, Array] | None, of_steps: set[str]
) -> Any:
    """Makes a graph narrower, but for the operations made of some nodes of the program."""
    import nncf
    from nncf.quantization.advanced_parameters import AdvancedQuantizationParameters, OverflowFix

    nncf.set_log_level(logging.CRITICAL)
    check_narrows({op.get_type_name() for op in model.get_ops()}, calibration is None)
    # An operation is called by its node, a slash and more.
    operations = [op.get_friendly_name() for op in model.get_ordered_ops()]
    names = [name for name in operations if name.split("/")[0] in of_steps]
    ignored = nncf.IgnoredScope(names=names)
    if calibration is None:
        mode = nncf.CompressWeightsMode.INT8_ASYM
        return nncf.compress_weights(model, mode=mode, ignored_scope=ignored)
    named = {spec.name: calibration[spec.name] for spec in signature.inputs}
    rows = list(calibration_batches(named))
    return nncf.quantize(
        model,
        nncf.Dataset(rows),
        subset_size=len(rows),
        ignored_scope=ignored,
        # Like the 7 bits of the other quantizers: processors without VNNI overflow with 8.
        advanced_parameters=AdvancedQuantizationParameters(overflow_fix=OverflowFix.ENABLE),
    )


def check_narrows(operators: set[str], weights_only: bool) -> None:
    """Says in words what NNCF, or OpenVINO's CPU plugin after it, ends with an internal error on.

    Args:
        operators: of the graph, as OpenVINO names them.
        weights_only: whether activations stay as they are.

    Raises:
        ExportError: one of them cannot become 8 bits wide; it names what can.
    """
    dynamic = "{kind: onnx, precision: int8, method: dynamic}"
    if "Loop" in operators:
        raise ExportError(f"NNCF does not quantize a graph with a loop; use {dynamic}")
    if not weights_only and operators & RECURRENT:
        raise ExportError(
            "OpenVINO does not run recurrent layers whose activations are 8 bits wide; use "
            f"method: weights, or {dynamic}"
        )
