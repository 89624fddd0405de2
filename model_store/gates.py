"""Gates: limits for single outputs, each in the terms of what the output means. Pure rules.

In: what a user writes, such as `{"logits": {"top1": 0.99}, "boxes": {"iou": 0.9}}`. Out: one record
for each output. A manifest stores gates in its `Tolerance`, so that every server replays them at
load; `model_store.arrays.measures` computes the figures that they limit.
"""

from collections.abc import Collection, Mapping
from typing import Annotated, Any, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from flambeau.protocol.signature import TensorSpec
from flambeau.protocol.strict import StrictModel, explain, nearest_name

Share = Annotated[float, Field(ge=0, le=1)]
AT_LEAST = frozenset({"top1", "cosine", "iou", "exact", "function"})
"""Measures whose limit is the smallest value; that of the others is the largest."""
NUMBERS_ONLY = frozenset({"top1", "cosine", "iou", "absolute", "relative"})
"""Measures of numbers; `edit_distance` is for text alone, and `exact` for both."""
MAX_TARGET = 512
"""Most characters of the location of an own function."""


def _unset(value: object) -> bool:
    return value is None


class Gate(StrictModel):
    """Limits for one output of an artifact, compared with the reference's; all must hold.

    A value that is not finite keeps no limit.
    """

    top1: Share | None = Field(default=None, exclude_if=_unset)
    """Smallest share of positions whose largest element along `axis` has the same place."""
    axis: int = Field(default=-1, ge=-16, le=15, exclude_if=lambda axis: axis == -1)
    """Axis of the classes, for `top1`."""
    cosine: Share | None = Field(default=None, exclude_if=_unset)
    """Smallest cosine of any vector along the last axis, times the ratio of their lengths."""
    iou: Share | None = Field(default=None, exclude_if=_unset)
    """Smallest mean intersection over union of boxes [..., 4], or of masks."""
    edit_distance: Share | None = Field(default=None, exclude_if=_unset)
    """Largest edit distance of any text, as a share of the characters of the reference's."""
    absolute: float | None = Field(default=None, ge=0, exclude_if=_unset)
    """Largest difference of any element, in the output's unit."""
    relative: Share | None = Field(default=None, exclude_if=_unset)
    """Largest difference of any element, as a share of the reference's. With `absolute`, the sum of
    both is the limit, as in `numpy.allclose`: |a - b| <= absolute + relative x |b|."""
    exact: Share | None = Field(default=None, exclude_if=_unset)
    """Smallest share of equal elements: 1 for all."""

    @field_validator("exact", mode="before")
    @classmethod
    def _all(cls, value: object) -> object:
        return 1.0 if value is True else value

    @model_validator(mode="after")
    def _judges(self) -> Self:
        if not self.limits():
            raise ValueError(f"a gate without a limit judges nothing; give {_listed(MEASURES)}")
        return self

    def limits(self) -> dict[str, float]:
        """Returns the limits that are set, by measure; `relative` includes `absolute`."""
        found = {name: getattr(self, name) for name in MEASURES}
        if self.relative is not None:
            del found["absolute"]
        return {name: limit for name, limit in found.items() if limit is not None}

    def text(self) -> str:
        """Returns the limits in one line: `top1 >= 0.99, cosine >= 0.98`."""
        told = {name: getattr(self, name) for name in MEASURES}
        return ", ".join(
            f"{name} {'>=' if name in AT_LEAST else '<='} {limit:.4g}"
            for name, limit in told.items()
            if limit is not None
        )


MEASURES = tuple(name for name in Gate.model_fields if name != "axis")
"""Names of all measures."""


class OwnGate(StrictModel):
    """A function of the user's that compares an output with the reference's, when publishing.

    It gets both arrays, the reference's first, [rows, ...], and returns True or False, or the
    agreement from 0 to 1. A server never runs it: the version stores a numeric gate that was
    measured when it was published.
    """

    function: str = Field(max_length=MAX_TARGET)
    """Location: `path/file.py:name` or `package.module:name`."""
    min: Share = 1.0
    """Smallest agreement."""

    def text(self) -> str:
        """Returns the limit in one line."""
        return f"{self.function} >= {self.min:.4g}"


GATES_WORDS = '{"logits": {"top1": 0.99}}, or one gate for all outputs: {"absolute": 1e-4}'


class GateError(ValueError):
    """A gate names no output or measure, or has a limit that cannot be kept."""


def parse_gates(told: object, outputs: Collection[TensorSpec]) -> dict[str, Gate | OwnGate]:
    """Reads the gates that a user wrote.

    Args:
        told: a gate for each output by its name, or one for all. A gate is a mapping of limits, or
            the location of a function; None and an empty mapping tell of none.
        outputs: the outputs of the model.

    Returns:
        The gates by output. Outputs without one, and those that a gate for all cannot measure, are
        left out.

    Raises:
        GateError: an output, a measure or a limit is wrong.
    """
    specs = {spec.name: spec for spec in outputs}
    if told is None or told == {}:
        return {}
    if isinstance(told, Gate | OwnGate | str) or _is_one_gate(told, specs):
        gate = _parsed(told, "gates")
        found = {name: gate for name, spec in specs.items() if _misfit(gate, spec) is None}
        if not found:
            raise GateError(f"gates: {_misfit(gate, next(iter(specs.values())))}")
        return found
    if not isinstance(told, Mapping):
        raise GateError(f"gates is a {type(told).__name__}; write {GATES_WORDS}")
    gates: dict[str, Gate | OwnGate] = {}
    for name, value in told.items():
        if name not in specs:
            raise GateError(
                f"gates names '{name}', which is no output and no measure"
                f"{nearest_name(str(name), [*specs, *MEASURES])}"
            )
        gates[name] = _parsed(value, f"gates of '{name}'")
        if misfit := _misfit(gates[name], specs[name]):
            raise GateError(f"gates: {misfit}")
    return gates


def _is_one_gate(told: object, specs: Mapping[str, TensorSpec]) -> bool:
    known = {*Gate.model_fields, *OwnGate.model_fields}
    return (
        isinstance(told, Mapping)
        and not any(name in specs for name in told)
        and any(name in known for name in told)
    )


def _parsed(told: Any, where: str) -> Gate | OwnGate:
    if isinstance(told, Gate | OwnGate):
        return told
    if isinstance(told, str):
        told = {"function": told}
    if not isinstance(told, Mapping):
        raise GateError(f"{where} is {told!r:.80}; write {GATES_WORDS}")
    kind: type[Gate] | type[OwnGate] = OwnGate if "function" in told else Gate
    try:
        return kind.model_validate(dict(told))
    except ValidationError as error:
        raise GateError(f"{where}: {explain(error, kind)}") from error


def _misfit(gate: Gate | OwnGate, spec: TensorSpec) -> str | None:
    """Returns the reason why a gate cannot measure an output; None if it can."""
    if isinstance(gate, OwnGate):
        return None
    text, what = spec.datatype == "BYTES", f"output '{spec.name}'"
    for measure in gate.limits():
        if measure in NUMBERS_ONLY and text:
            return f"{measure} is for numbers, and {what} is text; give edit_distance or exact"
        if measure == "edit_distance" and not text:
            return f"edit_distance is for text, and {what} is {spec.datatype}; give absolute"
        if measure in ("top1", "cosine") and len(spec.shape) < 2:
            return f"{measure} needs an axis beside the rows, and {what} is {list(spec.shape)}"
    axis = gate.axis if gate.axis >= 0 else gate.axis + len(spec.shape)
    if gate.top1 is not None and not 1 <= axis < len(spec.shape):
        return f"axis {gate.axis} is none of the classes of {what}, which is {list(spec.shape)}"
    return None


def _listed(names: Collection[str]) -> str:
    return ", ".join(names)
