"""ONNX to quantized ONNX: int8 weights and activations, in QDQ form, calibrated on real rows.

Only static quantization: dynamic quantization makes convolutions nearly three times slower. Only
Conv, Gemm and MatMul: quantizing every operator wrecks models with masks.
"""

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from model_store.tensors import Array
from training.quiet import quiet

CALIBRATION_BATCH_ROWS = 64


def export_onnx_int8(
    source: Path, calibration: Mapping[str, Array], op_types: tuple[str, ...], path: Path
) -> None:
    """Quantizes an exported ONNX file.

    Args:
        source: the FP32 ONNX file.
        calibration: rows of training data by input name, each [rows, ...].
        op_types: operators to quantize.
        path: the file to write.

    Raises:
        Exception: whatever ONNX Runtime raises for a graph it cannot quantize.
    """
    import onnx
    from onnxruntime.quantization import (
        CalibrationDataReader,
        QuantFormat,
        QuantType,
        quant_pre_process,
        quantize_static,
    )

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        """Gives the calibration rows to ONNX Runtime, one batch a call, then None."""

        def __init__(self) -> None:
            self._batches = _batches(calibration)

        def get_next(self) -> dict[str, Array] | None:
            return next(self._batches, None)

    document = onnx.load(source)
    # The shapes that the exporter wrote beside the graph can contradict those inferred here.
    del document.graph.value_info[:]
    with (
        quiet(loggers=("onnxruntime",)),
        tempfile.TemporaryDirectory(dir=path.parent) as folder,
    ):
        bare, prepared = Path(folder) / "bare.onnx", Path(folder) / "prepared.onnx"
        onnx.save(document, bare)
        quant_pre_process(str(bare), str(prepared), skip_symbolic_shape=True)
        quantize_static(
            str(prepared),
            str(path),
            Reader(),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=list(op_types),
            per_channel=True,
            # What ONNX Runtime advises for x86 with VNNI; replaying at load guards the others.
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            # Inputs of the next operator are quantized anyway. Quantizing outputs too would clip
            # the logits to what calibration saw and keep Relu out of the fused convolution.
            extra_options={"OpTypesToExcludeOutputQuantization": list(op_types)},
        )


def _batches(calibration: Mapping[str, Array]) -> Iterator[dict[str, Array]]:
    rows = len(next(iter(calibration.values())))
    for start in range(0, rows, CALIBRATION_BATCH_ROWS):
        yield {n: a[start : start + CALIBRATION_BATCH_ROWS] for n, a in calibration.items()}
