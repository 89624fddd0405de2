"""Augments training rows: shifts, flips, erasures, noise.

In: one input of a batch, and the rows' places in the epoch. Out: the input, augmented. Only
training rows are augmented, and augmentation is no part of the model.

Rule: the change of a row is a function of the seed, the epoch, its place in the epoch and the step
of the recipe, and of nothing before, so batches can be made in any order and by any process.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flambeau.protocol.strict import nearest_name
from flambeau.protocol.tensors import Array
from training.errors import DataError, RecipeError
from training.loading.row_order import Floats, Places
from training.recipe.parts.loading_parts import (
    AugmentStep,
    Noise,
    OwnChange,
    RandomCrop,
    RandomErase,
    RandomFlip,
    RandomScale,
)
from training.recipe.targets import load_target
from training.recipe.user_code import failure_in_words


@dataclass(frozen=True, slots=True)
class Draws:
    """The random numbers of one step of the recipe, for the rows of one batch."""

    seed: int
    epoch: int
    step: int
    """The index of the step in the recipe."""
    places: Places
    """Places of the rows in the epoch, [N]."""

    def uniform(self, count: int) -> Floats:
        """Returns numbers from 0 to below 1, [N, count].

        Each is a hash of its position: splitmix64 (Steele, Lea and Flood, 2014), once for the
        row and once for the number.
        """
        key = np.random.SeedSequence((self.seed, self.epoch, self.step)).generate_state(1, "u8")
        rows = _mixed(key + self.places.astype(np.uint64) * _GAMMA)
        numbers = np.arange(1, count + 1, dtype=np.uint64) * _GAMMA
        found: Floats = (_mixed(rows[:, None] + numbers) >> np.uint64(11)).astype(
            np.float64
        ) * 2.0**-53
        return found

    def normal(self, count: int) -> Floats:
        """Returns normal numbers, mean 0 and deviation 1, [N, count], by Box and Muller (1958)."""
        half = (count + 1) // 2
        drawn = self.uniform(2 * half)
        radius, angle = np.sqrt(-2 * np.log1p(-drawn[:, :half])), 2 * np.pi * drawn[:, half:]
        return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)], 1)[:, :count]

    def generator(self, row: int) -> np.random.Generator:
        """Returns a generator for one row of the batch."""
        return np.random.default_rng((self.seed, self.epoch, self.step, int(self.places[row])))


_GAMMA = np.uint64(0x9E3779B97F4A7C15)

Changing = Callable[[Array, Draws], Array]


class Augmentation:
    """The `augment` of a recipe.

    Args:
        steps: the recipe's steps.
        seed: the seed of the run.
        inputs: some rows by tensor name, for a trial.

    Raises:
        RecipeError: a step names an input that does not exist, or that it cannot change.
        TargetError: a function cannot be found.
        DataError: a function fails, or returns another shape or type.
    """

    def __init__(
        self, steps: Sequence[AugmentStep], seed: int, inputs: Mapping[str, Array]
    ) -> None:
        self._seed = seed
        self._steps: list[tuple[str, Changing]] = []
        for number, step in enumerate(steps):
            where = f"data.augment[{number}].{step.name}"
            name = _input_of(step, list(inputs), where)
            self._steps.append((name, _changing(step, inputs[name], where)))
        few = {name: array[:2] for name, array in inputs.items()}
        self.change(few, 0, np.arange(len(next(iter(few.values())))))

    def change(self, inputs: Mapping[str, Array], epoch: int, places: Places) -> dict[str, Array]:
        """Returns the rows of one batch, augmented.

        Args:
            inputs: by tensor name, each [N, ...]; not modified.
            epoch: from 0.
            places: places of the rows in the epoch, [N].
        """
        found = dict(inputs)
        for number, (name, changing) in enumerate(self._steps):
            found[name] = changing(found[name], Draws(self._seed, epoch, number, places))
        return found


def _mixed(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Applies the finaliser of splitmix64."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _input_of(step: AugmentStep, names: list[str], where: str) -> str:
    name = step.change.input
    if name is None and len(names) == 1:
        return names[0]
    if name is None:
        raise RecipeError(f"{where} does not say which of {names} it changes; give input")
    if name not in names:
        raise RecipeError(f"{where} names input '{name}'{nearest_name(name, names)}")
    return name


def _changing(step: AugmentStep, rows: Array, where: str) -> Changing:
    """Returns the function of a step, for rows like these."""
    match step.change:
        case RandomCrop(padding=padding):
            _check(rows, where, dimensions=3)
            return lambda array, draws: _cropped(array, draws, padding)
        case RandomFlip(share=share, axis=axis):
            _check(rows, where, dimensions=(axis or 1) + 1)
            return lambda array, draws: _flipped(array, draws, share, axis or array.ndim - 1)
        case RandomErase() as part:
            _check(rows, where, dimensions=3)
            return lambda array, draws: _erased(array, draws, part)
        case Noise(deviation=deviation):
            _check(rows, where, dimensions=1, floats=True)
            return lambda array, draws: _noisy(array, draws, deviation)
        case RandomScale(least=least, most=most):
            _check(rows, where, dimensions=1, floats=True)
            return lambda array, draws: _scaled(array, draws, least, most)
        case OwnChange() as own:
            return _own(own, where)


def _check(rows: Array, where: str, *, dimensions: int, floats: bool = False) -> None:
    if rows.ndim < dimensions or (floats and rows.dtype.kind != "f"):
        raise RecipeError(
            f"{where} needs {'floats' if floats else 'rows'} of {dimensions} dimensions or more, "
            f"the rows' own included, and the input is {rows.dtype} {list(rows.shape)}; drop it or "
            "name another input"
        )


def _cropped(array: Array, draws: Draws, padding: int) -> Array:
    height, width = array.shape[-2:]
    images = array.reshape(len(array), int(np.prod(array.shape[1:-2])), height, width)
    sides = ((0, 0), (0, 0), (padding, padding), (padding, padding))
    cuts = np.lib.stride_tricks.sliding_window_view(
        np.pad(images, sides), (height, width), axis=(2, 3)
    )
    down, right = (draws.uniform(2) * (2 * padding + 1)).astype(np.int64).T
    return cuts[np.arange(len(array)), :, down, right].reshape(array.shape)


def _flipped(array: Array, draws: Draws, share: float, axis: int) -> Array:
    turned = draws.uniform(1)[:, 0] < share
    found = array.copy()
    found[turned] = np.flip(array[turned], axis)
    return found


def _erased(array: Array, draws: Draws, part: RandomErase) -> Array:
    drawn = draws.uniform(5)
    inside = np.ones((len(array), *array.shape[-2:]), bool)
    for axis, (size, start) in ((-2, drawn[:, :2].T), (-1, drawn[:, 2:4].T)):
        full = array.shape[axis]
        side = np.maximum(np.rint(size * part.largest * full), 1)  # [N]
        first = np.floor(start * (full - side + 1))
        at = np.arange(full)
        hit = (at >= first[:, None]) & (at < (first + side)[:, None])  # [N, full]
        inside &= hit[:, :, None] if axis == -2 else hit[:, None, :]
    inside &= (drawn[:, 4] < part.share)[:, None, None]
    middle = [1] * (array.ndim - 3)
    mask = inside.reshape(len(array), *middle, *array.shape[-2:])
    return np.where(mask, np.asarray(part.value, array.dtype), array)


def _noisy(array: Array, draws: Draws, deviation: float) -> Array:
    noise = draws.normal(int(np.prod(array.shape[1:]))).reshape(array.shape)
    return array + (deviation * noise).astype(array.dtype)


def _scaled(array: Array, draws: Draws, least: float, most: float) -> Array:
    factors = (least + (most - least) * draws.uniform(1)[:, 0]).astype(array.dtype)
    scaled: Array = array * factors.reshape(-1, *[1] * (array.ndim - 1))  # type: ignore[operator]
    return scaled


def _own(part: OwnChange, where: str) -> Changing:
    function = load_target(part.target, f"{where}.target")

    def change(array: Array, draws: Draws) -> Array:
        found = np.empty_like(array)
        for row, old in enumerate(array):
            try:
                new = np.asarray(function(old.copy(), draws.generator(row), **part.args))
            except Exception as error:  # the user's function may raise any exception
                told = failure_in_words(error)
                raise DataError(f"{where}: {part.target} fails: {told}") from error
            if new.shape != old.shape or new.dtype != old.dtype:
                raise DataError(
                    f"{where}: {part.target} returned {new.dtype} {list(new.shape)} for "
                    f"{old.dtype} {list(old.shape)}; return the same shape and type"
                )
            found[row] = new
        return found

    return change
