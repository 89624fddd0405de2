"""Example inputs of a model, as given by the caller, as tensors by name.

In: a mapping from names to arrays or tensors; one array or a tuple in the order of the arguments;
or a list of mappings, one for each size that inputs may have. Out: `Examples`.

Rules: an axis whose size differs between examples varies between the smallest and the largest of
them, unless it is the batch. Arguments that have a default may be left out.
"""

import inspect
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flambeau.protocol.sequence_spec import Sequences
from flambeau.protocol.strict import nearest_name
from flambeau.protocol.tensors import TensorError, datatype_of
from flambeau.publishing.errors import ExampleError
from flambeau.publishing.staging import check_room

Sizes = dict[str, dict[int, tuple[int, int]]]
"""Smallest and largest size of the axes that vary, by input."""

MAX_ROWS = 100_000
"""Limit on the rows of an example."""
MAX_SIZE = 2**31
"""Limit on the size of an axis."""


@dataclass(frozen=True, slots=True)
class Examples:
    """Example inputs in the order of the model's arguments."""

    inputs: dict[str, Tensor]
    """Tensors on the CPU by name, [rows, ...]."""
    others: list[dict[str, Tensor]] = field(default_factory=list)
    """Further examples at other sizes."""
    dynamic: Sizes = field(default_factory=dict)
    """Sizes that the caller says, beside those that the examples show."""
    multiples: dict[str, dict[int, int]] = field(default_factory=dict)
    """Numbers that the caller says sizes are multiples of."""
    batch_axes: dict[str, int | None] = field(default_factory=dict)
    """Batch axes that the caller says."""
    by_name: bool = False
    """True if inputs are passed by name: an argument before a given one is left out."""
    left_out: tuple[str, ...] = ()
    """Optional arguments of the model that the examples leave out."""
    sequence: Sequences | None = None
    """States and controls of a model with state."""

    @property
    def names(self) -> list[str]:
        """The names of the inputs, in order."""
        return list(self.inputs)

    def notes(self, sizes: Sizes) -> tuple[str, ...]:
        """Returns lines for the user: limits that examples set, and arguments that are left out.

        Args:
            sizes: axes that vary, from `sizes`.
        """
        notes = [
            f"axis {axis} of input '{name}' may have {low} to {high}, the sizes of the examples; "
            f"for others give dynamic={{'{name}': {{{axis}: (smallest, largest)}}}}"
            for name, axes in sizes.items()
            for axis, (low, high) in axes.items()
            if axis not in self.dynamic.get(name, {})
        ]
        if self.left_out:
            left_out = ", ".join(self.left_out)
            notes.append(f"the version has no input {left_out}: the examples leave it out")
        return tuple(notes)

    def by_size(
        self, batch_axes: Mapping[str, int | None]
    ) -> tuple[list[dict[str, Tensor]], list[dict[str, Tensor]]]:
        """Returns the examples of the first one's size, and those of other sizes.

        Args:
            batch_axes: batch axis by input; sizes along it do not count.
        """
        alike = [self.inputs]
        others: list[dict[str, Tensor]] = []
        for one in self.others:
            is_alike = all(
                _without(one[name], axis) == _without(self.inputs[name], axis)
                for name, axis in batch_axes.items()
            )
            (alike if is_alike else others).append(one)
        return alike, others

    def sizes(self, batch_axes: Mapping[str, int | None]) -> Sizes:
        """Returns the smallest and largest size of axes that vary.

        Args:
            batch_axes: batch axis by input, which is not among them.

        Raises:
            ExampleError: the caller says sizes of a batch axis.
        """
        found: Sizes = {}
        for name, axis in batch_axes.items():
            shapes = [one[name].shape for one in (self.inputs, *self.others)]
            for place, sizes in enumerate(zip(*shapes, strict=True)):
                if place != axis and min(sizes) < max(sizes):
                    found.setdefault(name, {})[place] = (min(sizes), max(sizes))
            for place, told in self.dynamic.get(name, {}).items():
                if place == axis:
                    raise ExampleError(
                        f"dynamic['{name}'] names axis {place}, which is the batch; leave it out, "
                        "and limit the batch by max_batch_size"
                    )
                found.setdefault(name, {})[place] = told
        return found


def by_dependence(sizes: Sizes) -> tuple[Sizes, Sizes]:
    """Returns the axes that vary by themselves, and those that vary with others.

    Axes of different inputs with the same limits, such as the length of tokens and of their mask,
    count as one size.
    """
    owners: dict[tuple[int, int], set[str]] = {}
    for name, axes in sizes.items():
        for limits in axes.values():
            owners.setdefault(limits, set()).add(name)
    alone: Sizes = {}
    together: Sizes = {}
    for name, axes in sizes.items():
        for axis, limits in axes.items():
            found = alone if len(owners[limits]) == 1 else together
            found.setdefault(name, {})[axis] = limits
    return alone, together


def read_examples(
    call: Callable[..., Any],
    given: Any,
    dynamic: Mapping[str, Mapping[int, Any]] | None = None,
    batch_axes: Mapping[str, int | None] | None = None,
) -> Examples:
    """Converts the caller's examples.

    Args:
        call: the model, for the names and the order of its arguments.
        given: the examples; see the head of this module.
        dynamic: smallest and largest size by input and axis, beside those that examples show, and
            perhaps a number that they are multiples of.
        batch_axes: batch axis by input, where the caller says it; None for no batch.

    Raises:
        ExampleError: a value is no array, has no rows, or contradicts another.
    """
    several = isinstance(given, list) and bool(given) and isinstance(given[0], Mapping)
    for one in given if several else ():
        if not isinstance(one, Mapping):
            raise ExampleError(
                f"examples has {reprlib.repr(one)} among mappings; give mappings alone"
            )
    parts = [_ordered(call, one) for one in (given if several else [given])]
    first, others = parts[0], parts[1:]
    for other in others:
        _check_alike(first, other)
    sizes: Sizes = {}
    multiples: dict[str, dict[int, int]] = {}
    for name, axes in (dynamic or {}).items():
        if name not in first:
            raise ExampleError(f"dynamic names input '{name}'{nearest_name(name, first)}")
        for axis, range_ in axes.items():
            low, high, *step = _size_range(name, axis, range_, first[name])
            sizes.setdefault(name, {})[axis] = (low, high)
            if step:
                multiples.setdefault(name, {})[axis] = step[0]
    parameters, in_order = _parameters(call), _parameters(call, keywords=False)
    is_named = set(first) <= set(parameters)
    return Examples(
        first,
        others,
        sizes,
        multiples,
        dict(batch_axes or {}),
        by_name=is_named and in_order[: len(first)] != list(first),
        left_out=tuple(name for name in parameters if name not in first) if is_named else (),
    )


def _ordered(call: Callable[..., Any], given: Any) -> dict[str, Tensor]:
    """Returns one example by name, in the order of the arguments."""
    parameters = _parameters(call)
    if isinstance(given, Mapping):
        named = {str(name): value for name, value in given.items()}
    else:
        values = list(given) if isinstance(given, tuple) else [given]
        if len(values) > len(parameters):
            raise ExampleError(
                f"examples has {len(values)} arrays and the model takes {len(parameters)} "
                f"({', '.join(parameters)}); give a mapping from names to arrays"
            )
        named = dict(zip(parameters, values, strict=False))
    if not named:
        raise ExampleError("examples is empty; give an array for each input of the model")
    odd = [name for name in named if name not in parameters]
    if odd and len(odd) < len(named):
        raise ExampleError(
            f"examples names '{odd[0]}'{nearest_name(odd[0], parameters)}, and the model's "
            f"arguments are {', '.join(parameters)}; name all inputs as they are named there, or "
            "none, to give the arguments in order other names"
        )
    if not odd:  # keyword names decide the order
        named = {name: named[name] for name in parameters if name in named}
    tensors = {name: _tensor(name, value) for name, value in named.items()}
    _check_rows(tensors)
    return tensors


def _parameters(call: Callable[..., Any], keywords: bool = True) -> list[str]:
    """Returns the names of arguments; without keywords, of those that can be passed in order."""
    function = call.forward if isinstance(call, torch.nn.Module) else call
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a builtin
        return ["input"]
    in_order = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [
        each.name
        for each in parameters
        if each.kind in in_order or (keywords and each.kind is inspect.Parameter.KEYWORD_ONLY)
    ] or ["input"]


def _tensor(name: str, value: Any) -> Tensor:
    """Converts one value to a tensor on the CPU.

    Raises:
        ExampleError: it is no array of numbers.
    """
    check_room(name, value)
    if isinstance(value, Tensor):
        tensor = _on_cpu(name, value)
    else:
        try:
            array = np.asarray(value)
            if datatype_of(array) == "BYTES":
                raise TensorError("text, or objects")
            tensor = torch.from_numpy(np.require(array, requirements=["C", "W"]).copy())
        except (TensorError, TypeError, ValueError) as error:
            raise ExampleError(
                f"examples['{name}'] is {reprlib.repr(value)}, a {type(value).__name__} that is no "
                f"array of numbers ({error}); give a NumPy array or a tensor, such as float32 "
                "[rows, ...]"
            ) from error
        if array.dtype == np.float64 and not isinstance(value, np.ndarray):
            tensor = tensor.float()  # numbers of Python have no precision of their own
    return tensor.contiguous()


def _on_cpu(name: str, value: Tensor) -> Tensor:
    """Returns a tensor of the caller's on the CPU.

    Raises:
        ExampleError: it has no values, or numbers that servers do not take.
    """
    if value.is_meta:
        raise ExampleError(f"examples['{name}'] is on the device meta, without values; give values")
    tensor = value.detach().cpu()
    try:
        datatype_of(tensor.numpy())
    except (TensorError, TypeError, RuntimeError) as error:
        raise ExampleError(
            f"examples['{name}'] is {value.dtype}, which servers do not take; give x.float(), or "
            "another type of numbers"
        ) from error
    return tensor


def _check_rows(tensors: Mapping[str, Tensor]) -> None:
    rows = {name: tensor.shape[0] for name, tensor in tensors.items() if tensor.ndim}
    if any(count == 0 for count in rows.values()):
        raise ExampleError("an example has no rows; give at least one row of each input")
    if any(count > MAX_ROWS for count in rows.values()):
        raise ExampleError(f"an example has more than {MAX_ROWS:,} rows; give fewer")


def _check_alike(first: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> None:
    if list(first) != list(other):
        raise ExampleError(
            f"examples name different inputs: {list(first)} and {list(other)}; give all the same"
        )
    for name, tensor in first.items():
        if tensor.ndim != other[name].ndim or tensor.dtype != other[name].dtype:
            raise ExampleError(
                f"examples of input '{name}' differ in more than size: {tensor.dtype} "
                f"{list(tensor.shape)} and {other[name].dtype} {list(other[name].shape)}"
            )


def _without(tensor: Tensor, axis: int | None) -> list[int]:
    """Returns the sizes of all axes but one."""
    return [size for place, size in enumerate(tensor.shape) if place != axis]


def _size_range(name: str, axis: int, given: Any, example: Tensor) -> tuple[int, ...]:
    """Returns the smallest and the largest size, and the number that they are multiples of."""
    said = f"dynamic['{name}'][{axis}] is {given!r}"
    try:
        low, high, *step = (int(size) for size in given)
    except (TypeError, ValueError, OverflowError):
        low, high, step = 0, 0, []
    if low == high >= 1:
        raise ExampleError(f"{said}, one size; leave out an axis that has the examples' size alone")
    if not 1 <= low < high < MAX_SIZE or len(step) > 1 or not all(1 <= one <= low for one in step):
        raise ExampleError(
            f"{said}; give the smallest and a larger size, as in (8, 64), and a third number if "
            "they are multiples of it, as in (8, 64, 2)"
        )
    if step and any(size % step[0] for size in (low, high, *example.shape[axis : axis + 1])):
        raise ExampleError(
            f"{said}, and the example is {list(example.shape)}; give multiples of {step[0]}, the "
            "third number, and an example of such a size"
        )
    if not 0 <= axis < example.ndim:
        raise ExampleError(
            f"dynamic['{name}'] names axis {axis}, and the input is {list(example.shape)}; "
            "name one of its axes"
        )
    if not low <= example.shape[axis] <= high:
        raise ExampleError(
            f"dynamic['{name}'][{axis}] is {low} to {high}, and the example has size "
            f"{example.shape[axis]}; include it"
        )
    return (low, high, *step)
