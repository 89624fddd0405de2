"""Archives of torch.export: entries of a recipe, and the record of the kind."""

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


class Pt2Export(Fp32Entry):
    """A torch.export archive, torch's own interchange format."""

    kind: Annotated[Literal["pt2"], KIND] = "pt2"


class Pt2Bf16Export(Bf16Entry):
    """A torch.export archive, torch's own interchange format, computing in bfloat16."""

    kind: Annotated[Literal["pt2"], KIND] = "pt2"


class Pt2Int8Export(Int8Entry):
    """A torch.export archive with weights and activations quantized to 8 bits (pt2e)."""

    kind: Annotated[Literal["pt2"], KIND] = "pt2"
    method: Annotated[Literal["static", "weights"], PT2E_METHOD] = "static"
    calibration_rows: Annotated[int, CALIBRATION_ROWS] = 512


class Pt2QatExport(QatEntry):
    """A torch.export archive in 8 bits from quantization-aware weights (pt2e)."""

    kind: Annotated[Literal["pt2"], KIND] = "pt2"


PT2 = ExportKind(
    entries=(Pt2Export, Pt2Bf16Export, Pt2Int8Export, Pt2QatExport),
    exporter="training.exporters.pt2",
    quantizer=Package("torchao", "train"),
    runtime_of_int8="torchao.quantization.pt2e",  # registers the operators of quantized programs
    recorded=("torch", "torchao"),
    speedups={
        "pt2": (0.8, 1.1, 0.9, 0.7),
        "pt2-bf16": (2.1, 2.2, 1.9, 0.9),
        "pt2-int8 static": (0.7, 0.8, 0.4, 0.4),
        "pt2-int8 weights": (0.7, 0.7, 0.7, 0.7),
        "pt2-int8-qat qat": (0.7, 0.8, 0.4, 0.4),
    },
    speedups_without_int8={
        "pt2-int8 static": (0.2, 0.8, 0.4, 0.2),
        "pt2-int8-qat qat": (0.2, 0.8, 0.4, 0.2),
    },
    quantizes_only_linear_weights=True,
)
