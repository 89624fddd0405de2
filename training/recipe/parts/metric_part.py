"""The recipe key `metric`: a metric of the user's own. Pure."""

from pydantic import Field, JsonValue, field_validator

from model_store.metric import BETTER, Better
from training.recipe.parts.recipe_part import RecipePart

MAX_NAME = 64
"""Most characters of a metric's name, which tables and conditions contain."""


class MetricPart(RecipePart):
    """A metric of your own, in place of the task's in `stop.metric`, `publish.if` and verification.

    Its name is that of the function: `macro_recall` gives `val/macro_recall` and
    `test/macro_recall`.
    """

    target: str
    """Your function, `path/file.py:name` or `package.module:name`: called with the first output of
    all rows of a split, [rows, ...], and their labels, both NumPy arrays, it returns a number. Give
    it when no metric of the task tells what matters."""
    args: dict[str, JsonValue] = Field(default={})
    """Further keyword arguments of `target`. Change them with it."""
    better: Better
    """Direction: `higher` or `lower`. `max_metric_drop` limits the fall of a metric that is better
    when higher, in its own unit; `max_error_rise` the relative rise of the other."""

    @field_validator("target")
    @classmethod
    def _new_name(cls, value: str) -> str:
        name = value.rpartition(":")[2]
        if name in BETTER:
            raise ValueError(f"'{name}' is the name of a metric that is known; rename the function")
        if not name.isidentifier() or len(name) > MAX_NAME:
            raise ValueError(f"name a function of at most {MAX_NAME} letters, digits and '_'")
        return value

    @property
    def name(self) -> str:
        """Name of the metric without its split."""
        return self.target.rpartition(":")[2]
