"""The `optim` part of a recipe: the optimizer, its parameter groups, gradient clipping. Pure.

The optimizers are those of `torch.optim`, and their classes here have torch's names; parameters
have torch's meaning.
"""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from training.recipe.parts.one_of import OneOf
from training.recipe.parts.recipe_part import RecipePart

Share = Annotated[float, Field(ge=0, lt=1)]
Betas = tuple[Share, Share]


class Optimizer(RecipePart):
    """Fields common to all optimizers."""

    lr: float = Field(default=1e-3, gt=0)
    """Peak learning rate. Lower it if the loss jumps or is NaN; raise it if training is slow."""


class Decaying(Optimizer):
    """An optimizer with weight decay."""

    weight_decay: float = Field(default=0.0, ge=0)
    """Weight decay; `no_decay` parameters are exempt. Raise it when validation falls behind
    training."""


class SGD(Decaying):
    """Stochastic gradient descent with momentum (Sutskever et al., 2013)."""

    lr: float = Field(default=0.01, gt=0)
    """Peak learning rate. Lower it if the loss jumps or is NaN; raise it if training is slow."""
    momentum: Share = 0.9
    """Share of the previous step that is kept. Lower it when the loss oscillates."""
    dampening: Share = 0.0
    """Share of the gradient kept out of the momentum. Raise it to weigh old gradients more."""
    nesterov: bool = False
    """True for Nesterov momentum. Set it when plain momentum overshoots."""

    @model_validator(mode="after")
    def _nesterov_needs_momentum(self) -> "SGD":
        if self.nesterov and (self.momentum == 0 or self.dampening != 0):
            raise ValueError("nesterov needs momentum above 0 and dampening 0")
        return self


class Adaptive(Decaying):
    """An optimizer with running means of gradients and of their squares."""

    betas: Betas = (0.9, 0.999)
    """Decay rates of the running mean and mean square of gradients. Lower the second when gradient
    magnitudes change quickly."""
    eps: float = Field(default=1e-8, gt=0)
    """Added to the denominator. Raise it when rare large steps destabilise training."""


class Adam(Adaptive):
    """Adam (Kingma and Ba, 2015); its weight decay is added to the gradient."""

    amsgrad: bool = False
    """True if the denominator never decreases (Reddi et al., 2018). Set it if loss rises late."""


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019)."""

    weight_decay: float = Field(default=0.01, ge=0)
    """Weight decay; `no_decay` parameters are exempt. Raise it when validation falls behind
    training."""


class RMSprop(Decaying):
    """RMSprop (Tieleman and Hinton, 2012)."""

    alpha: Share = 0.99
    """Decay rate of the mean square of gradients. Lower it when their size changes quickly."""
    eps: float = Field(default=1e-8, gt=0)
    """Added to the denominator. Raise it when rare large steps destabilise training."""
    momentum: Share = 0.0
    """Share of the previous step that is kept. Raise it when training is slow."""
    centered: bool = False
    """True to divide by the standard deviation of gradients. Set it when plain steps oscillate."""


class Adagrad(Decaying):
    """Adagrad (Duchi et al., 2011), for inputs with mostly rare features."""

    lr: float = Field(default=0.01, gt=0)
    """Peak learning rate; steps shrink by themselves. Raise it when learning stops early."""
    lr_decay: float = Field(default=0.0, ge=0)
    """Decay of the rate beside the schedule. Leave it at 0 unless you reproduce another run."""
    initial_accumulator_value: float = Field(default=0.0, ge=0)
    """Initial sum of squares. Raise it when the first steps are too large."""
    eps: float = Field(default=1e-10, gt=0)
    """Added to the denominator. Raise it when rare large steps destabilise training."""


class Adadelta(Decaying):
    """Adadelta (Zeiler, 2012), which adapts its own step size."""

    lr: float = Field(default=1.0, gt=0)
    """Factor of the adapted step. Lower it when the loss jumps."""
    rho: Share = 0.9
    """Decay rate of the running squares. Raise it when steps oscillate."""
    eps: float = Field(default=1e-6, gt=0)
    """Sets the size of the first steps. Raise it when the loss does not start to decrease."""


class NAdam(Adaptive):
    """Adam with Nesterov momentum (Dozat, 2016)."""

    lr: float = Field(default=2e-3, gt=0)
    """Peak learning rate. Lower it if the loss jumps or is NaN; raise it if training is slow."""
    momentum_decay: float = Field(default=4e-3, ge=0)
    """Rate at which the momentum reaches its full value. Raise it if first steps overshoot."""
    decoupled_weight_decay: bool = False
    """True for decoupled weight decay, as in AdamW. Set it when you give `weight_decay`."""


class RAdam(Adaptive):
    """Adam with rectified first steps (Liu et al., 2020), which makes a warm-up unnecessary."""

    decoupled_weight_decay: bool = False
    """True for decoupled weight decay, as in AdamW. Set it when you give `weight_decay`."""


class Adafactor(Decaying):
    """Adafactor (Shazeer and Stern, 2018): Adam with low memory, for large matrices."""

    lr: float = Field(default=0.01, gt=0)
    """Peak learning rate, relative to the size of the weights. Lower it when the loss jumps."""
    beta2_decay: float = Field(default=-0.8, le=0)
    """Exponent of the decay rate of squares. Leave it unless you reproduce another run."""
    d: float = Field(default=1.0, ge=1)
    """Largest root mean square of an update. Raise it when training is slow."""


class Muon(Decaying):
    """Muon (Jordan et al., 2024): orthogonalised momentum steps. It accepts only matrices."""

    weight_decay: float = Field(default=0.1, ge=0)
    """Weight decay. Raise it when validation falls behind training."""
    momentum: Share = 0.95
    """Share of the previous step that is kept. Lower it when the loss oscillates."""
    nesterov: bool = True
    """True for Nesterov momentum. Unset it to reproduce other runs."""
    ns_steps: int = Field(default=5, ge=1, lt=100)
    """Newton-Schulz iterations. Lower it to save time."""


class Adamax(Decaying):
    """Adam with the infinity norm (Kingma and Ba, 2015), for embeddings and rare features."""

    lr: float = Field(default=2e-3, gt=0)
    """Peak learning rate. Lower it if the loss jumps or is NaN; raise it if training is slow."""
    betas: Betas = (0.9, 0.999)
    """Decay rates of the mean and of the largest gradient. Lower the second when gradient
    magnitudes change quickly."""
    eps: float = Field(default=1e-8, gt=0)
    """Added to the denominator. Raise it when rare large steps destabilise training."""


class ASGD(Decaying):
    """Averaged SGD: plain steps of decreasing size (Polyak and Juditsky, 1992).

    The average that torch keeps beside the weights is not used; use `train.ema` instead.
    """

    lr: float = Field(default=0.01, gt=0)
    """Peak learning rate. Lower it if the loss jumps or is NaN; raise it if training is slow."""
    lambd: float = Field(default=1e-4, ge=0)
    """Decay of weights and step sizes. Raise it when the loss oscillates."""
    alpha: float = Field(default=0.75, ge=0, le=1)
    """Exponent of the step size decay. Leave it unless you reproduce another run."""
    t0: float = Field(default=1e6, ge=0)
    """Step at which averaging begins. Leave it unless you reproduce another run."""


class Rprop(Optimizer):
    """Rprop (Riedmiller and Braun, 1993): uses only gradient signs; it has no weight decay.

    It needs the same rows in every step.
    """

    lr: float = Field(default=0.01, gt=0)
    """First step size; later ones follow from the signs, and the schedule has no effect. Lower it
    when the loss jumps."""
    etas: tuple[Annotated[float, Field(gt=0, lt=1)], Annotated[float, Field(gt=1)]] = (0.5, 1.2)
    """Step factors for a changed and for an unchanged sign. Leave them unless you reproduce another
    run."""
    step_sizes: tuple[Annotated[float, Field(gt=0)], Annotated[float, Field(gt=0)]] = (1e-6, 50.0)
    """Smallest and largest step size. Lower the second when the loss jumps."""


class SparseAdam(Optimizer):
    """Adam for sparse gradients: only rows used in a step, and their moments, are updated.

    It accepts embeddings made with `sparse=True`; `rest` optimizes all other parameters.
    """

    betas: Betas = (0.9, 0.999)
    """Decay rates of the running mean and mean square of gradients. Lower the second when gradient
    magnitudes change quickly."""
    eps: float = Field(default=1e-8, gt=0)
    """Added to the denominator. Raise it when rare large steps destabilise training."""


class LBFGS(Optimizer):
    """L-BFGS (Liu and Nocedal, 1989): for small smooth problems whose rows fit in one batch."""

    lr: float = Field(default=1.0, gt=0)
    """Initial step length. Lower it when the loss jumps and there is no `line_search`."""
    max_iter: int = Field(default=20, ge=1)
    """Iterations per step. Raise it when an epoch is one step and the loss decreases slowly."""
    history_size: int = Field(default=100, ge=1)
    """Number of past updates kept. Lower it when memory runs out."""
    tolerance_grad: float = Field(default=1e-7, ge=0)
    """Largest gradient element at which a step ends. Raise it to end earlier."""
    tolerance_change: float = Field(default=1e-9, ge=0)
    """Smallest change at which a step continues. Raise it to end earlier."""
    line_search: Literal["strong_wolfe"] | None = "strong_wolfe"
    """Line search for the step length; null uses `lr`. Give null if the loss is noisy."""


class ClipPart(OneOf):
    """Gradient clipping per step."""

    choices = ("norm", "value")

    norm: float | None = Field(default=None, gt=0)
    """Largest norm of the whole gradient. Lower it when single batches make the loss jump."""
    value: float | None = Field(default=None, gt=0)
    """Largest absolute value of each element. Take it if a few weights get most of the gradient."""


def _spelled_out(value: object) -> object:
    """Expands `clip: 1.0` to `clip: {norm: 1.0}`."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return {"norm": value} if number else value


Clip = Annotated[
    ClipPart,
    BeforeValidator(_spelled_out, json_schema_input_type=ClipPart | Annotated[float, Field(gt=0)]),
]


class GroupPart(RecipePart):
    """Parameters with their own learning rate or weight decay."""

    match: str
    """Pattern of parameter names, such as `head.*`. The first matching group applies."""
    lr_scale: float = Field(default=1.0, ge=0)
    """Factor of the learning rate. Raise it for a new head; lower it for pretrained layers."""
    weight_decay: float | None = Field(default=None, ge=0)
    """Weight decay of the group; null for the optimizer's. `no_decay` applies here too."""


class OptimPart(OneOf):
    """The optimizer and its settings."""

    choices = (
        *("adamw", "sgd", "adam", "rmsprop", "adagrad", "adadelta", "nadam", "radam"),
        *("adafactor", "muon", "lbfgs", "adamax", "asgd", "rprop", "sparse_adam"),
    )

    adamw: AdamW | None = None
    """Adam with decoupled weight decay; the default. Suits most networks."""
    sgd: SGD | None = None
    """SGD with momentum. Take it for CNNs that train long, or if memory is scarce."""
    adam: Adam | None = None
    """Adam. Take it to reproduce older work; `adamw` is better with weight decay."""
    rmsprop: RMSprop | None = None
    """RMSprop. Take it for recurrent networks, or to reproduce older work."""
    adagrad: Adagrad | None = None
    """Adagrad. Take it for rare features."""
    adadelta: Adadelta | None = None
    """Adadelta. Take it when no learning rate is known."""
    nadam: NAdam | None = None
    """Adam with Nesterov momentum. Take it when Adam learns slowly at first."""
    radam: RAdam | None = None
    """Adam with rectified first steps. Take it when the warm-up is hard to choose."""
    adafactor: Adafactor | None = None
    """Adafactor. Take it when the optimizer state does not fit in memory."""
    muon: Muon | None = None
    """Muon, for matrices. Take it for networks with mostly matrix weights, with `rest`."""
    lbfgs: LBFGS | None = None
    """L-BFGS. Take it for small networks, with `data.batch_size` as large as the data."""
    adamax: Adamax | None = None
    """Adamax. Take it for embeddings, or to reproduce older work."""
    asgd: ASGD | None = None
    """Averaged SGD. Take it to reproduce older work."""
    rprop: Rprop | None = None
    """Rprop. Take it for small networks, with `data.batch_size` as large as the data."""
    sparse_adam: SparseAdam | None = None
    """Adam for sparse gradients. Take it for large embeddings made with `sparse=True`, of which a
    step uses few rows, with `rest`."""
    rest: AdamW | None = None
    """AdamW for the parameters that `muon` (all but matrices) or `sparse_adam` (all but sparse
    embeddings) does not accept; null refuses networks that have some. Give it with one of these."""
    no_decay: tuple[str, ...] = ("bias", "norm")
    """Parameters without weight decay: `bias` (everything with one dimension), `norm` (those of
    normalisation layers), and name patterns. Add embeddings if theirs should not shrink."""
    groups: tuple[GroupPart, ...] = ()
    """Parameters with their own learning rate or weight decay. Give it to train a new head on
    pretrained layers."""
    layer_decay: float | None = Field(default=None, gt=0, le=1)
    """Factor of the learning rate from each layer to the one before it, in the order of their
    creation; the last has the full rate. Give 0.7 to 0.95 to fine-tune."""
    clip: Clip | None = ClipPart(norm=1.0)
    """Gradient clipping; a number is the largest `norm`, null disables it. Lower it when single
    batches make the loss jump."""
    accumulate: int = Field(default=1, ge=1, le=65_536)
    """Batches whose gradients accumulate to one step, equivalent to one large batch. Raise it when
    a larger batch does not fit into memory; batch norms still use single batches."""

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
        """Weight decay of the chosen optimizer; 0 if it has none."""
        return self.chosen.weight_decay if isinstance(self.chosen, Decaying) else 0.0

    def slower(self, lr_share: float, one_group: bool = False) -> "OptimPart":
        """Returns the same settings with a share of the learning rate.

        Args:
            lr_share: factor of the peak.
            one_group: True if parameter names no longer match, because the network was rewritten.
        """
        chosen = self.chosen.model_copy(update={"lr": self.chosen.lr * lr_share})
        changes: dict[str, Any] = {self.choice: chosen}
        if self.rest is not None:
            changes["rest"] = self.rest.model_copy(update={"lr": self.rest.lr * lr_share})
        if one_group:
            changes |= {"groups": (), "layer_decay": None, "no_decay": ("bias", "norm")}
        return self.model_copy(update=changes)
