"""ONNX graphs: entries of a recipe, and the record of the kind."""

from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from training.recipe.kinds.export_kind import ExportKind
from training.recipe.parts.export_entries import (
    CALIBRATION_ROWS,
    KIND,
    ExportTolerance,
    Fp16Entry,
    Fp32Entry,
    Int8Entry,
)


class OnnxExport(Fp32Entry):
    """An ONNX graph from torch's dynamo exporter."""

    kind: Annotated[Literal["onnx"], KIND] = "onnx"


class OnnxFp16Export(Fp16Entry):
    """The ONNX graph computing in FP16, for GPUs; made and verified on machines with a GPU."""

    kind: Annotated[Literal["onnx"], KIND] = "onnx"


class OnnxInt8Export(Int8Entry):
    """The ONNX graph with weights (per channel) and activations quantized to 8 bits."""

    kind: Annotated[Literal["onnx"], KIND] = "onnx"
    method: Literal["static", "dynamic"] = "static"
    """Time at which activation ranges are measured: once, on training rows, or for every batch.
    Take `dynamic` for models of matrix products whose activations vary from row to row, such as
    transformers; an answer then depends slightly on the other rows of its batch."""
    calibration_rows: Annotated[int, CALIBRATION_ROWS] = 512
    op_types: tuple[Literal["Conv", "Gemm", "LSTM", "MatMul"], ...] = Field(
        default=("Conv", "Gemm", "MatMul"), min_length=1
    )
    """ONNX operators to quantize. Drop one when it costs accuracy; add LSTM, for `dynamic`, if the
    model has it. Quantizing other operators does not pay off, so they are not supported."""

    @classmethod
    def tries(
        cls, tolerance: ExportTolerance | None, calibration_rows: int, has_lstm: bool
    ) -> Iterator[Self]:
        """Yields one entry of each method; see `ExportEntry.tries`."""
        static, dynamic = super().tries(tolerance, calibration_rows, has_lstm)
        operators = ("Gemm", "LSTM", "MatMul") if has_lstm else ("Gemm", "MatMul")
        yield from (static, dynamic.model_copy(update={"op_types": operators}))

    @model_validator(mode="after")
    def _lstm_is_dynamic(self) -> "OnnxInt8Export":
        if self.method == "static" and "LSTM" in self.op_types:
            raise ValueError("method: static does not quantize LSTM; take method: dynamic")
        return self

    @model_validator(mode="after")
    def _dynamic_without_convolutions(self) -> "OnnxInt8Export":
        if self.method == "dynamic" and self.op_types == ("Conv",):
            raise ValueError(
                "method: dynamic does not quantize Conv; take method: static, or Gemm and MatMul"
            )
        return self


ONNX = ExportKind(
    entries=(OnnxExport, OnnxFp16Export, OnnxInt8Export),
    exporter="training.exporters.onnx_exporter",
    is_baseline=True,
    runtime="onnxruntime",
    recorded=("onnx", "onnxruntime", "onnxscript", "torch"),
    speedups={
        "onnx-int8 static": (5.8, 5.7, 2.3, 1.0),
        "onnx-int8 dynamic": (5.9, 0.4, 2.7, 3.2),
        "onnx-fp16": (3.0, 3.0, 3.0, 3.0),
    },
    speedups_without_int8={
        "onnx-int8 static": (9.2, 2.3, 0.9, 1.0),
        "onnx-int8 dynamic": (9.0, 0.4, 1.0, 4.8),
    },
    one_list_of_names=True,
    triton_runtime='backend: "onnxruntime"',
)
