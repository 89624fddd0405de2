"""The parts of a recipe for initial weights and for frozen parameters. Pure."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, JsonValue, field_validator, model_validator

from flambeau.protocol.strict import Matching, nearest_name
from flambeau.protocol.tensor_spec import TensorName
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


VERSION_NAME = (
    r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
    r"@([A-Za-z0-9][A-Za-z0-9._-]{0,127}|[\^~][0-9]{1,9}(\.[0-9]{1,9}){0,2})$"
)
"""`model@version`, `model@alias` or `model@range`."""
VersionName = Annotated[
    str, Matching(VERSION_NAME, "a version such as digits@3, digits@production or digits@^1.2")
]


class ModelPart(FreezePart):
    """The network that is trained."""

    # `from` is a Python keyword, so the field has another name.
    model_config = ConfigDict(serialize_by_alias=True, validate_by_name=True)

    target: str
    """Your `torch.nn.Module`: `path/file.py:Name` (from the working directory) or
    `package.module:Name`. Change it to train another network."""
    args: dict[str, JsonValue] = Field(default={})
    """Keyword arguments of the target. Change them to size the network."""
    outputs: tuple[TensorName, ...] = Field(default=("logits",), min_length=1)
    """Names of the tensors that `forward` returns, in order. Change it when the network returns a
    tuple; for a dictionary or dataclass write its keys or fields. Metrics use the first output:
    [rows, classes], or [rows, T, classes] if a row has T labels; for numeric labels [rows, D] or
    the shape of the labels."""
    embeddings: tuple[TensorName, ...] = ()
    """Outputs that are embedding vectors, [rows, D], which clients compare by direction. Their
    artifacts are verified with `min_cosine`, in training and wherever the version is loaded. Give
    it for retrieval networks, whose single elements have no meaning."""
    init: InitPart = InitPart()
    """Initial weights of layers, by type. Give it when the loss does not start to decrease."""
    from_: VersionName | None = Field(default=None, alias="from")
    """A version in the store that initialises the weights whose names and shapes match: by number
    (`digits@3`), alias (`digits@production`), or semantic version (`digits@^1.2`, `@~1.2`,
    `@1.2.0`: the newest match); null starts from the network's own initial weights. Give it to
    fine-tune on less data than an older model was trained on."""

    @model_validator(mode="after")
    def _embeddings_are_outputs(self) -> "ModelPart":
        for name in self.embeddings:
            if name not in self.outputs:
                raise ValueError(
                    f"model.embeddings names '{name}', and model.outputs has no such"
                    f"{nearest_name(name, self.outputs)}"
                )
        return self

    @field_validator("outputs")
    @classmethod
    def _unique_outputs(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(value)) != len(value):
            raise ValueError("every output needs a unique name")
        return value
