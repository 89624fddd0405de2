"""The output of a source: rows of one split, or of all, before they are checked and split."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flambeau.protocol.tensors import Array


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one split, or of all splits."""

    inputs: dict[str, Array]
    """By tensor name, each [rows, ...]."""
    labels: Array
    """Numbers, or names of classes as objects of type `str`; [rows] or [rows, T]."""
    place: Callable[[int], str]
    """Describes the place of a row, for messages, as in `houses.csv, data row 3`."""

    def taken(self, index: npt.NDArray[np.intp]) -> "Rows":
        """Returns some of the rows."""
        inputs = {name: array[index] for name, array in self.inputs.items()}
        return Rows(inputs, self.labels[index], lambda row: self.place(int(index[row])))
