"""The `preprocess` part of a recipe: what is done with raw inputs before the network sees them.

Pure rules. Each step is one key with its settings; the steps run in order. All but `python` become
layers of the exported model; their code is in `training.network.preprocessing`, that of `python` in
`training.network.python_step`.
"""

from typing import Annotated

from pydantic import Field, JsonValue, field_validator, model_validator

from model_store.signature import TensorName
from training.recipe.parts.one_of import OneKey
from training.recipe.parts.recipe_part import RecipePart

PADDING_ID, UNKNOWN_ID, FIRST_ID = 0, 1, 2
"""What `lookup` gives for 0, for what is not in the vocabulary, and for its first entry."""
MAX_CODE_POINT = 0x10FFFF


class OneInput(RecipePart):
    """A step that changes one input."""

    input: TensorName | None = None
    """Which input it changes; null for the only one. Give it when the data has several."""


class Scale(OneInput):
    """Any numbers to FP32, times a factor."""

    factor: float = 1 / 255
    """What every element is multiplied with. The default takes 8-bit pixels to 0..1; change it
    when the raw numbers have another range."""


class Normalize(OneInput):
    """(x - mean) / std, channel by channel; the channels are the axis behind the rows."""

    mean: tuple[float, ...] | None = None
    """One for each channel. Give it, and `std`, where they are known, as those of pretrained
    weights are."""
    std: tuple[Annotated[float, Field(gt=0)], ...] | None = None
    """One for each channel."""
    fit: bool = False
    """Whether both are measured on the training rows, once; the stored recipe then has the
    figures. Take it for data of your own."""

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
    """Images [rows, channels, any height, any width] to one size, bilinearly, by pixel centres."""

    height: int = Field(ge=1, le=65_536)
    """Of the result, in pixels."""
    width: int = Field(ge=1, le=65_536)
    """Of the result, in pixels."""
    antialias: bool = False
    """Whether shrinking averages over all the pixels it leaves out. Take it for photographs much
    larger than the result; OpenVINO has no such operation."""


class Lookup(OneInput):
    """Bytes or code points to numbers of a vocabulary: 0 stays 0, 1 is unknown, the rest from 2."""

    vocabulary: str | tuple[Annotated[int, Field(ge=1, le=MAX_CODE_POINT)], ...] = Field(
        min_length=1
    )
    """Characters, or their code points, in the order of their numbers. Bytes of UTF-8 beyond ASCII
    are given as numbers."""
    length: int | None = Field(default=None, ge=1, le=1_000_000)
    """What rows [rows, any length] are cut or filled with 0 to; null leaves them as long as they
    are. Give it for a network that takes one length only."""

    @field_validator("vocabulary")
    @classmethod
    def _each_once(cls, value: str | tuple[int, ...]) -> str | tuple[int, ...]:
        if len(set(value)) != len(value):
            twice = next(each for each in value if list(value).count(each) > 1)
            raise ValueError(f"{twice!r} is there twice; keep one")
        return value

    @property
    def code_points(self) -> list[int]:
        """The vocabulary as numbers."""
        return [ord(each) if isinstance(each, str) else each for each in self.vocabulary]


class OwnModule(OneInput):
    """A `torch.nn.Module` of yours that takes one tensor and gives one."""

    target: str
    """`path/file.py:Name` (from the working directory) or `package.module:Name`. It is exported
    with the model, so it is made of what torch.export takes."""
    args: dict[str, JsonValue] = Field(default={})
    """Keyword arguments of the target."""


class PythonStep(RecipePart):
    """A Python function for what torch cannot express. It goes first, and sees all inputs."""

    target: str
    """`path/file.py:Name` or `package.module:Name`: a class whose objects are called with a
    dictionary of NumPy arrays by input name, each [rows, ...], strings as objects of type `bytes`,
    and return such a dictionary of numbers: the model's inputs, in order. Its one file is
    published with the version and runs where the version is served, so it imports nothing but
    what is installed there."""
    args: dict[str, JsonValue] = Field(default={})
    """Keyword arguments of the target."""


TorchStep = Scale | Normalize | Resize | Lookup | OwnModule


class PreprocessStep(OneKey):
    """One step: exactly one of these keys."""

    entry_name = "a step"

    scale: Scale | None = Field(default=None, exclude_if=lambda step: step is None)
    """Any numbers to FP32, times a factor."""
    normalize: Normalize | None = Field(default=None, exclude_if=lambda step: step is None)
    """(x - mean) / std for each channel."""
    resize: Resize | None = Field(default=None, exclude_if=lambda step: step is None)
    """Images of any size to one size."""
    lookup: Lookup | None = Field(default=None, exclude_if=lambda step: step is None)
    """Bytes or code points to numbers of a vocabulary."""
    module: OwnModule | None = Field(default=None, exclude_if=lambda step: step is None)
    """A torch module of your own."""
    python: PythonStep | None = Field(default=None, exclude_if=lambda step: step is None)
    """A Python function, first in the list, for what torch cannot express."""

    @property
    def torch_step(self) -> TorchStep | None:
        """What becomes a layer of the model; None for `python`."""
        return self.scale or self.normalize or self.resize or self.lookup or self.module


Preprocess = tuple[PreprocessStep, ...]


def check_order(steps: Preprocess) -> Preprocess:
    """The steps, if `python` is nowhere but first.

    Raises:
        ValueError: it stands behind another step.
    """
    for position, step in enumerate(steps[1:], start=1):
        if step.python is not None:
            raise ValueError(
                f"step {position} is python, and what stands before it runs behind it, as a part "
                "of the model; put it first"
            )
    return steps


def python_step(steps: Preprocess) -> PythonStep | None:
    """The Python step, if there is one."""
    return steps[0].python if steps else None
