"""The part of a recipe that says how weights move: the optimizer, its groups, clipping. Pure.

The optimizers are those of `torch.optim`, and their classes here have torch's names: a parameter
means what it means there.
"""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from training.recipe.parts.one_of import OneOf
from training.recipe.parts.recipe_part import RecipePart

Share = Annotated[float, Field(ge=0, lt=1)]
Betas = tuple[Share, Share]


class Optimizer(RecipePart):
    """What every optimizer is told."""

    lr: float = Field(default=1e-3, gt=0)
    """Peak learning rate. Lower it when the loss jumps or becomes NaN; raise it when it crawls."""


class Decaying(Optimizer):
    """An optimizer with weight decay."""

    weight_decay: float = Field(default=0.0, ge=0)
    """Pull of the weights towards 0; what `no_decay` names is spared. Raise it when validation
    falls behind training."""


class SGD(Decaying):
    """Stochastic gradient descent with momentum (Sutskever et al., 2013)."""

    lr: float = Field(default=0.01, gt=0)
    """Peak learning rate. Lower it when the loss jumps or becomes NaN; raise it when it crawls."""
    momentum: Share = 0.9
    """Share of the last step that goes on. Lower it when the loss swings."""
    dampening: Share = 0.0
    """Share of the gradient held back from the momentum. Raise it to weigh old gradients more."""
    nesterov: bool = False
    """Whether the gradient is taken ahead of the step. Set it when plain momentum overshoots."""

    @model_validator(mode="after")
    def _nesterov_needs_momentum(self) -> "SGD":
        if self.nesterov and (self.momentum == 0 or self.dampening != 0):
            raise ValueError("nesterov needs momentum above 0 and dampening 0")
        return self


class Adam(Decaying):
    """Adam (Kingma and Ba, 2015); its weight decay is a part of the gradient."""

    betas: Betas = (0.9, 0.999)
    """Memory of the mean and of the square of gradients. Lower the second when gradients change
    their size quickly."""
    eps: float = Field(default=1e-8, gt=0)
    """Added to the divisor. Raise it when rare large steps spoil the weights."""
    amsgrad: bool = False
    """Whether the divisor never shrinks (Reddi et al., 2018). Set it when the loss rises late."""


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019)."""

    weight_decay: float = Field(default=0.01, ge=0)
    """Pull of the weights towards 0; what `no_decay` names is spared. Raise it when validation
    falls behind training."""


class RMSprop(Decaying):
    """RMSprop (Tieleman and Hinton, 2012)."""

    alpha: Share = 0.99
    """Memory of the square of gradients. Lower it when gradients change their size quickly."""
    eps: float = Field(default=1e-8, gt=0)
    """Added to the divisor. Raise it when rare large steps spoil the weights."""
    momentum: Share = 0.0
    """Share of the last step that goes on. Raise it when the loss crawls."""
    centered: bool = False
    """Whether to divide by the deviation and not by the size. Set it when plain steps swing."""


class Adagrad(Decaying):
    """Adagrad (Duchi et al., 2011), for inputs most of whose features are rare."""

    lr: float = Field(default=0.01, gt=0)
    """Peak learning rate; steps shrink by themselves. Raise it when learning stops early."""
    lr_decay: float = Field(default=0.0, ge=0)
    """How fast the rate falls beside the schedule. Leave it at 0 unless you copy another run."""
    initial_accumulator_value: float = Field(default=0.0, ge=0)
    """The sum of squares at the start. Raise it when the first steps are too large."""
    eps: float = Field(default=1e-10, gt=0)
    """Added to the divisor. Raise it when rare large steps spoil the weights."""


class Adadelta(Decaying):
    """Adadelta (Zeiler, 2012), which finds its own step size."""

    lr: float = Field(default=1.0, gt=0)
    """Factor on the step it finds. Lower it when the loss jumps."""
    rho: Share = 0.9
    """Memory of squares. Raise it when steps swing."""
    eps: float = Field(default=1e-6, gt=0)
    """Decides the first steps. Raise it when learning does not begin."""


class NAdam(Decaying):
    """Adam with Nesterov momentum (Dozat, 2016)."""

    lr: float = Field(default=2e-3, gt=0)
    """Peak learning rate. Lower it when the loss jumps or becomes NaN; raise it when it crawls."""
    betas: Betas = (0.9, 0.999)
    """Memory of the mean and of the square of gradients. Lower the second when gradients change
    their size quickly."""
    eps: float = Field(default=1e-8, gt=0)
    """Added to the divisor. Raise it when rare large steps spoil the weights."""
    momentum_decay: float = Field(default=4e-3, ge=0)
    """How fast the momentum reaches its full size. Raise it when the first steps overshoot."""
    decoupled_weight_decay: bool = False
    """Whether weight decay is AdamW's. Set it when you give `weight_decay`."""


class RAdam(Decaying):
    """Adam whose first steps are rectified (Liu et al., 2020), so that it needs no warm-up."""

    betas: Betas = (0.9, 0.999)
    """Memory of the mean and of the square of gradients. Lower the second when gradients change
    their size quickly."""
    eps: float = Field(default=1e-8, gt=0)
    """Added to the divisor. Raise it when rare large steps spoil the weights."""
    decoupled_weight_decay: bool = False
    """Whether weight decay is AdamW's. Set it when you give `weight_decay`."""


class Adafactor(Decaying):
    """Adafactor (Shazeer and Stern, 2018): Adam with little memory, for large matrices."""

    lr: float = Field(default=0.01, gt=0)
    """Peak learning rate, relative to the size of the weights. Lower it when the loss jumps."""
    beta2_decay: float = Field(default=-0.8, le=0)
    """How the memory of squares grows. Leave it unless you copy another run."""
    d: float = Field(default=1.0, ge=1)
    """Largest size of an update. Raise it when learning crawls."""


class Muon(Decaying):
    """Muon (Jordan et al., 2024): steps whose matrices are orthogonal. It takes matrices only."""

    weight_decay: float = Field(default=0.1, ge=0)
    """Pull of the weights towards 0. Raise it when validation falls behind training."""
    momentum: Share = 0.95
    """Share of the last step that goes on. Lower it when the loss swings."""
    nesterov: bool = True
    """Whether the gradient is taken ahead of the step. Unset it to copy other runs."""
    ns_steps: int = Field(default=5, ge=1, lt=100)
    """Newton-Schulz iterations. Lower it to save time."""


class Adamax(Decaying):
    """Adam by the largest gradient (Kingma and Ba, 2015), for embeddings and rare features."""

    lr: float = Field(default=2e-3, gt=0)
    """Peak learning rate. Lower it when the loss jumps or becomes NaN; raise it when it crawls."""
    betas: Betas = (0.9, 0.999)
    """Memory of the mean and of the largest gradient. Lower the second when gradients change their
    size quickly."""
    eps: float = Field(default=1e-8, gt=0)
    """Added to the divisor. Raise it when rare large steps spoil the weights."""


class ASGD(Decaying):
    """Plain steps that shrink by themselves (Polyak and Juditsky, 1992).

    The average that torch keeps beside the weights is not used; `train.ema` has one that is.
    """

    lr: float = Field(default=0.01, gt=0)
    """Peak learning rate. Lower it when the loss jumps or becomes NaN; raise it when it crawls."""
    lambd: float = Field(default=1e-4, ge=0)
    """How fast weights and steps shrink. Raise it when the loss swings."""
    alpha: float = Field(default=0.75, ge=0, le=1)
    """Power by which steps shrink. Leave it unless you copy another run."""
    t0: float = Field(default=1e6, ge=0)
    """Step at which averaging begins. Leave it unless you copy another run."""


class Rprop(Optimizer):
    """Rprop (Riedmiller and Braun, 1993): only the signs of gradients count, and it has no decay.

    It wants the same rows in every step.
    """

    lr: float = Field(default=0.01, gt=0)
    """First size of a step; later ones follow from the signs, and the schedule changes nothing.
    Lower it when the loss jumps."""
    etas: tuple[Annotated[float, Field(gt=0, lt=1)], Annotated[float, Field(gt=1)]] = (0.5, 1.2)
    """Factors on a step where the sign has changed, and where it has not. Leave them unless you
    copy another run."""
    step_sizes: tuple[Annotated[float, Field(gt=0)], Annotated[float, Field(gt=0)]] = (1e-6, 50.0)
    """The smallest and the largest step. Lower the second when the loss jumps."""


class SparseAdam(Optimizer):
    """Adam for sparse gradients: only rows that a step has used are moved, and remembered anew.

    It takes embeddings made with `sparse=True`; `rest` moves all else.
    """

    betas: Betas = (0.9, 0.999)
    """Memory of the mean and of the square of gradients. Lower the second when gradients change
    their size quickly."""
    eps: float = Field(default=1e-8, gt=0)
    """Added to the divisor. Raise it when rare large steps spoil the weights."""


class LBFGS(Optimizer):
    """L-BFGS (Liu and Nocedal, 1989): for small smooth problems whose rows fit in one batch."""

    lr: float = Field(default=1.0, gt=0)
    """First length of a step. Lower it when the loss jumps and there is no `line_search`."""
    max_iter: int = Field(default=20, ge=1)
    """Iterations of one step. Raise it when an epoch is one step and learns little."""
    history_size: int = Field(default=100, ge=1)
    """Steps it remembers. Lower it when memory runs out."""
    tolerance_grad: float = Field(default=1e-7, ge=0)
    """Gradient below which a step ends. Raise it to end earlier."""
    tolerance_change: float = Field(default=1e-9, ge=0)
    """Change below which a step ends. Raise it to end earlier."""
    line_search: Literal["strong_wolfe"] | None = "strong_wolfe"
    """How the length of a step is found; null takes `lr`. Null where the loss is noisy."""


class ClipPart(OneOf):
    """The limit on the gradient of one step."""

    choices = ("norm", "value")

    norm: float | None = Field(default=None, gt=0)
    """Largest norm of the whole gradient. Lower it when single batches throw the loss off."""
    value: float | None = Field(default=None, gt=0)
    """Largest size of each of its elements. Take it where a few weights get all the gradient."""


def _spelled_out(value: object) -> object:
    """`clip: 1.0` is short for `clip: {norm: 1.0}`."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return {"norm": value} if number else value


Clip = Annotated[
    ClipPart,
    BeforeValidator(_spelled_out, json_schema_input_type=ClipPart | Annotated[float, Field(gt=0)]),
]


class GroupPart(RecipePart):
    """Parameters that move otherwise than the rest."""

    match: str
    """Pattern of names of parameters, such as `head.*`. The first group that fits counts."""
    lr_scale: float = Field(default=1.0, ge=0)
    """Factor on the learning rate. Raise it for a new head on trained layers; lower it for them."""
    weight_decay: float | None = Field(default=None, ge=0)
    """Their weight decay; null for the optimizer's. What `no_decay` names is spared here too."""


class OptimPart(OneOf):
    """How the weights move."""

    choices = (
        *("adamw", "sgd", "adam", "rmsprop", "adagrad", "adadelta", "nadam", "radam"),
        *("adafactor", "muon", "lbfgs", "adamax", "asgd", "rprop", "sparse_adam"),
    )

    adamw: AdamW | None = None
    """Adam with decoupled weight decay: what is taken if nothing is named. Suits most networks."""
    sgd: SGD | None = None
    """Momentum. Take it for CNNs that train long, or where memory is short."""
    adam: Adam | None = None
    """Adam. Take it to repeat older work; `adamw` is better with weight decay."""
    rmsprop: RMSprop | None = None
    """RMSprop. Take it for recurrent networks, or to repeat older work."""
    adagrad: Adagrad | None = None
    """Adagrad. Take it for features that are rare."""
    adadelta: Adadelta | None = None
    """Adadelta. Take it when no learning rate is known."""
    nadam: NAdam | None = None
    """Adam with Nesterov momentum. Take it when Adam learns slowly at first."""
    radam: RAdam | None = None
    """Adam with rectified first steps. Take it when the warm-up is hard to choose."""
    adafactor: Adafactor | None = None
    """Adafactor. Take it when the optimizer's memory does not fit."""
    muon: Muon | None = None
    """Muon, for matrices. Take it for networks that are mostly matrices, with `rest`."""
    lbfgs: LBFGS | None = None
    """L-BFGS. Take it for small networks, with `data.batch_size` as large as the data."""
    adamax: Adamax | None = None
    """Adamax. Take it for embeddings, or to repeat older work."""
    asgd: ASGD | None = None
    """Steps that shrink by themselves. Take it to repeat older work."""
    rprop: Rprop | None = None
    """Rprop. Take it for small networks, with `data.batch_size` as large as the data."""
    sparse_adam: SparseAdam | None = None
    """Adam for sparse gradients. Take it for large embeddings made with `sparse=True`, of which a
    step uses few rows, with `rest`."""
    rest: AdamW | None = None
    """AdamW for the parameters that `muon` (all but matrices) or `sparse_adam` (all but sparse
    embeddings) does not take; null refuses networks that have some. Give it with one of these."""
    no_decay: tuple[str, ...] = ("bias", "norm")
    """What weight decay spares: `bias` (whatever has one dimension), `norm` (parameters of norms),
    and patterns of names of parameters. Add embeddings when theirs should not shrink."""
    groups: tuple[GroupPart, ...] = ()
    """Parameters with a learning rate or a weight decay of their own. Give it to train a new head
    on trained layers."""
    layer_decay: float | None = Field(default=None, gt=0, le=1)
    """Factor on the learning rate from each layer to the one before it, in the order in which the
    network makes them; the last has the full rate. Give 0.7 to 0.95 to fine-tune."""
    clip: Clip | None = ClipPart(norm=1.0)
    """Limit on the gradient; a number is its largest `norm`, null is no limit. Lower it when single
    batches throw the loss off."""
    accumulate: int = Field(default=1, ge=1, le=65_536)
    """Batches whose gradients make one step, as one batch of all their rows would. Raise it when a
    larger batch does not fit into memory; norms still see single batches."""

    @model_validator(mode="before")
    @classmethod
    def _no_clipping_in_a_line_search(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("lbfgs") is not None:
            return {"clip": None, **data}
        return data

    @model_validator(mode="after")
    def _lbfgs_alone(self) -> "OptimPart":
        if self.lbfgs is not None:
            wrong = {"groups": self.groups, "layer_decay": self.layer_decay, "clip": self.clip}
            for name, value in wrong.items():
                if value not in (None, ()):
                    raise ValueError(f"lbfgs takes all parameters alike; drop {name}")
            if self.accumulate > 1:
                raise ValueError(
                    "lbfgs looks at the same rows several times in a step; drop accumulate and "
                    "raise data.batch_size"
                )
        return self

    @model_validator(mode="after")
    def _rest_of_some(self) -> "OptimPart":
        if self.rest is not None and self.muon is None and self.sparse_adam is None:
            raise ValueError(
                f"{self.choice} takes all parameters, so there is no rest; drop rest, or take muon "
                "or sparse_adam"
            )
        return self

    @model_validator(mode="after")
    def _decay_that_there_is(self) -> "OptimPart":
        decaying = any(group.weight_decay for group in self.groups)
        if decaying and self.rest is None and not isinstance(self.chosen, Decaying):
            raise ValueError(f"{self.choice} has no weight decay; drop that of groups")
        return self

    @property
    def weight_decay(self) -> float:
        """Of the chosen one; 0 of one that has none."""
        return self.chosen.weight_decay if isinstance(self.chosen, Decaying) else 0.0

    def slower(self, lr_share: float, one_group: bool = False) -> "OptimPart":
        """The same with a share of the learning rate.

        Args:
            lr_share: factor on the peak.
            one_group: whether names no longer count, because the network was rewritten.
        """
        chosen = self.chosen.model_copy(update={"lr": self.chosen.lr * lr_share})
        changes: dict[str, Any] = {self.choice: chosen}
        if self.rest is not None:
            changes["rest"] = self.rest.model_copy(update={"lr": self.rest.lr * lr_share})
        if one_group:
            changes |= {"groups": (), "layer_decay": None, "no_decay": ("bias", "norm")}
        return self.model_copy(update=changes)
