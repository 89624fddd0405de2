"""The entries of a recipe's `export` list: the artifacts to make and their tolerances.

Pure rules. Each entry determines the name and the file of its artifact, so one recipe makes at most
one of each.
"""

from typing import Annotated, Literal

from pydantic import BeforeValidator, ConfigDict, Discriminator, Field, Tag, model_validator

from model_store.manifest import ArtifactKind, Precision
from model_store.strict import nearest_name
from training.recipe.parts.recipe_part import RecipePart

SUFFIXES: dict[ArtifactKind, str] = {
    "torchscript": "pt",
    "onnx": "onnx",
    "pt2": "pt2",
    "aoti": "aoti.pt2",
    "openvino": "xml",
}
"""File suffix of each kind."""
PRECISIONS: dict[ArtifactKind, tuple[Precision, ...]] = {
    "torchscript": ("fp32",),
    "onnx": ("fp32", "fp16", "int8"),
    "pt2": ("fp32", "bf16", "int8"),
    "aoti": ("fp32", "bf16", "int8"),
    "openvino": ("fp32", "bf16", "int8"),
}
"""Precisions that each kind supports."""


KIND = Field(description="Which kind of artifact this entry makes.")
PRECISION = Field(description="What it computes in.")
TOLERANCE = Field(
    description="Limits it must keep to be published. Change them only knowing what a changed "
    "answer costs."
)
CALIBRATION_ROWS = Field(
    ge=1,
    description="Training rows that show the range of every activation. Raise it when agreement "
    "is low.",
)
PT2E_METHOD = Field(
    description="What becomes 8 bits wide: weights and activations, or `weights` of linear layers "
    "alone, which makes the file smaller and saves no time."
)
Difference = Annotated[
    float,
    Field(
        ge=0,
        description="Largest difference of any output element. Widen it for outputs much larger "
        "than 1 to 10.",
    ),
]
Agreement = Annotated[
    float,
    Field(
        ge=0,
        le=1,
        description="Share of rows whose top class is the checkpoint's, in each output [rows, "
        "classes]; classes that rounding alone tells apart are equal. Lower it when rows often "
        "tie; raise it when a changed answer is expensive.",
    ),
]
ProbabilityShift = Annotated[
    float,
    Field(
        ge=0,
        le=1,
        description="Largest change of the probability of any class. Widen it when nobody looks "
        "at probabilities.",
    ),
]
MetricDrop = Annotated[
    float,
    Field(
        ge=0,
        le=1,
        description="Largest loss of the task metric over the test split: 0.005 is half a "
        "percentage point. Widen it when the test split is small: one row of 360 is 0.003.",
    ),
]
SpreadShare = Annotated[
    float,
    Field(
        ge=0,
        description="For models whose labels are numbers, in place of the three above: largest "
        "difference of any output, as a share of the standard deviation of its labels. Widen it "
        "when single rows may move.",
    ),
]
ErrorRise = Annotated[
    float,
    Field(
        ge=0,
        description="For the same, in place of the fall of a metric: largest rise of the RMSE over "
        "the test split, as a share of it: 0.01 is a hundredth more. An RMSE below a hundredth of "
        "the labels' standard deviation counts as that hundredth, also where this is 0. Widen it "
        "when the model errs little anyway.",
    ),
]
Cosine = Annotated[
    float,
    Field(
        ge=0,
        le=1,
        description="For outputs in `model.embeddings`, in place of all of the above: least cosine "
        "of a row's vector with the checkpoint's, times the ratio of their lengths. Lower it when "
        "only the nearest neighbours count.",
    ),
]


class Fp32Tolerance(RecipePart):
    """Limits on the deviation of an FP32 artifact from the checkpoint."""

    max_abs_difference: Difference = 1e-4
    min_agreement: Agreement = 0.999
    max_probability_shift: ProbabilityShift = 0.001
    max_metric_drop: MetricDrop = 0.003
    max_spread_share: SpreadShare = 1e-3
    max_error_rise: ErrorRise = 0.001
    min_cosine: Cosine = 0.9999


class Bf16Tolerance(RecipePart):
    """Limits on the deviation of a bfloat16 artifact from the checkpoint."""

    max_abs_difference: Difference = 0.2
    min_agreement: Agreement = 0.98
    max_probability_shift: ProbabilityShift = 0.1
    max_metric_drop: MetricDrop = 0.005
    max_spread_share: SpreadShare = 0.1
    max_error_rise: ErrorRise = 0.01
    min_cosine: Cosine = 0.98


class Fp16Tolerance(RecipePart):
    """Limits on the deviation of an FP16 artifact from the checkpoint."""

    max_abs_difference: Difference = 0.05
    min_agreement: Agreement = 0.98
    max_probability_shift: ProbabilityShift = 0.02
    max_metric_drop: MetricDrop = 0.003
    max_spread_share: SpreadShare = 0.02
    max_error_rise: ErrorRise = 0.002
    min_cosine: Cosine = 0.995


class Int8Tolerance(RecipePart):
    """Limits on the deviation of a quantized artifact from the checkpoint, mainly agreement."""

    max_abs_difference: Difference = 0.5
    min_agreement: Agreement = 0.98
    max_probability_shift: ProbabilityShift = 0.5
    max_metric_drop: MetricDrop = 0.01
    max_spread_share: SpreadShare = 0.25
    max_error_rise: ErrorRise = 0.02
    min_cosine: Cosine = 0.95


class QatTolerance(RecipePart):
    """Limits on the deviation of an artifact of quantization-aware training from the checkpoint.

    Its weights were trained further, so outputs deviate more than with `static`; answers must not.
    """

    max_abs_difference: Difference = 2.0
    min_agreement: Agreement = 0.96
    max_probability_shift: ProbabilityShift = 0.5
    max_metric_drop: MetricDrop = 0.01
    max_spread_share: SpreadShare = 0.5
    max_error_rise: ErrorRise = 0.02
    min_cosine: Cosine = 0.9


def _told_by(*keys: str) -> ConfigDict:
    """Makes the schema require these keys, so that an entry matches exactly one entry class."""
    return ConfigDict(json_schema_extra={"required": list(keys)})


class ExportEntry(RecipePart):
    """Fields common to all entries."""

    model_config = _told_by("kind")

    kind: ArtifactKind
    precision: Precision

    @property
    def name(self) -> str:
        """Name of the artifact: `onnx`, `onnx-int8`. A version has at most one of each."""
        return self.kind if self.precision == "fp32" else f"{self.kind}-{self.precision}"

    @property
    def file(self) -> str:
        """File of the artifact in its version: `model.int8.onnx`."""
        precision = "" if self.precision == "fp32" else f".{self.precision}"
        return f"model{precision}.{SUFFIXES[self.kind]}"

    @property
    def weights_file(self) -> str | None:
        """File of the weights, for a kind that stores them separately; otherwise None."""
        return f"{self.file.removesuffix('xml')}bin" if self.kind == "openvino" else None


class Fp32Entry(ExportEntry):
    """An artifact that computes in FP32."""

    precision: Annotated[Literal["fp32"], PRECISION] = "fp32"
    tolerance: Annotated[Fp32Tolerance, TOLERANCE] = Fp32Tolerance()


class Bf16Entry(ExportEntry):
    """An artifact that computes in bfloat16."""

    model_config = _told_by("kind", "precision")

    precision: Annotated[Literal["bf16"], PRECISION] = "bf16"
    tolerance: Annotated[Bf16Tolerance, TOLERANCE] = Bf16Tolerance()


class Fp16Entry(ExportEntry):
    """An artifact that computes in FP16."""

    model_config = _told_by("kind", "precision")

    precision: Annotated[Literal["fp16"], PRECISION] = "fp16"
    tolerance: Annotated[Fp16Tolerance, TOLERANCE] = Fp16Tolerance()


class Int8Entry(ExportEntry):
    """An artifact with 8-bit weights and, depending on the method, 8-bit activations."""

    model_config = _told_by("kind", "precision")

    precision: Annotated[Literal["int8"], PRECISION] = "int8"
    tolerance: Annotated[Int8Tolerance, TOLERANCE] = Int8Tolerance()


class QatEntry(ExportEntry):
    """An 8-bit artifact from the quantization-aware weights of the recipe's `qat`."""

    model_config = _told_by("kind", "precision", "method")

    precision: Annotated[Literal["int8"], PRECISION] = "int8"
    method: Literal["qat"] = "qat"
    """Quantization method. `qat` makes a separate artifact beside that of the other methods, so
    that both can be compared."""
    tolerance: Annotated[QatTolerance, TOLERANCE] = QatTolerance()

    @property
    def name(self) -> str:
        """Name of the artifact: `pt2-int8-qat`."""
        return f"{super().name}-qat"

    @property
    def file(self) -> str:
        """File of the artifact in its version: `model.int8-qat.pt2`."""
        return super().file.replace(".int8.", ".int8-qat.")


class TorchScriptExport(Fp32Entry):
    """A TorchScript module, for hosts that accept no other kind. torch has deprecated it."""

    kind: Annotated[Literal["torchscript"], KIND] = "torchscript"
    method: Literal["trace", "script"] = "trace"
    """Capture of the model: tracing one run, or compiling its code. Take `script` for control flow
    that depends on the data, which a trace would freeze."""


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


def _artifact_name(entry: object) -> str | None:
    """Returns the tag of the union: `onnx` for FP32, `onnx-int8` for others, `pt2-int8-qat`."""
    if not isinstance(entry, dict):
        return entry.name if isinstance(entry, ExportEntry) else None
    kind, precision = entry.get("kind"), entry.get("precision", "fp32")
    qat = "-qat" if entry.get("method") == "qat" else ""
    if kind is None:
        return None
    return f"{kind}" if precision == "fp32" else f"{kind}-{precision}{qat}"


def _of_known_kind(entry: object) -> object:
    """Returns the entry unchanged if its kind and precision exist."""
    if isinstance(entry, ExportEntry):
        return entry
    if not isinstance(entry, dict):
        raise ValueError("write a mapping, as in {kind: onnx}")
    if "kind" not in entry:
        raise ValueError(f"it has no kind; give one of {', '.join(SUFFIXES)}")
    kind, precision = str(entry["kind"]), str(entry.get("precision", "fp32"))
    precisions: tuple[str, ...] = next((p for k, p in PRECISIONS.items() if k == kind), ())
    if not precisions:
        raise ValueError(f"no kind '{kind}'{nearest_name(kind, SUFFIXES)}")
    if precision not in precisions:
        raise ValueError(
            f"kind {kind} has no precision '{precision}'; it has {', '.join(precisions)}"
        )
    return entry


Export = Annotated[
    Annotated[TorchScriptExport, Tag("torchscript")]
    | Annotated[OnnxExport, Tag("onnx")]
    | Annotated[OnnxFp16Export, Tag("onnx-fp16")]
    | Annotated[OnnxInt8Export, Tag("onnx-int8")]
    | Annotated[Pt2Export, Tag("pt2")]
    | Annotated[Pt2Bf16Export, Tag("pt2-bf16")]
    | Annotated[Pt2Int8Export, Tag("pt2-int8")]
    | Annotated[Pt2QatExport, Tag("pt2-int8-qat")]
    | Annotated[AotiExport, Tag("aoti")]
    | Annotated[AotiBf16Export, Tag("aoti-bf16")]
    | Annotated[AotiInt8Export, Tag("aoti-int8")]
    | Annotated[AotiQatExport, Tag("aoti-int8-qat")]
    | Annotated[OpenVinoExport, Tag("openvino")]
    | Annotated[OpenVinoBf16Export, Tag("openvino-bf16")]
    | Annotated[OpenVinoInt8Export, Tag("openvino-int8")],
    Discriminator(
        _artifact_name,
        custom_error_type="unknown_export",
        custom_error_message="method: qat is for kind pt2 or aoti with precision int8",
    ),
    BeforeValidator(_of_known_kind),
]
