"""Quantizes ONNX to 8 bits: int8 weights, one scale per channel, and 8-bit activations.

Two methods. *Static* measures the range of every activation once, on real rows (QDQ form).
*Dynamic* measures it for every batch; it is refused for convolutions, which it makes four times
slower than FP32. Only Conv, Gemm, MatMul and, dynamically, LSTM are quantized: quantizing every
operator breaks models with masks.
"""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flambeau.protocol.signature import Signature
from flambeau.protocol.tensors import Array
from training.errors import ExportError
from training.process.quiet import quiet
from training.programs.calibration import calibration_batches
from training.programs.step_operations import ONNX_PREFIX

if TYPE_CHECKING:
    from onnx import ModelProto

SEVEN_BIT_WEIGHTS = True
"""x86 without VNNI adds two 8-bit products in 16 bits and saturates: logits of the digits then move
by 1.35 instead of 0.08. With 7-bit weights nothing overflows: one file is right everywhere."""


def export_onnx_static_int8(
    source: Path,
    calibration: Mapping[str, Array],
    op_types: tuple[str, ...],
    path: Path,
    signature: Signature | None = None,
) -> None:
    """Quantizes an exported ONNX file with ranges measured on calibration rows.

    Args:
        source: FP32 ONNX file.
        calibration: rows of training data by input name, each [rows, ...].
        op_types: operators to quantize.
        path: output file.
        signature: batch axes of the model; None if all are the first.

    Raises:
        Exception: any exception of ONNX Runtime for an unsupported graph.
    """
    import onnx
    from onnxruntime.quantization import (
        QuantFormat,
        QuantType,
        quant_pre_process,
        quantize_static,
    )

    with (
        quiet(loggers=("onnxruntime",)),
        tempfile.TemporaryDirectory(dir=path.parent) as folder,
    ):
        bare, prepared = Path(folder) / "bare.onnx", Path(folder) / "prepared.onnx"
        onnx.save(_without_shapes(source), bare)
        quant_pre_process(str(bare), str(prepared), skip_symbolic_shape=True)
        quantize_static(
            str(prepared),
            str(path),
            _calibration_reader(calibration, signature),
            quant_format=QuantFormat.QDQ,
            # A Relu after a quantized convolution is fused with it; others stay unchanged.
            op_types_to_quantize=[*op_types, "Relu"],
            nodes_to_exclude=_step_nodes(onnx.load(prepared)),
            per_channel=True,
            reduce_range=SEVEN_BIT_WEIGHTS,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            extra_options={
                # The next operator quantizes its inputs anyway: quantizing outputs too would clip
                # the
                # logits to the calibrated range. Convolutions need both to run in int8 at all.
                "OpTypesToExcludeOutputQuantization": ["Gemm", "MatMul"],
                # The products in attention are small, and its weights lose most accuracy in 8 bits.
                "MatMulConstBOnly": True,
            },
        )


def _calibration_reader(calibration: Mapping[str, Array], signature: Signature | None) -> Any:
    """Returns an object that gives the calibration rows to ONNX Runtime, a batch per call."""
    from onnxruntime.quantization import CalibrationDataReader

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        """Gives a batch per call, then None."""

        def __init__(self) -> None:
            self._batches = calibration_batches(calibration, signature)

        def get_next(self) -> dict[str, Array] | None:
            return next(self._batches, None)

    return Reader()


def export_onnx_dynamic_int8(source: Path, op_types: tuple[str, ...], path: Path) -> None:
    """Quantizes the weights of an exported ONNX file; activation ranges are measured per batch.

    Args:
        source: FP32 ONNX file.
        op_types: operators to quantize; Conv is ignored.
        path: output file.

    Raises:
        ExportError: the graph has convolutions.
        Exception: any exception of ONNX Runtime for an unsupported graph.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    document = _without_shapes(source)
    steps = _step_nodes(document)
    if any(node.op_type == "Conv" and node.name not in steps for node in document.graph.node):
        raise ExportError(
            "the graph has convolutions, which dynamic quantization makes 4 times slower than "
            "FP32 and 8 times slower than static (batches of 1 to 8 of a CNN of 2.9 million "
            "parameters, one thread of an AVX2 CPU); use method: static"
        )
    with quiet(loggers=("onnxruntime", "root")):
        quantize_dynamic(
            document,
            str(path),
            op_types_to_quantize=[kind for kind in op_types if kind != "Conv"],
            nodes_to_exclude=steps,
            per_channel=True,
            reduce_range=SEVEN_BIT_WEIGHTS,
            weight_type=QuantType.QInt8,
        )


def _step_nodes(document: "ModelProto") -> list[str]:
    """Returns the names of the preprocessing nodes, which stay unquantized."""
    return [node.name for node in document.graph.node if node.name.startswith(ONNX_PREFIX)]


def _without_shapes(source: Path) -> "ModelProto":
    """Loads the graph without the shapes that the exporter stored in it.

    They can contradict those that the quantizer infers, which it reports as an error.
    """
    import onnx

    document = onnx.load(source)
    del document.graph.value_info[:]
    return document
