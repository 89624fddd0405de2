"""Checkpoint to OpenVINO's intermediate representation: a graph (.xml) and its weights (.bin).

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
from training.exporters.calibration import calibration_batches
from training.exporters.step_operations import is_of_step
from training.quiet import quiet

CHATTY_LOGGERS = ("nncf", "openvino")


def write_openvino(
    program: torch.export.ExportedProgram,
    signature: Signature,
    path: Path,
    *,
    calibration: Mapping[str, Array] | None = None,
    weights_only: bool = False,
) -> None:
    """Writes `path` and, beside it, the weights under the same name with `.bin`.

    Args:
        program: the model in FP32.
        signature: names the inputs and outputs.
        path: the file to write, whose name ends in `.xml`.
        calibration: rows of training data by input name, each [rows, ...]: with them, weights and
            activations become 8 bits wide.
        weights_only: only the weights become 8 bits wide.

    Raises:
        ImportError: openvino or nncf is not installed.
        Exception: whatever they raise for a model they cannot take.
    """
    # Without this package of theirs nothing is reported to anybody.
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    import openvino
    from openvino.frontend.pytorch.fx_decoder import TorchFXPythonDecoder

    with quiet(loggers=CHATTY_LOGGERS):
        decoder = TorchFXPythonDecoder.from_exported_program(program)
        model = openvino.convert_model(decoder)
        for ports, specs in ((model.inputs, signature.inputs), (model.outputs, signature.outputs)):
            _name(ports, specs)
        if weights_only or calibration is not None:
            of_steps = {n.name for n in decoder.pt_module.graph.nodes if is_of_step(n)}
            model = _narrow(model, signature, calibration, of_steps)
        openvino.save_model(model, str(path), compress_to_fp16=False)


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
