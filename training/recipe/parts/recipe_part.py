"""The base class of every part of a recipe. Pure."""

from pydantic import ConfigDict

from flambeau.protocol.strict import StrictModel


class RecipePart(StrictModel):
    """A part of a recipe; the docstring of a field is also its help in the JSON Schema."""

    model_config = ConfigDict(use_attribute_docstrings=True)
