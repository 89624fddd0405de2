"""The parts of a recipe for initial weights and for frozen parameters. Pure."""

from typing import Literal

from pydantic import Field, model_validator

from training.recipe.parts.recipe_part import RecipePart

Initialisation = Literal[
    "kaiming_normal",
    "kaiming_uniform",
    "xavier_normal",
    "xavier_uniform",
    "orthogonal",
    "normal",
    "trunc_normal",
    "zeros",
]


class InitPart(RecipePart):
    """Initial weights of layers, by type; their biases become 0. null keeps the layer's own.

    `normal` and `trunc_normal` have a deviation of 0.02, the others are those of `torch.nn.init`.
    """

    conv: Initialisation | None = None
    """Convolutions, including transposed ones. Take `kaiming_normal` before ReLU."""
    linear: Initialisation | None = None
    """Linear layers. Take `xavier_uniform` before tanh or softmax, `trunc_normal` in
    Transformers."""
    embedding: Initialisation | None = None
    """Embeddings. Take `normal` if the last layer shares their weights."""
    recurrent: Initialisation | None = None
    """LSTM, GRU and RNN layers. Take `orthogonal` for long sequences."""


class UnfreezePart(RecipePart):
    """The moment at which frozen parameters begin to learn."""

    epoch: int = Field(ge=2)
    """First epoch, counted from 1, in which they learn. Raise it while the new layers are still
    inaccurate."""


class FreezePart(RecipePart):
    """Fields of `model` that freeze parameters."""

    freeze: tuple[str, ...] = ()
    """Patterns of names of parameters that are frozen, such as `stem.*`; batch norms among them
    keep their statistics. Give it when the first layers are pretrained."""
    unfreeze_at: UnfreezePart | None = None
    """Epoch at which they are unfrozen; null for never. Give it to fine-tune the whole network once
    its new layers are trained."""

    @model_validator(mode="after")
    def _frozen_first(self) -> "FreezePart":
        if self.unfreeze_at is not None and not self.freeze:
            raise ValueError("unfreeze_at is given, and freeze names nothing; give both")
        return self
