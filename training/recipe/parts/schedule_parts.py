"""The `schedule` part of a recipe: the learning rate over time. Pure."""

from typing import Any, Literal

from pydantic import Field, model_validator

from training.recipe.parts.one_of import OneOf
from training.recipe.parts.recipe_part import RecipePart


class Cosine(RecipePart):
    """Half a cosine from the peak down (Loshchilov and Hutter, 2017, without restarts)."""

    final_lr_share: float = Field(default=0.01, ge=0, le=1)
    """Learning rate of the last step, as a share of the peak. Raise it when the last epochs learn
    nothing."""


class StepDown(RecipePart):
    """Step decay: multiplies the rate by a factor every few epochs."""

    every_epochs: int = Field(default=10, ge=1)
    """Epochs between two decays, counted from the start. Set it to about a third of all epochs."""
    gamma: float = Field(default=0.1, gt=0, le=1)
    """Factor of one decay. Raise it when learning stops after the first one."""


class Exponential(RecipePart):
    """Exponential decay: the same factor after every epoch."""

    gamma: float = Field(default=0.95, gt=0, le=1)
    """Factor per epoch. Raise it for more epochs."""


class Plateau(RecipePart):
    """Decays when `stop.metric` no longer improves, as torch's `ReduceLROnPlateau`."""

    factor: float = Field(default=0.1, gt=0, lt=1)
    """Factor of one decay. Raise it when learning stops after the first one."""
    patience: int = Field(default=5, ge=0)
    """Epochs without improvement that are tolerated; the next one decays the rate. Keep it below
    `stop.patience`."""
    threshold: float = Field(default=1e-4, ge=0, lt=1)
    """Smallest relative improvement that counts. Raise it when the metric is noisy."""
    min_lr_share: float = Field(default=0.0, ge=0, le=1)
    """Lower bound of the rate, as a share of the peak. Raise it when the last epochs learn
    nothing."""


class OneCycle(RecipePart):
    """Up, down, and down to almost nothing (Smith and Topin, 2019). It has its own warm-up."""

    climb_share: float = Field(default=0.3, gt=0, lt=1)
    """Share of all steps before the peak. Lower it when the first steps are stable."""
    first_lr_share: float = Field(default=0.04, gt=0, le=1)
    """Learning rate of the first step, as a share of the peak. Lower it when it is unstable."""
    final_lr_share: float = Field(default=4e-6, ge=0, le=1)
    """Learning rate of the last step, as a share of the peak. Raise it when the last epochs learn
    nothing."""


class Wsd(RecipePart):
    """Warm-up, stable, decay (Hu et al., 2024): constant, then down in the last steps."""

    decay_share: float = Field(default=0.2, gt=0, le=1)
    """Share of all steps during which the rate falls. Raise it when the end still learns."""
    final_lr_share: float = Field(default=0.0, ge=0, le=1)
    """Learning rate of the last step, as a share of the peak. Raise it when the last epochs learn
    nothing."""
    shape: Literal["linear", "sqrt"] = "linear"
    """Shape of the decay: `sqrt` falls faster at first (Haegele et al., 2024). Try both."""


class Constant(RecipePart):
    """The peak rate, after the warm-up, to the end."""


class SchedulePart(OneOf):
    """Learning rate schedule, step by step."""

    choices = ("cosine", "step", "exponential", "plateau", "one_cycle", "wsd", "constant")

    warmup_share: float = Field(default=0.05, ge=0, lt=1)
    """Share of all steps during which the rate climbs from 0 to the peak; 0 with `one_cycle`, which
    has its own warm-up. Raise it when the first epochs are unstable."""
    cosine: Cosine | None = None
    """Half a cosine down; the default. Suits most runs."""
    step: StepDown | None = None
    """Step decay. Take it to reproduce older work."""
    exponential: Exponential | None = None
    """Decay by a factor per epoch. Take it when the number of epochs is open."""
    plateau: Plateau | None = None
    """Decay when the metric stagnates. Take it when the number of epochs is open."""
    one_cycle: OneCycle | None = None
    """One cycle up and down. Take it for few epochs with a high peak."""
    wsd: Wsd | None = None
    """Constant, then decay. Take it when a run may be extended later."""
    constant: Constant | None = None
    """Always the peak. Take it to find a learning rate, or with `optim.lbfgs`."""

    @model_validator(mode="before")
    @classmethod
    def _no_second_warmup(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("one_cycle") is not None:
            return {"warmup_share": 0.0, **data}
        return data

    @model_validator(mode="after")
    def _one_warmup(self) -> "SchedulePart":
        if self.one_cycle is not None and self.warmup_share:
            raise ValueError("one_cycle has its own warm-up, climb_share; drop warmup_share")
        return self
