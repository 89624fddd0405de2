"""The part of a recipe that says what is minimised, on class labels. Pure."""

from typing import Annotated, Literal

from pydantic import Field, JsonValue, model_validator

from training.export_entries import RecipePart
from training.one_of import OneOf

ClassWeight = Literal["balanced"] | tuple[Annotated[float, Field(gt=0)], ...] | None


class ClassLoss(RecipePart):
    """What every loss on whole-number labels is told."""

    ignore_index: int = -100
    """The label of places that do not count, such as what follows the end of a sequence. Change it
    when the data has a number of its own for them."""


class CrossEntropy(ClassLoss):
    """Softmax cross-entropy with whole-number labels."""

    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    """Share of the target spread over all classes. Raise it (0.05 to 0.1) when the network is
    over-confident; smaller logits also quantize better."""
    weight: ClassWeight = None
    """A weight for each class, or `balanced`: rows / (classes x rows of the class), counted in the
    training rows. Give it when classes are of very different sizes and all matter alike."""


class Focal(ClassLoss):
    """Focal loss (Lin et al., 2017): cross-entropy times (1 - p of the right class) ^ `gamma`."""

    gamma: float = Field(default=2.0, ge=0)
    """How little counts what is already right; 0 is cross-entropy. Raise it when easy rows drown
    the hard ones."""
    weight: ClassWeight = None
    """A weight for each class, or `balanced`, as for cross-entropy. Give it when classes are of
    very different sizes and all matter alike."""


class Nll(ClassLoss):
    """Negative log-likelihood, for a model whose first output is log-probabilities."""

    weight: ClassWeight = None
    """A weight for each class, or `balanced`, as for cross-entropy. Give it when classes are of
    very different sizes and all matter alike."""


class LossPart(OneOf):
    """What is minimised."""

    choices = ("cross_entropy", "focal", "nll", "target")

    cross_entropy: CrossEntropy | None = None
    """For logits: what is taken if nothing is named. Suits most classifiers."""
    focal: Focal | None = None
    """For logits. Take it when most rows are easy, or one class is everywhere."""
    nll: Nll | None = None
    """For log-probabilities. Take it when the model ends in `log_softmax`."""
    target: str | None = None
    """Your own loss, `path/file.py:Name` or `package.module:Name`: called with `args` it gives a
    function of the first output and the labels that returns their mean. Take it when none of the
    others fits."""
    args: dict[str, JsonValue] = Field(default={})
    """Keyword arguments of `target`. Change them with it."""

    @model_validator(mode="after")
    def _args_of_a_target(self) -> "LossPart":
        if self.args and self.target is None:
            raise ValueError(f"args belong to a target, and this loss is {self.choice}; drop args")
        return self

    @property
    def ignore_index(self) -> int:
        """The label in the data that does not count."""
        told = self.chosen if isinstance(self.chosen, ClassLoss) else ClassLoss()
        return told.ignore_index
