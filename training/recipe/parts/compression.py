"""The parts of a recipe that shrink a trained network: pruning and quantization-aware training.

Pure rules. Both are separate phases after the ordinary training: pruning changes the checkpoint;
quantization-aware training leaves it unchanged and yields a second weights file. Pruning may also
happen within the training.
"""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, model_validator

from flambeau.protocol.strict import Matching
from training.recipe.parts.recipe_part import RecipePart

MOMENT = r"^([0-9]+(\.[0-9]+)?%|[0-9]+ epochs?|[0-9]+ steps?)$"
"""`60%`, `12 epochs` or `500 steps`."""


class PrunePart(RecipePart):
    """Removes the smallest weights of the network, and trains the remaining ones."""

    amount: float = Field(gt=0, lt=1)
    """Share of each layer to remove: of its weights, or of its channels if `structured`. Raise it
    until accuracy falls."""
    structured: bool = False
    """True to remove whole channels, so that layers become smaller: every artifact is then smaller
    and faster. False sets single weights to 0: the file compresses better, and nothing runs
    faster."""
    layers: tuple[str, ...] = Field(default=("*",), min_length=1)
    """Patterns of layer names, such as `features.*`, or of layer types, such as `Conv2d`. Narrow it
    to spare layers that accuracy depends on."""
    at: Annotated[str, Matching(MOMENT, "60%, 12 epochs or 500 steps")] | None = None
    """Moment of the training at which single weights are removed: after `60%` of its steps, `12
    epochs` or `500 steps`; the rest of the training recovers accuracy. null prunes the trained
    network. Give it to train once, at full learning rates, without fine-tuning afterwards."""
    fine_tune_epochs: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """Passes over the training rows after pruning, to recover accuracy: default 5, none with `at`.
    Raise it while the validation metric still improves."""
    lr_share: Annotated[float, Field(gt=0, le=1)] | None = None
    """Peak learning rate of these epochs, as a share of the training's: default 0.1. Raise it when
    much was pruned."""

    @model_validator(mode="before")
    @classmethod
    def _tuned_behind_the_training(cls, data: Any) -> Any:
        if not isinstance(data, Mapping) or data.get("at") is not None:
            return data
        told = {key: value for key, value in data.items() if value is not None}
        return {"fine_tune_epochs": 5, "lr_share": 0.1, **told}

    @model_validator(mode="after")
    def _within_the_training(self) -> "PrunePart":
        if self.at is None:
            return self
        if self.structured:
            raise ValueError(
                "prune.at takes single weights; channels leave a network that is trained, so drop "
                "at, or take structured: false"
            )
        if self.fine_tune_epochs is not None or self.lr_share is not None:
            raise ValueError(
                f"prune.at is {self.at}, and what is left of the training makes up for it; drop "
                "fine_tune_epochs and lr_share, or at"
            )
        if self.at.endswith("%") and not 0 < float(self.at[:-1]) < 100:
            raise ValueError(f"prune.at is {self.at}; give more than 0% and less than 100%")
        return self

    @property
    def fine_tuning(self) -> tuple[int, float]:
        """Epochs and learning rate share of the fine-tuning after pruning; not with `at`."""
        assert self.fine_tune_epochs is not None, "without `at` there are some"
        assert self.lr_share is not None, "without `at` there is one"
        return self.fine_tune_epochs, self.lr_share

    def first_step(self, epochs: int, epoch_steps: int) -> int | None:
        """Returns the first step of the training, counted from 0, with pruned weights.

        Args:
            epochs: number of epochs of the training.
            epoch_steps: steps per epoch.

        Returns:
            None if pruning follows the training.
        """
        if self.at is None:
            return None
        if self.at.endswith("%"):
            return round(epochs * epoch_steps * float(self.at[:-1]) / 100)
        number, unit = self.at.split()
        return int(number) * (epoch_steps if unit.startswith("epoch") else 1)


class QatPart(RecipePart):
    """Fine-tunes with weights and activations rounded to 8 bits, for entries of `method: qat`."""

    epochs: int = Field(default=3, ge=1, le=100_000)
    """Passes over the training rows. Raise it while the validation metric still improves."""
    lr_share: float = Field(default=0.01, gt=0, le=1)
    """Peak learning rate of these epochs, as a share of the training's. Raise it when quantization
    costs much accuracy; lower it when agreement with the checkpoint matters more."""
