"""What a model takes and gives: names, datatypes and shapes, and the check of a request.

Pure rules. Shapes include the batch dimension, which comes first and is -1; further -1 mark
dimensions that vary from request to request.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import Field, field_validator

from model_store.strict import StrictModel, nearest_name
from model_store.tensors import DATATYPES

TensorName = Annotated[str, Field(min_length=1, max_length=256)]


class SignatureError(ValueError):
    """Inputs that do not fit a signature. The message names the tensor, the value, the rule."""


class TensorSpec(StrictModel):
    """One input or output."""

    name: TensorName
    datatype: str
    shape: tuple[int, ...]

    @field_validator("datatype")
    @classmethod
    def _known_datatype(cls, value: str) -> str:
        if value not in DATATYPES:
            raise ValueError(f"use one of {', '.join(DATATYPES)}")
        return value

    @field_validator("shape")
    @classmethod
    def _batch_first(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if not value or value[0] != -1 or any(d < -1 for d in value):
            raise ValueError("the first dimension is the batch and must be -1, none below -1")
        return value

    def fits(self, shape: Sequence[int]) -> bool:
        """Whether a full shape, batch included, agrees with this one."""
        return len(shape) == len(self.shape) and all(
            wanted in (-1, given) for wanted, given in zip(self.shape, shape, strict=True)
        )


class Signature(StrictModel):
    """All inputs and outputs of a model, and how many rows one batch may have."""

    inputs: tuple[TensorSpec, ...] = Field(min_length=1)
    outputs: tuple[TensorSpec, ...] = Field(min_length=1)
    max_batch_size: int = Field(ge=1, le=65_536)

    @field_validator("inputs", "outputs")
    @classmethod
    def _unique_names(cls, value: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        names = [spec.name for spec in value]
        if len(set(names)) != len(names):
            raise ValueError(f"a tensor name occurs twice in {names}")
        return value

    def check_inputs(self, given: Mapping[str, tuple[str, Sequence[int]]]) -> int:
        """Checks a request's tensors, each given as (datatype, full shape).

        Returns:
            The number of rows, which all inputs share.

        Raises:
            SignatureError: a name, datatype, shape or batch size that does not fit.
        """
        known = {spec.name for spec in self.inputs}
        for name in given:
            if name not in known:
                raise SignatureError(f"unknown input '{name}'{nearest_name(name, known)}")
        for spec in self.inputs:
            if spec.name not in given:
                raise SignatureError(f"input '{spec.name}' is missing")
            datatype, shape = given[spec.name]
            if datatype != spec.datatype:
                raise SignatureError(
                    f"input '{spec.name}' has datatype {datatype}; expected {spec.datatype}"
                )
            if not spec.fits(shape):
                raise SignatureError(
                    f"input '{spec.name}' has shape {_text(shape)}; expected {_text(spec.shape)}"
                )
        return self._rows({name: shape for name, (_, shape) in given.items()})

    def check_outputs(self, names: Sequence[str]) -> None:
        """Checks the names a request asks for.

        Raises:
            SignatureError: a name the model does not give, or one asked for twice.
        """
        known = {spec.name for spec in self.outputs}
        for name in names:
            if name not in known:
                raise SignatureError(f"unknown output '{name}'{nearest_name(name, known)}")
        if len(set(names)) != len(names):
            raise SignatureError(f"an output is asked for twice in {list(names)}")

    def _rows(self, shapes: Mapping[str, Sequence[int]]) -> int:
        rows = {name: shape[0] for name, shape in shapes.items()}
        if len(set(rows.values())) > 1:
            raise SignatureError(f"inputs differ in batch size: {rows}; give all the same")
        (count,) = set(rows.values())
        if count < 1:
            raise SignatureError("the batch has 0 rows; give at least 1")
        if count > self.max_batch_size:
            raise SignatureError(
                f"the batch has {count} rows; at most {self.max_batch_size} fit, so split it"
            )
        return count


def _text(shape: Sequence[int]) -> str:
    return "[" + ",".join(str(d) for d in shape) + "]"
