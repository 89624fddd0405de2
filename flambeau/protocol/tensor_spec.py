"""One tensor of a model: its name, datatype, shape and batch axis."""

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field, field_validator, model_validator

from flambeau.protocol.datatypes import DATATYPE_NAMES
from flambeau.protocol.strict import StrictModel

TensorName = Annotated[str, Field(min_length=1, max_length=256)]


class SignatureError(ValueError):
    """Inputs do not match the signature. The message names the tensor, the value and the rule."""


MAX_RANK = 32
"""Most dimensions of a tensor, the batch included; runtimes have fewer."""


class TensorSpec(StrictModel):
    """One input or output."""

    name: TensorName
    datatype: str
    shape: Annotated[tuple[int, ...], Field(max_length=MAX_RANK)]
    # Omitted from JSON if first, so that older manifests serialize as before.
    batch_axis: Annotated[int, Field(ge=0, lt=MAX_RANK)] | None = Field(
        default=0, exclude_if=lambda axis: axis == 0
    )
    """The dimension of the batch; None for a tensor without one, such as a scalar."""
    optional: bool = Field(default=False, exclude_if=lambda optional: not optional)
    """True for an input that a request may omit. Requests share a batch only if they have the same
    inputs."""

    @field_validator("datatype")
    @classmethod
    def _known_datatype(cls, value: str) -> str:
        if value not in DATATYPE_NAMES:
            raise ValueError(f"use one of {', '.join(DATATYPE_NAMES)}")
        return value

    @model_validator(mode="after")
    def _batch_varies(self) -> "TensorSpec":
        axis = self.batch_axis
        if axis is not None and (axis >= len(self.shape) or self.shape[axis] != -1):
            place = "the first dimension" if axis == 0 else f"dimension {axis}"
            raise ValueError(
                f"'{self.name:.80}' has shape {shape_text(self.shape)}: {place} is the batch and "
                "must be -1; write batch_axis: null for a tensor without a batch"
            )
        if any(size < -1 for size in self.shape):
            raise ValueError(
                f"'{self.name:.80}' has shape {shape_text(self.shape)}: write -1 for a dimension "
                "that varies, and none below"
            )
        return self

    @property
    def row_shape(self) -> tuple[int, ...]:
        """The shape of one row: without the batch."""
        axis = self.batch_axis
        return self.shape if axis is None else self.shape[:axis] + self.shape[axis + 1 :]

    def row_axis(self, axis: int) -> int:
        """Returns the place of a dimension where the batch is moved to the front, or put there."""
        return axis + 1 if self.batch_axis is None or axis < self.batch_axis else axis

    def shape_words(self) -> str:
        """Returns the shape for people, such as `[batch,3,?]`: `?` is a size that varies."""
        sizes = (
            "batch" if axis == self.batch_axis else "?" if size == -1 else str(size)
            for axis, size in enumerate(self.shape)
        )
        return f"[{','.join(sizes)}]"

    def in_rows(self) -> "TensorSpec":
        """Returns the spec of many rows of this tensor, [rows, ...]; see `protocol.row_form`."""
        if self.batch_axis == 0:
            return self
        return self.model_copy(update={"shape": (-1, *self.row_shape), "batch_axis": 0})

    def fits(self, shape: Sequence[int]) -> bool:
        """Returns True if a full shape, batch dimension included, matches this one."""
        return len(shape) == len(self.shape) and all(
            wanted in (-1, given) for wanted, given in zip(self.shape, shape, strict=True)
        )


def shape_text(shape: Sequence[int]) -> str:
    """Returns a shape for a message, such as `[-1,3]`."""
    return "[" + ",".join(str(d) for d in shape) + "]"
