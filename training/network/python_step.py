"""The Python step of a recipe: opens it, runs it on the data, and prepares it for publication.

In: a recipe and raw splits. Out: the splits as the model takes them, and the step for a server. The
same bytes of the file run here and there.
"""

import hashlib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from flambeau.protocol.signature import Signature, TensorSpec
from flambeau.protocol.tensors import Array, datatype_of
from model_store.python_step import PythonStepError, StepFunction, open_step
from training.errors import DataError, TargetError
from training.loading.splits import Split, Splits
from training.recipe.parts.preprocess import PythonStep, python_step
from training.recipe.recipe import Recipe
from training.recipe.targets import TARGET_FORM, hidden_by, split_target, target_failure
from training.recipe.user_code import own_lines

WHERE = "preprocess.0.python"
ROWS_AT_ONCE = 256
"""Rows of one call of the step."""
ROUNDING = {2: 4e-3, 4: 1e-5, 8: 1e-5}
"""By the bytes of a float: the accepted difference between a row alone and among others, as a share
of the largest result. Matrix products add in another order for another number of rows; a step may
have computed 8-byte results in 4 bytes."""


@dataclass(frozen=True, slots=True)
class Step:
    """A recipe's step, ready to run."""

    name: str
    """Name of the class."""
    args: dict[str, Any]
    source: bytes
    """Content of its file."""
    run: StepFunction

    def source_sha256(self) -> str:
        """Returns the digest of its file, as in a manifest."""
        return hashlib.sha256(self.source).hexdigest()

    def prepared(self, raw: Splits) -> Splits:
        """Returns the model's inputs for every split.

        Raises:
            TargetError: the step fails, or returns a type that no model takes.
            DataError: a row's result depends on the rows beside it, or on the time of the call.
        """
        train, validation, test = map(self._split, (raw.train, raw.validation, raw.test))
        splits = Splits(train, validation, test)
        self._check_alone(raw.test, splits.test)
        return splits

    def _split(self, split: Split) -> Split:
        parts = [
            self._try(_rows(split.inputs, start, start + ROWS_AT_ONCE))
            for start in range(0, split.rows, ROWS_AT_ONCE)
        ]
        try:
            joined = {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}
        except (KeyError, ValueError) as error:
            raise TargetError(
                f"{WHERE}: {self.name} gives other names or shapes for other rows ({error}); "
                "let it cut and pad to one"
            ) from error
        return replace(split, inputs=joined)

    def _try(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        try:
            return self.run(inputs)
        except Exception as error:  # the user's step may raise any exception
            what = f"{WHERE}: {self.name} fails on the data"
            raise target_failure(what, error) from error

    def _check_alone(self, raw: Split, prepared: Split) -> None:
        for row in range(min(raw.rows, 4)):
            alone = self._try(_rows(raw.inputs, row, row + 1))
            for name, array in prepared.inputs.items():
                among = array[row : row + 1]
                if name not in alone or not _alike(alone[name], among, array):
                    raise DataError(
                        f"{WHERE}: {self.name} gives row {row} of the test split another '{name}' "
                        f"alone than among others{_difference(alone.get(name), among)}; a row's "
                        "result must depend on that row only"
                    )


def _alike(alone: Array, among: Array, every: Array) -> bool:
    """Returns True if a row's results differ by rounding at most, as they may among other rows.

    Args:
        alone: the row's result, [1, ...].
        among: its result among other rows.
        every: the results of all rows, whose largest value sets the rounding error.
    """
    if alone.dtype != among.dtype or alone.shape != among.shape:
        return False
    if among.dtype.kind != "f":
        return np.array_equal(alone, among)
    finite = np.abs(every[np.isfinite(every)], dtype=np.float64)
    limit = ROUNDING[among.dtype.itemsize] * float(finite.max(initial=0.0))
    found, right = alone.astype(np.float64), among.astype(np.float64)
    return np.allclose(found, right, rtol=0.0, atol=limit, equal_nan=True)


def _difference(alone: Array | None, among: Array) -> str:
    """Returns a message with the difference of numbers; an empty string for other types."""
    if alone is None or alone.shape != among.shape or among.dtype.kind not in "iuf":
        return ""
    gap = np.abs(alone.astype(np.float64) - among.astype(np.float64)).max(initial=0.0)
    return f", by {gap:.3g}, which is more than rounding"


def open_recipe_step(recipe: Recipe) -> Step | None:
    """Opens the recipe's Python step; None if it has none.

    Raises:
        TargetError: its file cannot be read or run, or has no such class.
    """
    step = python_step(recipe.preprocess)
    if step is None:
        return None
    path, name = _file(step)
    try:
        source = Path(path).read_bytes()
    except OSError as error:
        raise TargetError(f"{WHERE}.target: cannot read {path}: {error.strerror}") from error
    try:
        return Step(name, step.args, source, open_step(source, name, step.args, path))
    except PythonStepError as error:
        lines = [] if error.__cause__ is None else own_lines(error.__cause__)
        raise TargetError("\n".join([f"{WHERE}.target {step.target}: {error}", *lines])) from error


def served_signature(signature: Signature, raw: Splits) -> Signature:
    """Returns the model's signature with the inputs of clients, which the step takes."""
    specs = (
        TensorSpec(name=name, datatype=datatype_of(array), shape=(-1, *array.shape[1:]))
        for name, array in raw.train.inputs.items()
    )
    return signature.model_copy(update={"inputs": tuple(specs)})


def _rows(inputs: Mapping[str, Array], start: int, stop: int) -> dict[str, Array]:
    return {name: array[start:stop] for name, array in inputs.items()}


def _file(step: PythonStep) -> tuple[str, str]:
    """Returns the target's file, and the name in it."""
    parts = split_target(step.target)
    if parts is None:
        raise TargetError(f"{WHERE}.target is {step.target!r}; write {TARGET_FORM}")
    place, name = parts
    path: str | None = place
    if not place.endswith(".py"):
        try:
            spec = importlib.util.find_spec(place)
        except ImportError as error:
            raise TargetError(f"{WHERE}.target: cannot import {place!r}: {error}") from error
        path = None if spec is None else spec.origin
    if path is None or not path.endswith(".py"):
        what = f"{WHERE}.target: {place!r} is not a module with a Python file"
        raise TargetError(f"{what}{hidden_by(place)}")
    return path, name
