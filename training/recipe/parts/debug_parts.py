"""The parts of a recipe that show what happens in training. Pure; they change no weight."""

from pydantic import Field

from training.recipe.parts.recipe_part import RecipePart


class DebugPart(RecipePart):
    """What is looked at in every step. It costs time."""

    anomaly: bool = False
    """Whether torch says which operation of forward made a gradient that is no number. Set it when
    a run diverges for no reason you see; steps take several times as long."""
    gradients: tuple[str, ...] = ()
    """Patterns of names of parameters, such as `head.*`, whose gradients' norms are tracked, and
    histograms in TensorBoard. Give it when a layer does not learn."""
    activations: tuple[str, ...] = ()
    """Patterns of names of layers, such as `blocks.*`, whose outputs' sizes are tracked, and
    histograms in TensorBoard. Give it when signals vanish or explode."""
    backward: tuple[str, ...] = ()
    """Patterns of names of layers whose outputs' gradients are tracked in the same way, as they
    come back through the network. Give it to see where gradients vanish or explode."""


class ProfilePart(RecipePart):
    """Which steps are profiled, once, from the start of the process."""

    wait: int = Field(default=5, ge=0)
    """Steps that are let pass first. Raise it when the first ones are not like the others."""
    active: int = Field(default=3, ge=1, le=1000)
    """Steps that are recorded. Raise it when they differ; the file grows with them."""
