"""Checks and completes the inputs of a batch: sizes, lengths, masks."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from flambeau.exporting.archived_version.tensor import Array, RefusedError, Tensor


class BatchInputs:
    """The inputs of a version.

    Args:
        signature: the version's, as its description has it.
    """

    def __init__(self, signature: Mapping[str, Any]) -> None:
        self.tensors = {one["name"]: Tensor(**one) for one in signature["inputs"]}
        self.is_plain = all(
            one.get("batch_axis", 0) == 0 and not one.get("optional")
            for what in ("inputs", "outputs")
            for one in signature[what]
        )
        """True if the batch is the first axis of every tensor, and no input is optional."""
        self._limits = signature.get("dynamic", {}), signature.get("limits", {})
        self._padding: Mapping[str, Any] = signature.get("padding") or {}

    def completed(self, given: Mapping[str, Array]) -> dict[str, Array]:
        """Returns all inputs; a mask and lengths that are missing are those of full rows.

        Raises:
            RefusedError: an input is missing, or a size or a length is beyond its limits.
        """
        inputs = dict(given)
        if self._padding:
            self._add_mask(inputs)
        for one in self.tensors.values():
            if one.name in inputs:
                self._check_sizes(one, inputs[one.name])
            elif not one.optional:
                raise RefusedError(f"input '{one.name}' is missing")
        return inputs

    def _check_sizes(self, one: Tensor, array: Array) -> None:
        row = [size for axis, size in enumerate(array.shape) if axis != one.batch_axis]
        for limits in self._limits:
            if one.name in limits:
                one.check_sizes(row, limits[one.name])

    def _add_mask(self, inputs: dict[str, Array]) -> None:
        axes = self._padding["inputs"]
        found = {inputs[name].shape[axis] for name, axis in axes.items() if name in inputs}
        most = self._padding["buckets"][-1]
        if len(found) != 1 or not 1 <= min(found) <= most:
            raise RefusedError(f"the inputs have lengths {sorted(found)}; give one of 1 to {most}")
        (length,), rows = found, len(next(iter(inputs.values())))
        mask, count = self._padding.get("mask"), self._padding.get("lengths")
        if mask is not None:
            inputs.setdefault(mask, np.ones((rows, length), self.tensors[mask].dtype))
            if inputs[mask].shape[1:] != (length,):
                raise RefusedError(f"'{mask}' has not the length of the inputs, {length}")
        if count is not None:
            inputs.setdefault(count, np.full(rows, length, self.tensors[count].dtype))
