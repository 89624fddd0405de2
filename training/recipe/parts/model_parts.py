"""The parts of a recipe that say how a network begins, and which of it learns when. Pure."""

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
    """The first weights of layers, by type; their biases become 0. null leaves them to the layer.

    `normal` and `trunc_normal` have a deviation of 0.02, the others are those of `torch.nn.init`.
    """

    conv: Initialisation | None = None
    """Convolutions, transposed ones too. Take `kaiming_normal` in front of ReLU."""
    linear: Initialisation | None = None
    """Linear layers. Take `xavier_uniform` in front of tanh or softmax, `trunc_normal` in
    Transformers."""
    embedding: Initialisation | None = None
    """Embeddings. Take `normal` where the weights are those of the last layer too."""
    recurrent: Initialisation | None = None
    """LSTM, GRU and RNN layers. Take `orthogonal` for long sequences."""


class UnfreezePart(RecipePart):
    """When what is frozen begins to learn."""

    epoch: int = Field(ge=2)
    """The first epoch, counted from 1, in which it learns. Raise it while the new layers are still
    far off."""


class FreezePart(RecipePart):
    """Fields of `model` that hold parameters as they are."""

    freeze: tuple[str, ...] = ()
    """Patterns of names of parameters that do not learn, such as `stem.*`; batch norms among them
    keep their statistics. Give it when the first layers are trained already."""
    unfreeze_at: UnfreezePart | None = None
    """When they begin to learn after all; null for never. Give it to fine-tune the whole network
    once its new layers are good."""

    @model_validator(mode="after")
    def _frozen_first(self) -> "FreezePart":
        if self.unfreeze_at is not None and not self.freeze:
            raise ValueError("unfreeze_at is given, and freeze names nothing; give both")
        return self
