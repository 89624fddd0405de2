"""The parts of a recipe for sampling and augmenting training rows. Pure."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, JsonValue, model_validator

from flambeau.protocol.signature import Axis
from flambeau.protocol.tensor_spec import TensorName
from training.recipe.parts.one_of import OneKey, OneOf
from training.recipe.parts.recipe_part import RecipePart

SamplerName = Literal["plain", "balanced", "weighted", "bucketed"]


class PlainSampler(RecipePart):
    """Every row once, shuffled anew each epoch."""


class BalancedSampler(RecipePart):
    """One draw per row, with replacement, all classes equally often."""


class WeightedSampler(RecipePart):
    """One draw per row, with replacement, in proportion to the rows' weights."""

    target: str
    """`path/file.py:Name` or `package.module:Name`: a function `f(inputs, labels, **args)` of all
    training rows that returns their weights, [rows], 0 or more. Change it to draw other rows more
    often."""
    args: dict[str, JsonValue] = Field(default={})
    """Keyword arguments of the target."""


class BucketedSampler(RecipePart):
    """Every row once; rows of similar length share a batch, padded only to its longest row."""

    window: int = Field(default=50, ge=2, le=100_000)
    """Number of batches whose rows are sorted by length together. Raise it to save more padding;
    lower it if the order must be more random."""


class SamplerPart(OneOf):
    """Selection and order of the training rows."""

    choices = ("plain", "balanced", "weighted", "bucketed")

    plain: PlainSampler | None = None
    """Every row once, shuffled."""
    balanced: BalancedSampler | None = None
    """All classes equally often. Take it when rare classes must be recognised too."""
    weighted: WeightedSampler | None = None
    """By your own weights. Take it when some rows matter more than others."""
    bucketed: BucketedSampler | None = None
    """Rows of similar length together. Take it with `padding`, when lengths vary much."""


def _named(value: object) -> object:
    """Expands `sampler: balanced` to `sampler: {balanced: {}}`."""
    return {value: {}} if isinstance(value, str) else value


Sampler = Annotated[
    SamplerPart, BeforeValidator(_named, json_schema_input_type=SamplerPart | SamplerName)
]


class OneArray(RecipePart):
    """An augmentation of one input of the training rows."""

    input: TensorName | None = None
    """Input that it changes; null for the only one. Give it when the data has several."""


class RandomCrop(OneArray):
    """Random shift of images [..., height, width]: padded with 0 on all sides, and cropped back."""

    padding: int = Field(ge=1, le=4096)
    """Pixels on each side. Raise it if objects may be anywhere in the image."""


class RandomFlip(OneArray):
    """Random flip of rows along one axis."""

    share: float = Field(default=0.5, ge=0, le=1)
    """Share of rows that are flipped. 0.5 suits most data."""
    axis: Axis | None = None
    """Axis of the flip, where the rows are axis 0; null for the last (an image's width)."""


class RandomErase(OneArray):
    """Random erasing of a rectangle of images [..., height, width] (Zhong et al., 2017)."""

    share: float = Field(default=0.5, ge=0, le=1)
    """Share of rows with an erased rectangle."""
    largest: float = Field(default=0.5, gt=0, le=1)
    """Longest side of the rectangle, as a share of the image's. Lower it if too little remains."""
    value: float = 0.0
    """Value of the erased pixels."""


class Noise(OneArray):
    """Gaussian noise added to every element."""

    deviation: float = Field(gt=0)
    """Standard deviation, in the input's unit. Raise it while the training loss falls far below the
    validation loss."""


class RandomScale(OneArray):
    """Multiplication of each row by a random factor."""

    least: float = 0.8
    """The smallest factor."""
    most: float = 1.25
    """The largest factor."""

    @model_validator(mode="after")
    def _least_first(self) -> "RandomScale":
        if self.least >= self.most:
            raise ValueError(f"least is {self.least:g} and most is {self.most:g}; swap them")
        return self


class OwnChange(OneArray):
    """Your own augmentation function."""

    target: str
    """`path/file.py:Name` or `package.module:Name`: a function `f(row, random, **args)` of one
    row's array, without the row axis, and a `numpy.random.Generator`; it returns an array of the
    same shape and type. All its randomness must come from `random`."""
    args: dict[str, JsonValue] = Field(default={})
    """Keyword arguments of the target."""


Change = RandomCrop | RandomFlip | RandomErase | Noise | RandomScale | OwnChange


class AugmentStep(OneKey):
    """One augmentation: exactly one of these keys."""

    entry_name = "a change"

    random_crop: RandomCrop | None = Field(default=None, exclude_if=lambda step: step is None)
    """Shifts images by some pixels."""
    random_flip: RandomFlip | None = Field(default=None, exclude_if=lambda step: step is None)
    """Flips rows along one axis."""
    random_erase: RandomErase | None = Field(default=None, exclude_if=lambda step: step is None)
    """Erases a rectangle."""
    noise: Noise | None = Field(default=None, exclude_if=lambda step: step is None)
    """Adds Gaussian noise."""
    random_scale: RandomScale | None = Field(default=None, exclude_if=lambda step: step is None)
    """Multiplies each row by a factor."""
    function: OwnChange | None = Field(default=None, exclude_if=lambda step: step is None)
    """Calls your function for each row."""

    @property
    def change(self) -> Change:
        """Settings of the augmentation."""
        found: Change = getattr(self, self.name)
        return found


class LoadingFields(RecipePart):
    """Fields of `data` for loading training rows."""

    workers: int = Field(default=0, ge=0, le=256)
    """Processes that prefetch training batches; 0 prepares them in the training loop. Raise it
    while `train/wait_share` is more than a few percent; results stay bit-identical."""
    sampler: Sampler = SamplerPart()
    """Selection and order of training rows: `plain`, `balanced`, `weighted`, `bucketed`. Change it
    when classes or lengths are very uneven."""
    augment: tuple[AugmentStep, ...] = ()
    """Augmentations of training rows, in order: `random_crop`, `random_flip`, `random_erase`,
    `noise`, `random_scale`, `function`. They are not part of the model. Give it when the network
    overfits the training rows."""
