"""Common parts of the entries of a recipe's `export` list: tolerances, names and files.

Pure rules. Each entry determines the name and the file of its artifact, so one recipe makes at most
one of each. The entries themselves are in `training/recipe/kinds/`.
"""

from collections.abc import Iterator
from typing import Annotated, Literal, Self, get_args

from pydantic import ConfigDict, Field

from model_store.artifact_kinds import STORED_KINDS, ArtifactKind
from model_store.manifest import Precision
from training.recipe.parts.recipe_part import RecipePart

KIND = Field(description="Kind of the artifact.")
PRECISION = Field(description="Precision of its arithmetic.")
TOLERANCE = Field(
    description="Limits on its deviation from the checkpoint; an artifact beyond them is not "
    "published. Change them only if you know the cost of a changed output."
)
CALIBRATION_ROWS = Field(
    ge=1,
    description="Training rows that calibrate the range of every activation. Raise it when "
    "agreement is low.",
)
PT2E_METHOD = Field(
    description="Parts quantized to 8 bits: weights and activations, or only the `weights` of "
    "linear layers, which makes the file smaller and not faster."
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
        "tie; raise it when a changed output is expensive.",
    ),
]
ProbabilityShift = Annotated[
    float,
    Field(
        ge=0,
        le=1,
        description="Largest change of the probability of any class. Widen it when probabilities "
        "are not used.",
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


class ExportTolerance(RecipePart):
    """Limits on the deviation of an artifact from the checkpoint."""

    max_abs_difference: Difference
    min_agreement: Agreement
    max_probability_shift: ProbabilityShift
    max_metric_drop: MetricDrop
    max_spread_share: SpreadShare
    max_error_rise: ErrorRise
    min_cosine: Cosine


class Fp32Tolerance(ExportTolerance):
    """Limits on the deviation of an FP32 artifact from the checkpoint."""

    max_abs_difference: Difference = 1e-4
    min_agreement: Agreement = 0.999
    max_probability_shift: ProbabilityShift = 0.001
    max_metric_drop: MetricDrop = 0.003
    max_spread_share: SpreadShare = 1e-3
    max_error_rise: ErrorRise = 0.001
    min_cosine: Cosine = 0.9999


class Bf16Tolerance(ExportTolerance):
    """Limits on the deviation of a bfloat16 artifact from the checkpoint."""

    max_abs_difference: Difference = 0.2
    min_agreement: Agreement = 0.98
    max_probability_shift: ProbabilityShift = 0.1
    max_metric_drop: MetricDrop = 0.005
    max_spread_share: SpreadShare = 0.1
    max_error_rise: ErrorRise = 0.01
    min_cosine: Cosine = 0.98


class Fp16Tolerance(ExportTolerance):
    """Limits on the deviation of an FP16 artifact from the checkpoint."""

    max_abs_difference: Difference = 0.05
    min_agreement: Agreement = 0.98
    max_probability_shift: ProbabilityShift = 0.02
    max_metric_drop: MetricDrop = 0.003
    max_spread_share: SpreadShare = 0.02
    max_error_rise: ErrorRise = 0.002
    min_cosine: Cosine = 0.995


class Int8Tolerance(ExportTolerance):
    """Limits on the deviation of a quantized artifact from the checkpoint, mainly agreement."""

    max_abs_difference: Difference = 0.5
    min_agreement: Agreement = 0.98
    max_probability_shift: ProbabilityShift = 0.5
    max_metric_drop: MetricDrop = 0.01
    max_spread_share: SpreadShare = 0.25
    max_error_rise: ErrorRise = 0.02
    min_cosine: Cosine = 0.95


class QatTolerance(ExportTolerance):
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
    tolerance: ExportTolerance

    @property
    def name(self) -> str:
        """Name of the artifact: `onnx`, `onnx-int8`. A version has at most one of each."""
        return self.kind if self.precision == "fp32" else f"{self.kind}-{self.precision}"

    @property
    def file(self) -> str:
        """File of the artifact in its version: `model.int8.onnx`."""
        precision = "" if self.precision == "fp32" else f".{self.precision}"
        return f"model{precision}.{STORED_KINDS[self.kind].suffix}"

    @property
    def weights_file(self) -> str | None:
        """File of the weights, for a kind that stores them separately; otherwise None."""
        stored = STORED_KINDS[self.kind]
        if stored.weights_suffix is None:
            return None
        return self.file.removesuffix(stored.suffix) + stored.weights_suffix

    @property
    def takes_twin(self) -> bool:
        """True if the artifact is made from the twin that a network may supply (`for_export`)."""
        return True

    @classmethod
    def its_precision(cls) -> Precision:
        """Returns the precision of every entry of this class."""
        precision: Precision = cls.model_fields["precision"].default
        return precision

    @classmethod
    def tries(
        cls, tolerance: ExportTolerance | None, calibration_rows: int, has_lstm: bool
    ) -> Iterator[Self]:
        """Yields the entries that `export: auto` may try: one of each method.

        Args:
            tolerance: its tolerance; None for the default.
            calibration_rows: training rows that measure ranges, for entries that do.
            has_lstm: True if the model has an LSTM.
        """
        settings: dict[str, object] = {} if tolerance is None else {"tolerance": tolerance}
        if "calibration_rows" in cls.model_fields:
            settings["calibration_rows"] = calibration_rows
        method = cls.model_fields.get("method")
        for name in get_args(method.annotation) if method else ():
            yield cls.model_validate({**settings, "method": name})
        if method is None:
            yield cls.model_validate(settings)


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
