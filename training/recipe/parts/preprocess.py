"""The `preprocess` part of a recipe: transforms of raw inputs before the network.

Pure rules. Each step is one key with its settings; the steps run in order. All but `python` become
layers of the exported model, implemented in `training.network.preprocessing`; `python` is
implemented in `training.network.python_step`.
"""

from typing import Annotated

from pydantic import Field, JsonValue, field_validator, model_validator

from flambeau.protocol.tensor_spec import TensorName
from training.recipe.parts.one_of import OneKey
from training.recipe.parts.recipe_part import RecipePart

PADDING_ID, UNKNOWN_ID, FIRST_ID = 0, 1, 2
"""Outputs of `lookup` for 0, for unknown values, and for the first vocabulary entry."""
MAX_CODE_POINT = 0x10FFFF


class OneInput(RecipePart):
    """A step that transforms one input."""

    input: TensorName | None = None
    """Input that it transforms; null for the only one. Give it when the data has several."""


class Scale(OneInput):
    """Converts any numbers to FP32 and multiplies them by a factor."""

    factor: float = 1 / 255
    """Factor of every element. The default maps 8-bit pixels to 0..1; change it when the raw
    numbers have another range."""


class Normalize(OneInput):
    """(x - mean) / std per channel; the channels are the axis after the rows."""

    mean: tuple[float, ...] | None = None
    """Mean of each channel. Give it, with `std`, if both are known, as for pretrained weights."""
    std: tuple[Annotated[float, Field(gt=0)], ...] | None = None
    """Standard deviation of each channel."""
    fit: bool = False
    """True to measure both once on the training rows; the stored recipe then contains the values.
    Take it for your own data."""

    @model_validator(mode="after")
    def _told_or_measured(self) -> "Normalize":
        if self.fit and (self.mean is not None or self.std is not None):
            raise ValueError("fit measures mean and std; give either fit or the two")
        if not self.fit and (self.mean is None or self.std is None):
            raise ValueError("give mean and std, or fit: true to measure them")
        if len(self.mean or ()) != len(self.std or ()):
            raise ValueError(
                f"mean has {len(self.mean or ())} numbers and std {len(self.std or ())}; "
                "give one of each for every channel"
            )
        return self


class Resize(OneInput):
    """Bilinear resize of images [rows, channels, any height, any width], by pixel centres."""

    height: int = Field(ge=1, le=65_536)
    """Output height in pixels."""
    width: int = Field(ge=1, le=65_536)
    """Output width in pixels."""
    antialias: bool = False
    """True to average over all skipped pixels when shrinking. Take it for photographs much larger
    than the output; OpenVINO does not support it."""


class Lookup(OneInput):
    """Maps bytes or code points to indices: 0 stays 0, unknown is 1, vocabulary from 2."""

    vocabulary: str | tuple[Annotated[int, Field(ge=1, le=MAX_CODE_POINT)], ...] = Field(
        min_length=1
    )
    """Characters, or their code points, in index order. Give UTF-8 bytes beyond ASCII as
    numbers."""
    length: int | None = Field(default=None, ge=1, le=1_000_000)
    """Length to which rows [rows, any length] are cut or padded with 0; null keeps their length.
    Give it for a network with a fixed input length."""

    @field_validator("vocabulary")
    @classmethod
    def _each_once(cls, value: str | tuple[int, ...]) -> str | tuple[int, ...]:
        if len(set(value)) != len(value):
            twice = next(each for each in value if list(value).count(each) > 1)
            raise ValueError(f"{twice!r} occurs twice; keep one")
        return value

    @property
    def code_points(self) -> list[int]:
        """The vocabulary as code points."""
        return [ord(each) if isinstance(each, str) else each for each in self.vocabulary]


class OwnModule(OneInput):
    """Your `torch.nn.Module` with one input tensor and one output tensor."""

    target: str
    """`path/file.py:Name` (from the working directory) or `package.module:Name`. It is exported
    with the model, so torch.export must support its operations."""
    args: dict[str, JsonValue] = Field(default={})
    """Keyword arguments of the target."""


class PythonStep(RecipePart):
    """A Python function for transforms that torch cannot express. It runs first, on all inputs."""

    target: str
    """`path/file.py:Name` or `package.module:Name`: a class whose objects are called with a
    dictionary of NumPy arrays by input name, each [rows, ...], strings as objects of type `bytes`,
    and return such a dictionary of numbers: the model's inputs, in order. Its single file is
    published with the version and runs on the server, so it may import only packages that are
    installed there."""
    args: dict[str, JsonValue] = Field(default={})
    """Keyword arguments of the target."""


TorchStep = Scale | Normalize | Resize | Lookup | OwnModule


class PreprocessStep(OneKey):
    """One step: exactly one of these keys."""

    entry_name = "a step"

    scale: Scale | None = Field(default=None, exclude_if=lambda step: step is None)
    """Converts any numbers to FP32 and multiplies them by a factor."""
    normalize: Normalize | None = Field(default=None, exclude_if=lambda step: step is None)
    """(x - mean) / std for each channel."""
    resize: Resize | None = Field(default=None, exclude_if=lambda step: step is None)
    """Resizes images of any size to one size."""
    lookup: Lookup | None = Field(default=None, exclude_if=lambda step: step is None)
    """Maps bytes or code points to vocabulary indices."""
    module: OwnModule | None = Field(default=None, exclude_if=lambda step: step is None)
    """Your own torch module."""
    python: PythonStep | None = Field(default=None, exclude_if=lambda step: step is None)
    """A Python function, first in the list, for transforms that torch cannot express."""

    @property
    def torch_step(self) -> TorchStep | None:
        """Step that becomes a layer of the model; None for `python`."""
        return self.scale or self.normalize or self.resize or self.lookup or self.module


Preprocess = tuple[PreprocessStep, ...]


def check_order(steps: Preprocess) -> Preprocess:
    """Returns the steps if `python` occurs only first.

    Raises:
        ValueError: it follows another step.
    """
    for position, step in enumerate(steps[1:], start=1):
        if step.python is not None:
            raise ValueError(
                f"step {position} is python, and what stands before it runs behind it, as a part "
                "of the model; put it first"
            )
    return steps


def python_step(steps: Preprocess) -> PythonStep | None:
    """Returns the Python step, if there is one."""
    return steps[0].python if steps else None
