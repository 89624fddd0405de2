"""The parts of a recipe for diagnosing training. Pure; they change no weights."""

from pydantic import Field

from training.recipe.parts.recipe_part import RecipePart


class DebugPart(RecipePart):
    """Diagnostics of every step. They slow down training."""

    anomaly: bool = False
    """True if torch reports the forward operation behind a NaN gradient. Set it when a run diverges
    for no visible reason; steps take several times as long."""
    gradients: tuple[str, ...] = ()
    """Patterns of parameter names, such as `head.*`, whose gradient norms are tracked, with
    histograms in TensorBoard. Give it when a layer does not learn."""
    activations: tuple[str, ...] = ()
    """Patterns of layer names, such as `blocks.*`, whose output magnitudes are tracked, with
    histograms in TensorBoard. Give it when activations vanish or explode."""
    backward: tuple[str, ...] = ()
    """Patterns of layer names whose output gradients are tracked in the same way in the backward
    pass. Give it to see where gradients vanish or explode."""


class ProfilePart(RecipePart):
    """Steps to profile, once, counted from the start of the process."""

    wait: int = Field(default=5, ge=0)
    """Steps to skip first. Raise it when the first ones are not representative."""
    active: int = Field(default=3, ge=1, le=1000)
    """Steps to record. Raise it when they differ; the file grows with them."""
