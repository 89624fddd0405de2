"""Tries a network on a few rows: a server must be able to return its outputs.

In: a network and rows. Out: its outputs as arrays, or a `TargetError` that names the output.

Rules: every output is a tensor of a type that servers can return; it has one row for each row of
the batch, of a shape that does not depend on their number; the same rows give the same outputs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from flambeau.protocol.rounding import gap
from flambeau.protocol.tensors import Array, TensorError, datatype_of
from flambeau.publishing.network_outputs import RETURNS, OutputError, named_outputs
from training.errors import TargetError, TrainingError
from training.network.debugging import failing_layer
from training.network.row_dependence import ROUNDING_SHARE
from training.recipe.targets import target_failure

MOST_ROWS = 7
"""Rows of a trial batch: few, and unlike the usual size of an axis."""


@dataclass(frozen=True, slots=True)
class NetworkTrial:
    """A network in evaluation mode, with its names for messages."""

    model: nn.Module
    target: str
    """`model.target` of the recipe."""
    outputs: Sequence[str]
    """`model.outputs` of the recipe."""

    def run(self, inputs: Mapping[str, Array]) -> list[Array]:
        """Runs the network; returns the outputs in order, each [rows, ...].

        Args:
            inputs: by name in the order of `forward`, each [rows, ...].

        Raises:
            TargetError: the network fails, changes its inputs, or returns another number of outputs
                than the recipe names, or one that servers cannot return.
        """
        given = tensors_of([array.copy() for array in inputs.values()])
        try:
            with torch.inference_mode():
                found = self.model(*given)
        except TrainingError:
            raise
        except Exception as error:  # the user's model may raise any exception
            again = [torch.from_numpy(array.copy()) for array in inputs.values()]
            layer = failing_layer(self.model, lambda: self.model(*again))
            what = f"{self._named} fails on inputs {shapes_text(inputs)}{layer}"
            raise target_failure(what, error) from error
        tensors = self._tensors(found)
        for name, before, after in zip(inputs, inputs.values(), given, strict=True):
            if not np.array_equal(before, after.numpy(), equal_nan=before.dtype.kind == "f"):
                raise TargetError(
                    f"{self._named} changes its input '{name}' in place, and its caller may still "
                    "need it; let forward work on a copy, as in x = x + 1 in place of x += 1"
                )
        arrays = [self._array(place, tensor) for place, tensor in enumerate(tensors)]
        if len(arrays) != len(self.outputs):
            raise TargetError(
                f"{self._named} returns {len(arrays)} outputs and model.outputs names "
                f"{list(self.outputs)}; name each of them, in order"
            )
        return arrays

    def check_rows(
        self, inputs: Mapping[str, Array], varying: Mapping[str, int], most_rows: int
    ) -> None:
        """Checks that each output has one row for each row of the batch, of one shape.

        Args:
            inputs: by name, each [rows, ...], of all available rows.
            varying: the axis of each output that follows the length of the rows.
            most_rows: the largest batch size.

        Raises:
            TargetError: an output has not.
        """
        sizes = sorted({1, 2, min(MOST_ROWS, most_rows, len(next(iter(inputs.values()))))})
        found = {
            rows: self.run({name: array[:rows] for name, array in inputs.items()}) for rows in sizes
        }
        for place, name in enumerate(self.outputs):
            shapes = {rows: arrays[place].shape for rows, arrays in found.items()}
            if fault := row_fault(shapes, varying.get(name)):
                raise TargetError(f"{self._named} gives output '{name}' {fault}")

    def check_repeats(self, inputs: Mapping[str, Array]) -> None:
        """Checks that the same rows give the same outputs twice.

        Args:
            inputs: by name, each [rows, ...].

        Raises:
            TargetError: they do not.
        """
        first, second = self.run(inputs), self.run(inputs)
        for name, one, other in zip(self.outputs, first, second, strict=True):
            if (difference := _difference(one, other)) is not None:
                raise TargetError(
                    f"{self._named} gives different outputs for the same rows the second time "
                    f"(output '{name}'{difference}), and a served model must be deterministic; let "
                    "forward draw random numbers in training only (if self.training), and keep "
                    "nothing from one call to the next"
                )

    @property
    def _named(self) -> str:
        return f"model.target {self.target}"

    def _tensors(self, found: object) -> Sequence[Tensor]:
        """Returns the result of forward as tensors; refuses all other types."""
        for place, item in enumerate(found if isinstance(found, tuple | list) else ()):
            if not isinstance(item, Tensor):
                what = "None" if item is None else f"a {type(item).__name__}"
                raise TargetError(
                    f"{self._named} returns a {type(found).__name__} whose item {place + 1}"
                    f"{self._name_in_brackets(place)} is {what}; {RETURNS}"
                )
        try:
            outputs = named_outputs(found)
        except OutputError as error:
            raise TargetError(f"{self._named}: {error}") from error
        if not isinstance(found, Tensor | tuple | list) and list(outputs) != list(self.outputs):
            raise TargetError(
                f"{self._named} returns {list(outputs)} and model.outputs names "
                f"{list(self.outputs)}; write the names that forward returns, in its order"
            )
        return list(outputs.values())

    def _array(self, place: int, tensor: Tensor) -> Array:
        """Returns an output as servers return it."""
        try:
            array: Array = tensor.numpy()
            datatype_of(array)
        except (TensorError, TypeError, RuntimeError) as error:
            raise TargetError(
                f"{self._named} gives output {place + 1}{self._name_in_brackets(place)} as "
                f"{tensor.dtype}, which servers cannot answer with; {_advice(tensor, error)}"
            ) from error
        return array

    def _name_in_brackets(self, place: int) -> str:
        return f" ('{self.outputs[place]}')" if place < len(self.outputs) else ""


def tensors_of(arrays: Sequence[Array]) -> list[Tensor]:
    """Converts arrays to the tensors that a network takes."""
    # torch needs writable memory, compiled packages need contiguous memory.
    return [torch.from_numpy(np.require(array, requirements=["C", "W"])) for array in arrays]


def shapes_text(inputs: Mapping[str, Array]) -> str:
    """Returns the names of tensors and their shapes, for messages."""
    return ", ".join(f"'{name}' {list(array.shape)}" for name, array in inputs.items())


def row_fault(shapes: Mapping[int, tuple[int, ...]], varying: int | None = None) -> str | None:
    """Returns a message with advice if an output has not one row for each row of the batch.

    Args:
        shapes: shapes of the output, by the number of rows of the batch.
        varying: the axis that follows the length of the rows, if one does.
    """
    texts = [
        f"{list(shape)} for {rows} row{'' if rows == 1 else 's'}" for rows, shape in shapes.items()
    ]
    told = f"{', '.join(texts)}, and an output has a row for each row of the batch, [rows, ...]; "
    if not all(shapes.values()):
        return f"{told}let forward reduce the other axes alone, as y.mean(1) in place of y.mean()"
    if any(shape[0] != rows for rows, shape in shapes.items()):
        axes = range(1, min(map(len, shapes.values())))
        for axis in axes:
            if all(shape[axis] == rows for rows, shape in shapes.items()):
                return f"{told}let forward put that axis first, as y.transpose(0, {axis})"
        if len(shapes) > len({shape[0] for shape in shapes.values()}) == 1:
            return (
                f"{told}remove outputs that do not belong to a row from forward, or repeat them "
                "for each row, as y.expand(len(x), -1)"
            )
        return f"{told}let forward keep every row, and mark those that count by a mask"
    rests = {
        tuple(size for axis, size in enumerate(shape) if axis not in (0, varying))
        for shape in shapes.values()
    }
    if len(rests) > 1:
        return f"{told}let a row have the same shape in every batch"
    return None


def _difference(one: Array, other: Array) -> str | None:
    """Returns the difference of two results for the same rows; None for rounding at most."""
    found = gap(one, other, ROUNDING_SHARE)
    return None if found is None else f" {found}"


def _advice(tensor: Tensor, error: Exception) -> str:
    if tensor.dtype.is_complex:
        return "return numbers, as torch.view_as_real(y), which has a last axis of two"
    if tensor.dtype.is_floating_point and tensor.element_size() <= 2:
        return "end forward with y.float()"
    return f"return a dense tensor of numbers in memory ({error})"
