"""`export: auto` of a recipe: what may be tried, and for how long. Pure rules.

In: `export` as it stands in a recipe: a list of entries, `auto`, or `{auto: {budget_s: 900}}`. Out:
the entries, or an `AutoPart` with every default filled in.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, TypeAdapter, ValidatorFunctionWrapHandler, WrapValidator

from model_store.manifest import ArtifactKind
from model_store.strict import nearest_name
from training.recipe.parts.export_entries import (
    Bf16Tolerance,
    Export,
    Fp16Tolerance,
    Fp32Tolerance,
    Int8Tolerance,
)
from training.recipe.parts.recipe_part import RecipePart

AUTO = "auto"
AutoPrecision = Literal["fp32", "bf16", "fp16", "int8"]


class AutoTolerances(RecipePart):
    """What artifacts must keep to be published, by precision."""

    fp32: Fp32Tolerance = Fp32Tolerance()
    """Of those that compute in FP32. Widen it for outputs much larger than 1 to 10."""
    bf16: Bf16Tolerance = Bf16Tolerance()
    """Of those that compute in bfloat16. Change it knowing what a changed answer costs."""
    fp16: Fp16Tolerance = Fp16Tolerance()
    """Of those that compute in FP16, on GPUs. Change it knowing what a changed answer costs."""
    int8: Int8Tolerance = Int8Tolerance()
    """Of quantized ones. Change it knowing what a changed answer costs."""


class AutoExport(RecipePart):
    """Tries what suits the model and the machine, and publishes what is worth it."""

    budget_s: float = Field(default=900.0, gt=0)
    """Seconds for making and proving them all; what has the best prospects comes first. Raise it
    for large models, whose attempts take longer; lower it where a run must end soon. The first
    attempt may take as long as `export_limits` says."""
    kinds: tuple[ArtifactKind, ...] = Field(
        default=("onnx", "openvino", "aoti", "pt2"), min_length=1
    )
    """Kinds that may be tried. Drop those that no host of yours serves; add `torchscript` for hosts
    that take nothing else."""
    precisions: tuple[AutoPrecision, ...] = Field(
        default=("fp32", "bf16", "fp16", "int8"), min_length=1
    )
    """Precisions that may be tried, beside ONNX in FP32, to which others are compared. Drop those
    whose answers you do not want."""
    calibration_rows: int = Field(default=512, ge=1)
    """Training rows that show the range of every activation. Raise it when the agreement of
    quantized artifacts is low."""
    tolerance: AutoTolerances = AutoTolerances()
    """What artifacts must keep to be published. Change it knowing what a changed answer costs."""


class AutoPart(RecipePart):
    """The mapping `{auto: ...}`."""

    auto: AutoExport
    """What may be tried, and for how long. Change it where the defaults take too long, or try what
    you do not serve."""


_ENTRIES: TypeAdapter[tuple[Export, ...]] = TypeAdapter(tuple[Export, ...])


def _choice(value: Any, _: ValidatorFunctionWrapHandler) -> tuple[Export, ...] | AutoPart:
    """Reads either form.

    Which one is meant is clear from the value, so that no error speaks of the other one, as
    pydantic's own of a union would.
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
