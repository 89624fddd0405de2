"""A metric of the user's own: calls the recipe's function on the outputs and labels of a split."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from flambeau.protocol.tensors import Array
from model_store.metric import Better
from training.errors import TargetError
from training.loading.label_arrays import LabelArray
from training.recipe.parts.train_parts import MetricPart
from training.recipe.targets import call_named, load_target

WHERE = "metric"


@dataclass(frozen=True, slots=True)
class OwnMetric:
    """The function of a recipe, by its location, so that other processes can load it too."""

    name: str
    target: str
    args: Mapping[str, Any]
    better: Better

    @classmethod
    def of(cls, part: MetricPart) -> "OwnMetric":
        """Returns the metric of a recipe."""
        return cls(part.name, part.target, part.args, part.better)

    def value(self, outputs: Array, labels: LabelArray) -> float:
        """Calls the function; the result may be NaN.

        Args:
            outputs: first output of all rows, [rows, ...].
            labels: their labels, [rows, ...].

        Raises:
            TargetError: the function is missing, raises, or returns no number.
        """
        function = load_target(self.target, f"{WHERE}.target")
        what = f"{WHERE}.target {self.target}"
        found = call_named(function, what, outputs, labels, **self.args)
        try:
            return float(np.asarray(found).item())
        except (TypeError, ValueError) as error:
            raise TargetError(f"{what} returned {found!r:.80}; return one number") from error
