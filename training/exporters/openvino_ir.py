"""Exports a checkpoint to OpenVINO's intermediate representation: graph (.xml), weights (.bin).

The source is the exported program, because 8 bits move the answers of attention ten times as far in
its ONNX graph; it is the ONNX graph if the model has recurrent layers or loops, which OpenVINO does
not accept from torch.

Formats: FP32, or quantized by NNCF (weights and activations, or weights alone). The host that loads
it decides the compute precision of the CPU.
"""

import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from flambeau.protocol.signature import Signature, TensorSpec
from flambeau.protocol.tensors import Array
from model_store.host.cpu_features import BF16_FEATURES, cpu_features
from model_store.manifest import Precision
from training.errors import ExportError
from training.exporters.exporter import ExportJob
from training.exporters.onnx_exporter import fp32_graph
from training.network.runner import Runner
from training.process.quiet import quiet
from training.programs.calibration import calibration_batches
from training.programs.exported_program import exported_program, has_loops
from training.programs.step_operations import ONNX_PREFIX, is_of_step
from training.recipe.recipe import Recipe

CHATTY_LOGGERS = ("nncf", "openvino")
RECURRENT = {"GRUSequence", "LSTMSequence", "RNNSequence"}
"""OpenVINO's operators of whole recurrent layers."""


def write(model: nn.Module, example: tuple[Tensor, ...], job: ExportJob) -> None:
    """Writes the graph in the entry's precision; see `Exporter.write`."""
    check_bf16(job.entry.precision)
    _check_resize(job.recipe)
    program = exported_program(model, example, job.signature)
    write_openvino(
        fp32_graph(model, example, job) if has_loops(program) else program,
        job.signature,
        job.path,
        calibration=job.inputs if job.method == "static" else None,
        weights_only=job.method == "weights",
    )


def open_file(path: Path, precision: Precision, signature: Signature) -> Runner:
    """Opens a file in OpenVINO; see `Exporter.open_file`."""
    import openvino

    settings = {
        "INFERENCE_NUM_THREADS": 1,
        "NUM_STREAMS": 1,
        "INFERENCE_PRECISION_HINT": "bf16" if precision == "bf16" else "f32",
    }
    compiled = openvino.Core().compile_model(str(path), "CPU", settings)
    request = compiled.create_infer_request()
    names = [spec.name for spec in signature.outputs]

    def run(inputs: Mapping[str, Array]) -> dict[str, Array]:
        found = request.infer(dict(inputs))
        return {name: np.array(found[name]) for name in names}

    return run


def check_bf16(precision: Precision) -> None:
    """Refuses bfloat16 on a processor without instructions for it.

    Raises:
        ExportError: it has none.
    """
    if precision == "bf16" and not BF16_FEATURES.intersection(cpu_features()):
        raise ExportError(
            "this processor has no instructions for bfloat16 "
            f"({' or '.join(sorted(BF16_FEATURES))}), so OpenVINO would compute in FP32; "
            "export it where it is to run"
        )


def _check_resize(recipe: Recipe) -> None:
    for position, step in enumerate(recipe.preprocess):
        if step.resize is not None and step.resize.antialias:
            raise ExportError(
                f"preprocess.{position}.resize has antialias: true, and OpenVINO has no such "
                "operation; take antialias: false, or drop kind: openvino"
            )


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
        source: FP32 model, as a program or as an ONNX file.
        signature: signature with the names of the inputs and outputs.
        path: output file, whose name ends in `.xml`.
        calibration: rows of training data by input name, each [rows, ...]; if given, weights and
            activations are quantized to 8 bits.
        weights_only: True to quantize only the weights to 8 bits.

    Raises:
        ImportError: openvino or nncf is not installed.
        ExportError: the model has layers that cannot be quantized.
        Exception: any exception of these libraries for an unsupported model.
    """
    # Blocking this package disables OpenVINO's telemetry.
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
    """Converts a model to OpenVINO, and returns the names of its preprocessing operations."""
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
    """Quantizes a graph, except the operations of the given program nodes."""
    import nncf
    from nncf.quantization.advanced_parameters import AdvancedQuantizationParameters, OverflowFix

    nncf.set_log_level(logging.CRITICAL)
    check_narrows({op.get_type_name() for op in model.get_ops()}, calibration is None)
    # An operation's name starts with its node and a slash.
    operations = [op.get_friendly_name() for op in model.get_ordered_ops()]
    names = [name for name in operations if name.split("/")[0] in of_steps]
    ignored = nncf.IgnoredScope(names=names)
    if calibration is None:
        mode = nncf.CompressWeightsMode.INT8_ASYM
        return nncf.compress_weights(model, mode=mode, ignored_scope=ignored)
    named = {spec.name: calibration[spec.name] for spec in signature.inputs}
    rows = list(calibration_batches(named, signature))
    return nncf.quantize(
        model,
        nncf.Dataset(rows),
        subset_size=len(rows),
        ignored_scope=ignored,
        # Same as the 7 bits of the other quantizers: CPUs without VNNI overflow with 8.
        advanced_parameters=AdvancedQuantizationParameters(overflow_fix=OverflowFix.ENABLE),
    )


def check_narrows(operators: set[str], weights_only: bool) -> None:
    """Rejects graphs for which NNCF, or OpenVINO's CPU plugin, fails with an internal error.

    Args:
        operators: OpenVINO names of the graph's operators.
        weights_only: True if activations stay unquantized.

    Raises:
        ExportError: an operator cannot be quantized; the message names an alternative.
    """
    dynamic = "{kind: onnx, precision: int8, method: dynamic}"
    if "Loop" in operators:
        raise ExportError(f"NNCF does not quantize a graph with a loop; use {dynamic}")
    if not weights_only and operators & RECURRENT:
        raise ExportError(
            "OpenVINO does not run recurrent layers whose activations are 8 bits wide; use "
            f"method: weights, or {dynamic}"
        )
