"""`export: auto` of a recipe: the artifacts that may be tried, and the time budget. Pure rules.

In: `export` as written in a recipe: a list of entries, `auto`, or `{auto: {budget_s: 900}}`. Out:
the entries, or an `AutoPart` with every default filled in.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, TypeAdapter, ValidatorFunctionWrapHandler, WrapValidator

from flambeau.protocol.strict import nearest_name
from model_store.artifact_kinds import ExportedArtifactKind
from training.recipe.kinds.export_kinds import EXPORT_KINDS, Export
from training.recipe.parts.export_entries import (
    Bf16Tolerance,
    Fp16Tolerance,
    Fp32Tolerance,
    Int8Tolerance,
)
from training.recipe.parts.recipe_part import RecipePart

AUTO = "auto"
AutoPrecision = Literal["fp32", "bf16", "fp16", "int8"]


class AutoTolerances(RecipePart):
    """Tolerances that artifacts must meet to be published, by precision."""

    fp32: Fp32Tolerance = Fp32Tolerance()
    """For artifacts that compute in FP32. Widen it for outputs much larger than 1 to 10."""
    bf16: Bf16Tolerance = Bf16Tolerance()
    """For artifacts that compute in bfloat16. Change it only if you know the cost of errors."""
    fp16: Fp16Tolerance = Fp16Tolerance()
    """For FP16 artifacts, on GPUs. Change it only if you know the cost of errors."""
    int8: Int8Tolerance = Int8Tolerance()
    """For quantized artifacts. Change it only if you know the cost of errors."""


class AutoExport(RecipePart):
    """Tries artifacts that suit the model and the machine, and publishes those worth serving."""

    budget_s: float = Field(default=900.0, gt=0)
    """Seconds for making and verifying all artifacts, the most promising first. Raise it for large
    models, whose attempts take longer; lower it where a run must end soon. The first attempt may
    take up to `export_limits`."""
    kinds: tuple[ExportedArtifactKind, ...] = Field(
        default=tuple(name for name, kind in EXPORT_KINDS.items() if kind.tried_by_default),
        min_length=1,
    )
    """Kinds that may be tried. Drop those that none of your hosts serves; add `torchscript` for
    hosts that accept no other kind."""
    precisions: tuple[AutoPrecision, ...] = Field(
        default=("fp32", "bf16", "fp16", "int8"), min_length=1
    )
    """Precisions that may be tried, beside ONNX in FP32, which is the baseline. Drop precisions
    whose answers you do not accept."""
    calibration_rows: int = Field(default=512, ge=1)
    """Training rows that measure the range of every activation. Raise it when the agreement of
    quantized artifacts is low."""
    tolerance: AutoTolerances = AutoTolerances()
    """Tolerances for publishing. Change it only if you know the cost of a changed answer."""


class AutoPart(RecipePart):
    """The mapping `{auto: ...}`."""

    auto: AutoExport
    """The artifacts that may be tried, and the budget. Change it if the defaults take too long, or
    try artifacts that you do not serve."""


_ENTRIES: TypeAdapter[tuple[Export, ...]] = TypeAdapter(tuple[Export, ...])


def _choice(value: Any, _: ValidatorFunctionWrapHandler) -> tuple[Export, ...] | AutoPart:
    """Validates either form.

    The value itself decides which form applies, so that an error never mentions the other one, as
    pydantic's own union errors would.
    """
    if value == AUTO:
        return AutoPart(auto=AutoExport())
    if isinstance(value, str):
        raise ValueError(
            "give a list of entries, auto, or {auto: {budget_s: 900}}" + nearest_name(value, [AUTO])
        )
    if isinstance(value, dict | BaseModel):
        return AutoPart.model_validate(value)
    if isinstance(value, list | tuple) and not value:
        raise ValueError("the list is empty; give at least one entry, as in [{kind: onnx}]")
    return _ENTRIES.validate_python(value)


ExportChoice = Annotated[
    tuple[Export, ...] | AutoPart,
    WrapValidator(
        _choice,
        json_schema_input_type=Annotated[tuple[Export, ...], Field(min_length=1)]
        | AutoPart
        | Literal["auto"],
    ),
]
"""A recipe's `export`."""
