"""A version as a model of MLflow's flavor `python_function`.

In: arrays by input name, a table with a column for each input, or the array of the only input. Out:
arrays by output name.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from flambeau.exporting.archived_version.batch_inputs import BatchInputs
from flambeau.exporting.archived_version.networks import Processor
from flambeau.exporting.archived_version.opened_version import DESCRIPTION, open_version
from flambeau.exporting.archived_version.tensor import Array, RefusedError, Tensor


class VersionModel:
    """The version of a folder.

    Args:
        folder: folder of its files.
    """

    def __init__(self, folder: Path) -> None:
        found = json.loads((folder / DESCRIPTION).read_bytes())
        self._inputs = BatchInputs(found["signature"])
        self._outputs = [Tensor(**one) for one in found["signature"]["outputs"]]
        self._most = int(found["signature"]["max_batch_size"])
        self._run = open_version(folder, found, self._outputs, Processor(None, 1))

    def predict(self, model_input: Any, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Runs a batch, in parts if it is larger than the version's largest.

        Args:
            model_input: the inputs.
            params: MLflow's; none is used.

        Raises:
            RefusedError: an input is unknown, missing, or of another datatype or shape.
        """
        inputs = self._inputs.completed(self._arrays(model_input))
        rows = len(next(iter(inputs.values()))) if self._inputs.is_plain else 0
        if rows <= self._most:
            return self._answer(inputs)
        parts = [
            self._answer({name: array[at : at + self._most] for name, array in inputs.items()})
            for at in range(0, rows, self._most)
        ]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def _answer(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        found = self._run(inputs)
        return {one.name: np.asarray(found[one.name]) for one in self._outputs}

    def _arrays(self, given: Any) -> dict[str, Array]:
        tensors = self._inputs.tensors
        if not hasattr(given, "items"):
            needed = [one.name for one in tensors.values() if not one.optional]
            if len(needed) != 1:
                raise RefusedError(f"name the inputs: {', '.join(tensors)}")
            given = {needed[0]: given}
        arrays = {}
        for name, value in given.items():
            if name not in tensors:
                raise RefusedError(f"there is no input '{name}'; give {', '.join(tensors)}")
            arrays[name] = _array_of(value, tensors[name])
        return arrays


def _array_of(value: Any, one: Tensor) -> Array:
    """Returns an array of the tensor's datatype; a column of a table has a value for each row.

    Raises:
        RefusedError: it has another datatype or shape.
    """
    if one.datatype == "BYTES":
        given = np.array(value, np.object_)
        array = np.empty(given.shape, np.object_)
        array.ravel()[:] = [t.encode() if isinstance(t, str) else t for t in given.ravel()]
    else:
        array = np.asarray(value if isinstance(value, np.ndarray) else list(value))
        if not np.can_cast(array.dtype, one.dtype, "same_kind"):
            raise RefusedError(f"input '{one.name}' is {array.dtype}, and it takes {one.datatype}")
        array = array.astype(one.dtype, copy=False)
    axis = one.batch_axis
    sizes: tuple[int, ...] = array.shape
    row = [size for place, size in enumerate(sizes) if place != axis]
    if array.ndim != len(one.shape) or not one.fits(row):
        raise RefusedError(
            f"input '{one.name}' has shape {list(array.shape)}, and it takes {list(one.shape)}"
        )
    return array


def _load_pyfunc(path: str) -> VersionModel:
    """Opens a version, as MLflow calls a loader."""
    return VersionModel(Path(path))
