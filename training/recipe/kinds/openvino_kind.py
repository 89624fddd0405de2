"""OpenVINO's graph and weights: entries of a recipe, and the record of the kind."""

from typing import Annotated, Literal

from training.recipe.kinds.export_kind import ExportKind, Package
from training.recipe.parts.export_entries import (
    CALIBRATION_ROWS,
    KIND,
    Bf16Entry,
    Fp32Entry,
    Int8Entry,
)


class OpenVinoExport(Fp32Entry):
    """OpenVINO's graph and weights, in two files."""

    kind: Annotated[Literal["openvino"], KIND] = "openvino"


class OpenVinoBf16Export(Bf16Entry):
    """OpenVINO's graph and weights, in two files, computing in bfloat16."""

    kind: Annotated[Literal["openvino"], KIND] = "openvino"


class OpenVinoInt8Export(Int8Entry):
    """OpenVINO's graph quantized to 8 bits by NNCF."""

    kind: Annotated[Literal["openvino"], KIND] = "openvino"
    method: Literal["static", "weights"] = "static"
    """Tensors that become 8 bits wide: weights and activations, or `weights` alone, which saves
    memory and changes the answers less, but saves less time."""
    calibration_rows: Annotated[int, CALIBRATION_ROWS] = 512


OPENVINO = ExportKind(
    entries=(OpenVinoExport, OpenVinoBf16Export, OpenVinoInt8Export),
    exporter="training.exporters.openvino_ir",
    runtime="openvino",
    package=Package("openvino", "openvino-train"),
    quantizer=Package("nncf", "openvino-train"),
    recorded=("nncf", "onnx", "onnxscript", "openvino", "torch"),
    speedups={
        "openvino": (1.3, 1.9, 1.1, 1.4),
        "openvino-bf16": (2.8, 3.9, 2.2, 1.4),
        "openvino-int8 static": (5.6, 7.3, 3.4, 1.0),
        "openvino-int8 weights": (1.3, 1.9, 2.0, 1.4),
    },
    speedups_without_int8={
        "openvino": (1.0, 1.7, 1.2, 1.0),
        "openvino-int8 static": (1.0, 2.7, 0.8, 1.0),
        "openvino-int8 weights": (1.0, 1.7, 1.1, 1.0),
    },
    one_list_of_names=True,
    triton_runtime='backend: "openvino"',
)
