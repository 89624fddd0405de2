"""Native code by AOTInductor: entries of a recipe, and the record of the kind."""

from typing import Annotated, Literal

from training.recipe.kinds.export_kind import ExportKind, Package
from training.recipe.parts.export_entries import (
    CALIBRATION_ROWS,
    KIND,
    PT2E_METHOD,
    Bf16Entry,
    Fp32Entry,
    Int8Entry,
    QatEntry,
)


class AotiExport(Fp32Entry):
    """Native code by AOTInductor, for CPUs with the instruction set of this machine."""

    kind: Annotated[Literal["aoti"], KIND] = "aoti"


class AotiBf16Export(Bf16Entry):
    """Native bfloat16 code by AOTInductor, for CPUs with this machine's instruction set."""

    kind: Annotated[Literal["aoti"], KIND] = "aoti"


class AotiInt8Export(Int8Entry):
    """Native code by AOTInductor with weights and activations quantized to 8 bits (pt2e)."""

    kind: Annotated[Literal["aoti"], KIND] = "aoti"
    method: Annotated[Literal["static", "weights"], PT2E_METHOD] = "static"
    calibration_rows: Annotated[int, CALIBRATION_ROWS] = 512


class AotiQatExport(QatEntry):
    """Native code by AOTInductor in 8 bits from quantization-aware weights (pt2e)."""

    kind: Annotated[Literal["aoti"], KIND] = "aoti"


AOTI = ExportKind(
    entries=(AotiExport, AotiBf16Export, AotiInt8Export, AotiQatExport),
    exporter="training.exporters.aot_inductor",
    quantizer=Package("torchao", "train"),
    recorded=("torch", "torchao"),
    speedups={
        "aoti": (1.2, 1.6, 1.0, 1.6),
        "aoti-bf16": (2.7, 3.7, 2.0, 1.0),
        "aoti-int8 static": (3.6, 7.2, 3.2, 1.0),
        "aoti-int8 weights": (0.6, 0.6, 0.6, 0.6),
        "aoti-int8-qat qat": (3.6, 7.2, 3.2, 1.0),
    },
    speedups_without_int8={
        "aoti": (2.1, 1.5, 1.4, 1.6),
        "aoti-int8 static": (1.3, 1.1, 1.2, 1.0),
        "aoti-int8-qat qat": (1.3, 1.1, 1.2, 1.0),
    },
    needs_compiler=True,
    quantizes_only_linear_weights=True,
)
