"""The parts of a recipe that make a trained network smaller: pruning, and training for 8 bits.

Pure rules. Both are phases of their own behind the ordinary training: pruning changes the
checkpoint, training for 8 bits leaves it as it is and yields a second file of weights.
"""

from pydantic import Field

from training.recipe_parts.recipe_part import RecipePart


class PrunePart(RecipePart):
    """Takes away the smallest weights of the trained network, and trains what is left."""

    amount: float = Field(gt=0, lt=1)
    """Share of each layer to take away: of its weights, or of its channels where `structured`.
    Raise it until accuracy falls."""
    structured: bool = False
    """Whether whole channels go, and the layers really become smaller: that makes every artifact
    smaller and faster. Without it single weights become 0: the file packs better, and nothing
    runs faster."""
    layers: tuple[str, ...] = Field(default=("*",), min_length=1)
    """Patterns of names of layers, such as `features.*`, or of their types, such as `Conv2d`.
    Narrow it to spare layers that accuracy depends on."""
    fine_tune_epochs: int = Field(default=5, ge=1, le=100_000)
    """Passes over the training rows that make up for what was taken. Raise it while the validation
    metric still climbs."""
    lr_share: float = Field(default=0.1, gt=0, le=1)
    """Peak learning rate of these epochs, as a share of the training's. Raise it when much was
    taken."""


class QatPart(RecipePart):
    """Fine-tunes with weights and activations rounded to 8 bits, for entries of `method: qat`."""

    epochs: int = Field(default=3, ge=1, le=100_000)
    """Passes over the training rows. Raise it while the validation metric still climbs."""
    lr_share: float = Field(default=0.01, gt=0, le=1)
    """Peak learning rate of these epochs, as a share of the training's. Raise it when quantizing
    costs much accuracy; lower it when agreement with the checkpoint matters more."""
