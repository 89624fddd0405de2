"""The part of a recipe that says what is minimised. Pure.

Rules kept here: the loss says the task (`LossPart.judged_task`), and with it what labels are; of a
sum, the first term is the one that the model is judged by.
"""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, JsonValue, model_validator

from training.recipe.parts.one_of import OneOf
from training.recipe.parts.recipe_part import RecipePart
from training.recipe.parts.task import Task

Positive = Annotated[float, Field(gt=0)]
ClassWeight = Literal["balanced"] | tuple[Positive, ...] | None
LABELS = "labels"
"""The name of the labels where the data has only one array of them, and of those that judge."""


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


class Bce(RecipePart):
    """Binary cross-entropy of K logits, each of a label of its own: 0 or 1."""

    pos_weight: Literal["balanced"] | Positive | tuple[Positive, ...] | None = None
    """What a label 1 weighs beside a label 0: a number, one for each label, or `balanced`: how
    often the label is 0 for each 1, counted in the training rows. Give it when labels are rare."""


class Mse(RecipePart):
    """Mean squared error. It has nothing to set."""


class L1(RecipePart):
    """Mean absolute error. It has nothing to set."""


class SmoothL1(RecipePart):
    """Squared error near 0, over twice `beta`; absolute error beyond (Girshick, 2015)."""

    beta: float = Field(default=1.0, gt=0)
    """Where the square ends, in the labels' own unit. Change it with the unit: about what is still
    a good answer."""


class Huber(RecipePart):
    """Half the squared error near 0, `delta` times the absolute error beyond (Huber, 1964)."""

    delta: float = Field(default=1.0, gt=0)
    """Where the square ends, in the labels' own unit. Change it with the unit: about what is no
    outlier yet."""


class Poisson(RecipePart):
    """Negative log-likelihood of counts, without the part that no weight changes."""

    log_input: bool = True
    """Whether the model gives the logarithm of the rate, or the rate itself. Set false for a model
    that ends in something positive, such as softplus."""


SINGLE_LOSSES = (
    "cross_entropy",
    "focal",
    "nll",
    "bce",
    "mse",
    "l1",
    "smooth_l1",
    "huber",
    "poisson",
    "target",
)
TASKS: dict[str, Task] = {
    "bce": "multi_label",
    "mse": "regression",
    "l1": "regression",
    "smooth_l1": "regression",
    "huber": "regression",
    "poisson": "counts",
}
"""Of the losses that are not about classes."""


class SingleLoss(OneOf):
    """A function of one output of the model and one array of labels."""

    choices: ClassVar[tuple[str, ...]] = SINGLE_LOSSES

    cross_entropy: CrossEntropy | None = None
    """For logits: what is taken if nothing is named. Suits most classifiers."""
    focal: Focal | None = None
    """For logits. Take it when most rows are easy, or one class is everywhere."""
    nll: Nll | None = None
    """For log-probabilities. Take it when the model ends in `log_softmax`."""
    bce: Bce | None = None
    """For logits of labels that do not exclude each other. Take it when a row may have several."""
    mse: Mse | None = None
    """For numbers. Take it for regression whose large errors cost most."""
    l1: L1 | None = None
    """For numbers. Take it when outliers must not decide; it learns the median."""
    smooth_l1: SmoothL1 | None = None
    """For numbers. Take it for regression with outliers, in place of `l1`, which is unsteady near
    the end."""
    huber: Huber | None = None
    """For numbers. `smooth_l1` times `delta`. Take it for regression with outliers."""
    poisson: Poisson | None = None
    """For counts. Take it for how often something happens."""
    target: str | None = None
    """Your own loss, `path/file.py:Name` or `package.module:Name`: called with `args` it gives a
    function of the output and the labels that returns their mean. Take it when none of the others
    fits."""
    args: dict[str, JsonValue] = Field(default={})
    """Keyword arguments of `target`. Change them with it."""
    task: Task | None = None
    """What a loss of your own is about; null is `classes`. Give it with `target` for other
    labels."""

    @model_validator(mode="after")
    def _args_of_a_target(self) -> "SingleLoss":
        given = "args" if self.args else "task" if self.task else None
        if given and self.target is None:
            raise ValueError(
                f"{given} belong to a target, and this loss is {self.choice}; drop {given}"
            )
        return self

    @property
    def single_task(self) -> Task:
        """What the labels of this loss are."""
        return self.task or TASKS.get(self.choice, "classes")

    @property
    def ignore_index(self) -> int:
        """The class label in the data that does not count."""
        told = self.chosen if isinstance(self.chosen, ClassLoss) else ClassLoss()
        return told.ignore_index


class LossTerm(SingleLoss):
    """One of the losses of a sum."""

    weight: float = Field(default=1.0, gt=0)
    """What its mean is multiplied by. Change it so that no term drowns the others."""
    output: str | None = None
    """Name of the output it is about, as in `model.outputs`; null for the first. Give it for
    networks with several outputs that learn."""
    labels: str = LABELS
    """Name of the labels it is about. Give it for data with several arrays of them."""


class LossPart(SingleLoss):
    """What is minimised."""

    choices: ClassVar[tuple[str, ...]] = (*SINGLE_LOSSES, "sum")

    sum: tuple[LossTerm, ...] | None = Field(default=None, min_length=1)
    """Several losses, each a mean times its `weight`. Take it for a network that learns several
    things. The first term is about the first output and the labels that the model is judged by."""

    @model_validator(mode="after")
    def _first_term_is_judged(self) -> "LossPart":
        if self.sum and (self.sum[0].labels != LABELS or self.sum[0].output is not None):
            raise ValueError(
                "the first term of a sum is what the model is judged by: of the first output and "
                f"the labels named '{LABELS}'; drop its output and labels, or put another first"
            )
        return self

    @property
    def terms(self) -> tuple[LossTerm, ...]:
        """The losses of the sum; one where there is no sum."""
        if self.sum is not None:
            return self.sum
        names = [self.choice, *(("args", "task") if self.target else ())]
        return (LossTerm.model_construct(**{name: getattr(self, name) for name in names}),)

    @property
    def judged_task(self) -> Task:
        """What the model is asked, and so how its artifacts are judged."""
        return self.terms[0].single_task
