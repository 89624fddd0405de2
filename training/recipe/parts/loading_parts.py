"""The parts of a recipe that say which training rows come when, and how they are varied. Pure."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, JsonValue, model_validator

from model_store.signature import Axis, TensorName
from training.recipe.parts.one_of import OneKey, OneOf
from training.recipe.parts.recipe_part import RecipePart

SamplerName = Literal["plain", "balanced", "weighted", "bucketed"]


class PlainSampler(RecipePart):
    """Every row once, in an order of its own each epoch."""


class BalancedSampler(RecipePart):
    """As many rows as there are, drawn with replacement, each class as often as the others."""


class WeightedSampler(RecipePart):
    """As many rows as there are, drawn with replacement, each as often as its weight says."""

    target: str
    """`path/file.py:Name` or `package.module:Name`: a function `f(inputs, labels, **args)` of all
    training rows that returns their weights, [rows], 0 or more. Change it to see other rows more
    often."""
    args: dict[str, JsonValue] = Field(default={})
    """Keyword arguments of the target."""


class BucketedSampler(RecipePart):
    """Every row once; rows of like length share a batch, which is padded to its longest only."""

    window: int = Field(default=50, ge=2, le=100_000)
    """Batches whose rows are sorted by length together. Raise it to save more padding; lower it
    where the order must be more random."""


class SamplerPart(OneOf):
    """Which training rows come, and in which order."""

    choices = ("plain", "balanced", "weighted", "bucketed")

    plain: PlainSampler | None = None
    """Every row once, shuffled."""
    balanced: BalancedSampler | None = None
    """Every class equally often. Take it when some are rare and must be found all the same."""
    weighted: WeightedSampler | None = None
    """By weights of your own. Take it when some rows matter more than others."""
    bucketed: BucketedSampler | None = None
    """Rows of like length together. Take it with `padding`, when lengths vary much."""


def _named(value: object) -> object:
    """`sampler: balanced` is short for `sampler: {balanced: {}}`."""
    return {value: {}} if isinstance(value, str) else value


Sampler = Annotated[
    SamplerPart, BeforeValidator(_named, json_schema_input_type=SamplerPart | SamplerName)
]


class OneArray(RecipePart):
    """A change of one input of the training rows."""

    input: TensorName | None = None
    """Which input it changes; null for the only one. Give it when the data has several."""


class RandomCrop(OneArray):
    """Images [..., height, width] moved about: padded with 0 all around, and cut back."""

    padding: int = Field(ge=1, le=4096)
    """Pixels on each side. Raise it where things stand anywhere in the picture."""


class RandomFlip(OneArray):
    """Rows turned round along one axis."""

    share: float = Field(default=0.5, ge=0, le=1)
    """Of the rows that are turned. 0.5 suits most."""
    axis: Axis | None = None
    """Which, counted with the rows as 0; null for the last: left and right of an image."""


class RandomErase(OneArray):
    """A rectangle of images [..., height, width] blotted out (Zhong et al., 2017)."""

    share: float = Field(default=0.5, ge=0, le=1)
    """Of the rows that lose one."""
    largest: float = Field(default=0.5, gt=0, le=1)
    """The longest side it may have, as a share of the image's. Lower it where little is left."""
    value: float = 0.0
    """What is put there."""


class Noise(OneArray):
    """Normal noise on every element."""

    deviation: float = Field(gt=0)
    """Its standard deviation, in the input's unit. Raise it while the training loss falls far below
    the validation loss."""


class RandomScale(OneArray):
    """Each row times a factor of its own."""

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
    """A function of yours."""

    target: str
    """`path/file.py:Name` or `package.module:Name`: a function `f(row, random, **args)` of one
    row's array, without the rows' axis, and a `numpy.random.Generator`; it returns an array of the
    same shape and type. All its randomness must come from `random`."""
    args: dict[str, JsonValue] = Field(default={})
    """Keyword arguments of the target."""


Change = RandomCrop | RandomFlip | RandomErase | Noise | RandomScale | OwnChange


class AugmentStep(OneKey):
    """One change: exactly one of these keys."""

    entry_name = "a change"

    random_crop: RandomCrop | None = Field(default=None, exclude_if=lambda step: step is None)
    """Moves images about."""
    random_flip: RandomFlip | None = Field(default=None, exclude_if=lambda step: step is None)
    """Turns rows round along one axis."""
    random_erase: RandomErase | None = Field(default=None, exclude_if=lambda step: step is None)
    """Blots out a rectangle."""
    noise: Noise | None = Field(default=None, exclude_if=lambda step: step is None)
    """Adds normal noise."""
    random_scale: RandomScale | None = Field(default=None, exclude_if=lambda step: step is None)
    """Multiplies each row."""
    function: OwnChange | None = Field(default=None, exclude_if=lambda step: step is None)
    """Calls a function of yours for each row."""

    @property
    def change(self) -> Change:
        """Its settings."""
        found: Change = getattr(self, self.name)
        return found


class LoadingFields(RecipePart):
    """Fields of `data` that say how training rows reach the network."""

    workers: int = Field(default=0, ge=0, le=256)
    """Processes that prepare training batches ahead; 0 prepares them in the loop. Raise it while
    `train/wait_share` is more than a few percent; it changes no bit."""
    sampler: Sampler = SamplerPart()
    """Which training rows come, and in which order: `plain`, `balanced`, `weighted`, `bucketed`.
    Change it when classes or lengths are very uneven."""
    augment: tuple[AugmentStep, ...] = ()
    """How training rows are varied, in order: `random_crop`, `random_flip`, `random_erase`,
    `noise`, `random_scale`, `function`. It is no part of the model. Give it when the network does
    well on training rows only."""
