"""The entries of a recipe's `export` list: which artifacts to make, and what each must keep.

Pure rules. Each entry knows the name and the file of its artifact, so one recipe makes at most
one of each.
"""

from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Discriminator, Field, Tag, model_validator

from model_store.strict import StrictModel


class RecipePart(StrictModel):
    """A part of a recipe; the sentence under a field is also its help in the JSON Schema."""

    model_config = ConfigDict(use_attribute_docstrings=True)


class Fp32Tolerance(RecipePart):
    """How far an artifact that computes in FP32 may lie from the checkpoint."""

    max_abs_difference: float = Field(default=1e-4, ge=0)
    """Largest difference of any output element. Widen it for outputs much larger than 1 to 10."""
    min_agreement: float = Field(default=0.999, ge=0, le=1)
    """Share of rows whose top class is the checkpoint's. Lower it when rows often tie."""


class Int8Tolerance(RecipePart):
    """How far a quantized artifact may lie from the checkpoint."""

    max_abs_difference: float = Field(default=0.5, ge=0)
    """Largest difference of any output element. Widen it for outputs much larger than 1 to 10."""
    min_agreement: float = Field(default=0.98, ge=0, le=1)
    """Share of rows whose top class is the checkpoint's: the limit that means something here.
    Raise it when a changed answer is expensive."""


class TorchScriptExport(RecipePart):
    """A traced module, for hosts that only take TorchScript. torch has deprecated it."""

    name: ClassVar[str] = "torchscript"
    file: ClassVar[str] = "model.pt"
    kind: Literal["torchscript"] = "torchscript"
    """Which kind of artifact this entry makes."""
    precision: Literal["fp32"] = "fp32"
    """What it computes in."""
    tolerance: Fp32Tolerance = Fp32Tolerance()
    """Limits it must keep to be published. Change them only knowing what a changed answer costs."""


class OnnxExport(RecipePart):
    """A portable graph, by the dynamo exporter."""

    name: ClassVar[str] = "onnx"
    file: ClassVar[str] = "model.onnx"
    kind: Literal["onnx"] = "onnx"
    """Which kind of artifact this entry makes."""
    precision: Literal["fp32"] = "fp32"
    """What it computes in."""
    tolerance: Fp32Tolerance = Fp32Tolerance()
    """Limits it must keep to be published. Change them only knowing what a changed answer costs."""


class OnnxInt8Export(RecipePart):
    """The ONNX graph with weights (per channel) and activations quantized to 8 bits."""

    name: ClassVar[str] = "onnx-int8"
    file: ClassVar[str] = "model.int8.onnx"
    kind: Literal["onnx"] = "onnx"
    """Which kind of artifact this entry makes."""
    precision: Literal["int8"] = "int8"
    """What it computes in."""
    method: Literal["static", "dynamic"] = "static"
    """When the range of an activation is measured: once, on training rows, or anew in every batch.
    Take `dynamic` for models of matrix products whose activations vary from row to row, as
    transformers' do; then a row's answer depends a little on the rows it shares a batch with."""
    calibration_rows: int = Field(default=512, ge=1)
    """Training rows that show the range of every activation, for `static`. Raise it when agreement
    is low."""
    op_types: tuple[Literal["Conv", "Gemm", "LSTM", "MatMul"], ...] = Field(
        default=("Conv", "Gemm", "MatMul"), min_length=1
    )
    """ONNX operators to quantize. Drop one when it costs accuracy; add LSTM, for `dynamic`, where
    the model has it. Others are not on offer because they are not worth what they cost."""
    tolerance: Int8Tolerance = Int8Tolerance()
    """Limits it must keep to be published. Change them only knowing what a changed answer costs."""

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


def _artifact_name(entry: object) -> str | None:
    """The tag of the union: `onnx` for FP32, `onnx-int8` for other precisions."""
    if isinstance(entry, dict):
        kind, precision = entry.get("kind"), entry.get("precision", "fp32")
    else:
        kind, precision = getattr(entry, "kind", None), getattr(entry, "precision", None)
    return None if kind is None else (f"{kind}" if precision == "fp32" else f"{kind}-{precision}")


Export = Annotated[
    Annotated[TorchScriptExport, Tag(TorchScriptExport.name)]
    | Annotated[OnnxExport, Tag(OnnxExport.name)]
    | Annotated[OnnxInt8Export, Tag(OnnxInt8Export.name)],
    Discriminator(
        _artifact_name,
        custom_error_type="unknown_export",
        custom_error_message="use {kind: torchscript}, {kind: onnx} or "
        "{kind: onnx, precision: int8}",
    ),
]
