"""Finds the sizes that a caller's model takes along the axes that vary, by running it.

In: a model, its examples, and the limits of the axes. Out: `TakenSizes`.

Rules: an axis varies by itself if the model also takes the size next to its example's. If not, the
smallest divisor of the examples' sizes is searched for whose multiples it takes, as networks that
halve an image do; those multiples are verified at their smallest and largest.
"""

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from flambeau.publishing.batch_axes import rows_of
from flambeau.publishing.errors import ExampleError
from flambeau.publishing.examples import Examples, Sizes, by_dependence
from flambeau.publishing.model_run import Model, run_model

TRIAL_ROWS = 8
"""Rows of an example at other sizes."""

LARGE_SIZE = 64
"""Size that is tried of every axis that varies: outputs that shrink 32 times grow by then."""

Place = tuple[str, int]
"""An input and one of its axes."""


@dataclass(frozen=True, slots=True)
class TakenSizes:
    """Smallest and largest sizes by input and axis, by what verification may try."""

    alone: Sizes
    """Axes that take any size between, whatever the others have."""
    together: Sizes
    """Axes that depend on others, or take some sizes only."""
    trials: list[dict[str, Tensor]]
    """Examples at sizes of `together` that the model takes."""
    notes: tuple[str, ...] = ()
    """Lines for the user."""


def taken_sizes(
    model: Model,
    examples: Examples,
    batch_axes: Mapping[str, int | None],
    sizes: Sizes,
    related: Collection[Place] = (),
) -> TakenSizes:
    """Returns the sizes that a model takes.

    Args:
        model: the model.
        examples: its examples, and what the caller says of sizes.
        batch_axes: batch axis by input.
        sizes: axes that vary, from `Examples.sizes`.
        related: axes whose sizes the program computes from others.

    Raises:
        ExampleError: the caller says sizes of which the model takes only that of the example.
    """
    alone, together = by_dependence(sizes)
    steps: dict[Place, int] = {}
    one_row = rows_of(examples.inputs, batch_axes, 0, 1)
    for name, axis in [(name, axis) for name, axes in alone.items() for axis in axes]:
        step = 0
        if (name, axis) not in related:
            step = examples.multiples.get(name, {}).get(axis) or _step(
                model, examples, one_row, (name, axis), sizes[name][axis]
            )
        if step != 1:
            together.setdefault(name, {})[axis] = alone[name].pop(axis)
        if step > 1:
            steps[name, axis] = step
            low, high = sizes[name][axis]
            together[name][axis] = (-(-low // step) * step, high // step * step)
    notes = tuple(
        "axis {1} of input '{0}' takes multiples of {2}, {3} to {4}; servers refuse others".format(
            *place, step, *together[place[0]][place[1]]
        )
        for place, step in steps.items()
    )
    alone = {name: axes for name, axes in alone.items() if axes}
    trials = [*_trials(model, examples, batch_axes, steps, together)] if steps else []
    return TakenSizes(alone, together, trials, notes)


def other_sizes(
    inputs: Mapping[str, Tensor], batch_axes: Mapping[str, int | None], sizes: Sizes
) -> list[dict[str, Tensor]]:
    """Returns one row at the smallest sizes, and at larger ones: the model may refuse them.

    Args:
        inputs: an example.
        batch_axes: batch axis by input.
        sizes: axes that vary, from `Examples.sizes`.
    """
    smaller = rows_of(inputs, batch_axes, 0, 1)
    larger = dict(smaller)
    for name, axes in sizes.items():
        for axis, (low, high) in axes.items():
            size = inputs[name].shape[axis]
            smaller[name] = _resized(smaller[name], axis, low)
            larger[name] = _resized(larger[name], axis, min(max(2 * size, LARGE_SIZE), high))
    return [smaller, larger] if sizes else []


def _step(
    model: Model,
    examples: Examples,
    one_row: Mapping[str, Tensor],
    place: Place,
    limits: tuple[int, int],
) -> int:
    """Returns the divisor whose multiples the model takes; 0 if the examples alone tell its sizes.

    Raises:
        ExampleError: the caller says the sizes, and no other one works.
    """
    (name, axis), (low, high) = place, limits
    size = one_row[name].shape[axis]
    shared = math.gcd(*(one[name].shape[axis] for one in (examples.inputs, *examples.others)))
    tried, failure = [], None
    for step in (each for each in range(1, shared + 1) if each == 1 or shared % each == 0):
        other = size + step if size + step <= high else size - step
        if not low <= other <= high:
            continue
        tried.append(other)
        try:
            run_model(model, None, {**one_row, name: _resized(one_row[name], axis, other)})
        except ExampleError as error:
            failure = failure or error
        else:
            return step
    if axis not in examples.dynamic.get(name, {}):
        return 0
    raise ExampleError(
        f"dynamic['{name}'][{axis}] is {low} to {high}, and the model takes {size} and none of "
        f"{', '.join(map(str, tried))}: {failure}; leave the axis out, or give a multiple, as in "
        "(8, 64, 8), or examples of several sizes"
    )


def _trials(
    model: Model,
    examples: Examples,
    batch_axes: Mapping[str, int | None],
    steps: Collection[Place],
    limits: Sizes,
) -> Iterator[dict[str, Tensor]]:
    """Yields the first example at the smallest and the largest multiples.

    Raises:
        ExampleError: the model does not take them.
    """
    some = rows_of(examples.inputs, batch_axes, 0, TRIAL_ROWS)
    for end in (0, 1):
        found = dict(some)
        for name, axis in steps:
            found[name] = _resized(found[name], axis, limits[name][axis][end])
        try:
            run_model(model, None, rows_of(found, batch_axes, 0, 1))
        except ExampleError as error:
            said = ", ".join(f"dynamic['{n}'][{a}] = {limits[n][a]}" for n, a in steps)
            raise ExampleError(
                f"{error}: the {('smallest', 'largest')[end]} sizes of {said}; give limits that "
                "the model takes"
            ) from error
        yield found


def _resized(tensor: Tensor, axis: int, size: int) -> Tensor:
    """Cuts an axis that is too long, and repeats the elements of one that is too short."""
    return tensor.index_select(axis, torch.arange(size) % tensor.shape[axis])
