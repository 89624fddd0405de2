"""The `loss` part of a recipe. Pure.

Rules: the loss determines the task (`LossPart.judged_task`), and with it the meaning of labels; the
first term of a sum determines the task and the metrics of the model.
"""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, JsonValue, model_validator

from training.recipe.parts.one_of import OneOf
from training.recipe.parts.recipe_part import RecipePart
from training.recipe.parts.task import Task

Positive = Annotated[float, Field(gt=0)]
ClassWeight = Literal["balanced"] | tuple[Positive, ...] | None
LABELS = "labels"
"""Name of the labels if the data has only one array of them, and of the labels of the metrics."""


class ClassLoss(RecipePart):
    """Fields common to losses on whole-number labels."""

    ignore_index: int = -100
    """Label of positions that do not count, such as those after the end of a sequence. Change it
    when the data uses another number for them."""


class CrossEntropy(ClassLoss):
    """Softmax cross-entropy with whole-number labels."""

    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    """Share of the target probability spread over all classes. Raise it (0.05 to 0.1) when the
    network is over-confident; smaller logits also quantize better."""
    weight: ClassWeight = None
    """A weight for each class, or `balanced`: rows / (classes x rows of the class), counted in the
    training rows. Give it when class sizes differ much and all classes matter equally."""


class Focal(ClassLoss):
    """Focal loss (Lin et al., 2017): cross-entropy times (1 - p of the right class) ^ `gamma`."""

    gamma: float = Field(default=2.0, ge=0)
    """Focusing exponent, which down-weights rows that are already right; 0 is cross-entropy. Raise
    it when easy rows dominate hard ones."""
    weight: ClassWeight = None
    """A weight for each class, or `balanced`, as for cross-entropy. Give it when class sizes differ
    much and all classes matter equally."""


class Nll(ClassLoss):
    """Negative log-likelihood, for a model whose first output is log-probabilities."""

    weight: ClassWeight = None
    """A weight for each class, or `balanced`, as for cross-entropy. Give it when class sizes differ
    much and all classes matter equally."""


class Bce(RecipePart):
    """Binary cross-entropy of K logits, each for its own label: 0 or 1."""

    pos_weight: Literal["balanced"] | Positive | tuple[Positive, ...] | None = None
    """Weight of label 1 relative to label 0: a number, one for each label, or `balanced`: the count
    of label 0 per label 1, in the training rows. Give it when positive labels are rare."""


class Mse(RecipePart):
    """Mean squared error. It has no settings."""


class L1(RecipePart):
    """Mean absolute error. It has no settings."""


class SmoothL1(RecipePart):
    """Squared error near 0, over twice `beta`; absolute error beyond (Girshick, 2015)."""

    beta: float = Field(default=1.0, gt=0)
    """End of the squared range, in the labels' unit. Change it with the unit: about the error of an
    answer that is still good."""


class Huber(RecipePart):
    """Half the squared error near 0, `delta` times the absolute error beyond (Huber, 1964)."""

    delta: float = Field(default=1.0, gt=0)
    """End of the squared range, in the labels' unit. Change it with the unit: about the largest
    error that is not an outlier."""


class Poisson(RecipePart):
    """Negative log-likelihood of counts, without the constant term."""

    log_input: bool = True
    """True if the model outputs the logarithm of the rate, false if the rate itself. Set it false
    for a model whose last layer is positive, such as softplus."""


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
"""Task of each loss that is not about classes."""


class SingleLoss(OneOf):
    """A function of one output of the model and one array of labels."""

    choices: ClassVar[tuple[str, ...]] = SINGLE_LOSSES

    cross_entropy: CrossEntropy | None = None
    """For logits; the default. Suits most classifiers."""
    focal: Focal | None = None
    """For logits. Take it when most rows are easy, or one class dominates."""
    nll: Nll | None = None
    """For log-probabilities. Take it when the model ends in `log_softmax`."""
    bce: Bce | None = None
    """For logits of labels that are not exclusive. Take it when a row may have several."""
    mse: Mse | None = None
    """For numbers. Take it for regression where large errors cost most."""
    l1: L1 | None = None
    """For numbers. Take it when outliers must not dominate; it learns the median."""
    smooth_l1: SmoothL1 | None = None
    """For numbers. Take it for regression with outliers, in place of `l1`, which is unstable near
    convergence."""
    huber: Huber | None = None
    """For numbers. `smooth_l1` times `delta`. Take it for regression with outliers."""
    poisson: Poisson | None = None
    """For counts. Take it for the frequency of events."""
    target: str | None = None
    """Your own loss, `path/file.py:Name` or `package.module:Name`: called with `args`, it returns a
    function of the output and the labels that returns their mean loss. Take it when no other loss
    fits."""
    args: dict[str, JsonValue] = Field(default={})
    """Keyword arguments of `target`. Change them with it."""
    task: Task | None = None
    """Task of your own loss; null is `classes`. Give it with `target` for other labels."""

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
        """Task of this loss, which defines the meaning of its labels."""
        return self.task or TASKS.get(self.choice, "classes")

    @property
    def ignore_index(self) -> int:
        """Class label in the data that does not count."""
        told = self.chosen if isinstance(self.chosen, ClassLoss) else ClassLoss()
        return told.ignore_index


class LossTerm(SingleLoss):
    """One of the losses of a sum."""

    weight: float = Field(default=1.0, gt=0)
    """Factor of its mean. Change it so that no term dominates the others."""
    output: str | None = None
    """Name of its output in `model.outputs`; null for the first. Give it for networks that train
    several outputs."""
    labels: str = LABELS
    """Name of its labels. Give it for data with several label arrays."""


class LossPart(SingleLoss):
    """The loss to minimise."""

    choices: ClassVar[tuple[str, ...]] = (*SINGLE_LOSSES, "sum")

    sum: tuple[LossTerm, ...] | None = Field(default=None, min_length=1)
    """Several losses, each a mean times its `weight`. Take it for multi-task networks. The first
    term is about the first output and the labels that the metrics use."""

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
        """Terms of the sum; one term if there is no sum."""
        if self.sum is not None:
            return self.sum
        names = [self.choice, *(("args", "task") if self.target else ())]
        return (LossTerm.model_construct(**{name: getattr(self, name) for name in names}),)

    @property
    def judged_task(self) -> Task:
        """Task of the model, which selects the metrics that verify its artifacts."""
        return self.terms[0].single_task
