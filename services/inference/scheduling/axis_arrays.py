"""Arrays of a batch of a model whose batch is not the first axis of each tensor.

In: entries that have the same inputs, and the same values of inputs without a batch axis. Out: one
array per input, and each entry's part of the outputs: its rows along the batch axis, or the whole
of an output without one.
"""

from collections.abc import Mapping

import numpy as np

from flambeau.protocol.signature import Signature, TensorSpec
from flambeau.protocol.tensors import Array
from services.errors import BackendError
from services.inference.scheduling.batch_arrays import BatchArrays, Buffer, is_copied
from services.inference.scheduling.batch_rules import Batch
from services.queueing.records import Lane


class AxisArrays(BatchArrays):
    """Concatenates and splits along the batch axes of a signature."""

    def __init__(self, lane: Lane, signature: Signature) -> None:
        super().__init__(lane, signature)
        self._output_specs = {spec.name: spec for spec in signature.outputs}

    def join(self, batch: Batch, buffer: Buffer) -> Mapping[str, Array]:
        """Returns every input that the entries have; see `BatchArrays.join`."""
        first, added = batch.entries[0].request.inputs, batch.padded_rows - batch.rows
        if len(batch.entries) == 1 and not added:
            return first
        inputs: dict[str, Array] = {}
        for spec, _ in self._specs:
            if spec.name not in first:
                continue
            axis = spec.batch_axis
            if axis is None:
                inputs[spec.name] = first[spec.name]
                continue
            parts = [entry.request.inputs[spec.name] for entry in batch.entries]
            if added:  # repeats a real row
                parts += [parts[-1].take([-1], axis)] * added
            inputs[spec.name] = np.concatenate(parts, axis)
        return inputs

    def split(
        self, outputs: Mapping[str, Array], batch: Batch, *, owned: bool = False
    ) -> list[Mapping[str, Array]]:
        """Returns each entry's part of the outputs that it requested; see `BatchArrays.split`.

        Raises:
            BackendError: an output is missing, or its row count differs from the batch's.
        """
        for spec in self._output_specs.values():
            self._check(spec, outputs, batch.padded_rows)
        parts: list[Mapping[str, Array]] = []
        start = 0
        for entry in batch.entries:
            stop = start + entry.request.rows
            names = entry.request.outputs or self._outputs
            parts.append(
                {name: self._part(name, outputs[name], start, stop, owned) for name in names}
            )
            start = stop
        return parts

    def _check(self, spec: TensorSpec, outputs: Mapping[str, Array], rows: int) -> None:
        name, axis = spec.name, spec.batch_axis
        if name not in outputs:
            raise BackendError(
                f"model {self._lane} returned no output '{name}'; its signature has it"
            )
        shape = outputs[name].shape
        if len(shape) != len(spec.shape):
            raise BackendError(
                f"model {self._lane} returned output '{name}' of shape {list(shape)}; its "
                f"signature has {list(spec.shape)}"
            )
        if axis is not None and shape[axis] != rows:
            raise BackendError(
                f"model {self._lane} returned output '{name}' of shape {list(shape)} for a "
                f"batch of {rows} rows; its dimension {axis} must be the batch"
            )

    def _part(self, name: str, whole: Array, start: int, stop: int, owned: bool) -> Array:
        axis = self._output_specs[name].batch_axis
        if axis is None:
            return whole
        part: Array = whole[(slice(None),) * axis + (slice(start, stop),)]
        return part.copy() if is_copied(part, whole, owned=owned) else part
