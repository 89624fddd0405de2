"""The search space of a search in a recipe: `PATH=KIND(...)`. Pure rules.

    optim.adamw.lr=log(1e-4, 1e-1)    a number in the range, log-uniform
    model.args.dropout=float(0, 0.5)  a number in the range, uniform
    train.epochs=int(5, 20)           a whole number, both ends included
    optim.accumulate=choice(1, 2, 4)  one of these; any YAML value, such as {sgd: {}}

In: the text of a `--param`. Out: a `Parameter`, and recipes with values substituted, validated by
the recipe's own rules before anything runs.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from flambeau.protocol.strict import nearest_name
from training.errors import RecipeError
from training.recipe.file import parse_value, set_value, validate_recipe
from training.recipe.recipe import Recipe
from training.recipe.target_names import check_target_arguments
from training.recipe.targets import check_target

Kind = Literal["log", "float", "int", "choice"]
Value = Any
"""Any YAML value."""
_PARAMETER = re.compile(
    r"\s*(?P<path>[^=\s]+)\s*=\s*(?P<kind>\w+)\s*\((?P<inner>.*)\)\s*", re.DOTALL
)
_CODE = ("model", "data")
"""Parts of a recipe whose `args` are passed to a target."""
BETWEEN = 0.3819660112501051
"""Relative position of the inner value that is tried; irrational, so never a whole number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One value of a recipe that a search chooses."""

    path: str
    """Path in the recipe: `optim.adamw.lr`."""
    kind: Kind
    """Distribution of the values."""
    low: float = 0
    """Smallest value, for numbers."""
    high: float = 0
    """Largest value, for numbers."""
    choices: tuple[Value, ...] = ()
    """Values, for choices."""

    def ends(self) -> list[Value]:
        """Returns the values that test the validity of all: both ends, or every choice."""
        return list(self.choices) if self.kind == "choice" else [self.low, self.high]

    def between(self) -> list[Value]:
        """Returns an inner, non-integer value for continuous kinds; otherwise nothing."""
        return (
            [self.low + BETWEEN * (self.high - self.low)] if self.kind in ("log", "float") else []
        )

    def labels(self) -> list[str]:
        """Returns the choices as text, which identifies them in a study."""
        return [json.dumps(choice, sort_keys=True) for choice in self.choices]

    def __str__(self) -> str:
        """Returns the text that `parse_parameter` reads."""
        inner = self.labels() if self.kind == "choice" else [f"{self.low!r}", f"{self.high!r}"]
        return f"{self.path}={self.kind}({', '.join(inner)})"


def parse_parameter(text: str) -> Parameter:
    """Parses one `--param`.

    Raises:
        RecipeError: the text is invalid; the message states the reason.
    """
    what = f"--param {text!r}"
    found = _PARAMETER.fullmatch(text)
    if found is None or not all(found["path"].split(".")):
        raise RecipeError(
            f"{what} is not of the form a.b=kind(...), as in optim.adamw.lr=log(1e-4, 1e-1), "
            "train.epochs=int(5, 20) or optim.accumulate=choice(1, 2, 4)"
        )
    path, kind = found["path"], found["kind"]
    values = parse_value(f"[{found['inner']}]", what)
    match kind:
        case "choice":
            return _choice(path, values, what)
        case "log" | "float" | "int":
            return _range(path, kind, values, what)
    raise RecipeError(f"{what}: no kind '{kind}'{nearest_name(kind, get_args(Kind))}")


def parse_parameters(texts: Sequence[str]) -> tuple[Parameter, ...]:
    """Parses all parameters of a search.

    Raises:
        RecipeError: one is invalid, there is none, or two have overlapping paths.
    """
    found = tuple(parse_parameter(text) for text in texts)
    if not found:
        raise RecipeError("a search needs a --param, such as optim.adamw.lr=log(1e-4, 1e-1)")
    for place, one in enumerate(found):
        for other in found[:place]:
            if f"{one.path}.".startswith(f"{other.path}.") or f"{other.path}.".startswith(
                f"{one.path}."
            ):
                raise RecipeError(
                    f"--param {one.path} and --param {other.path} are of one place; keep one"
                )
    return found


def _choice(path: str, values: list[Value], what: str) -> Parameter:
    if len(values) < 2:
        raise RecipeError(f"{what} leaves no choice; give at least two values")
    try:
        parameter = Parameter(path=path, kind="choice", choices=tuple(values))
        labels = parameter.labels()
    except TypeError as error:
        raise RecipeError(f"{what}: {error}; give numbers, text, lists and mappings") from error
    if len(set(labels)) != len(labels):
        raise RecipeError(f"{what} has a value twice; keep one of each")
    return parameter


def _range(
    path: str, kind: Literal["log", "float", "int"], values: list[Value], what: str
) -> Parameter:
    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    if len(values) != 2 or len(numbers) != 2 or not all(map(math.isfinite, numbers)):
        raise RecipeError(f"{what}: give the smallest and the largest value, as in {kind}(1, 20)")
    low, high = numbers
    if low >= high:
        raise RecipeError(f"{what} goes from {low} to {high}; give the smaller one first")
    if kind == "int" and not all(isinstance(number, int) for number in numbers):
        raise RecipeError(f"{what} has no whole numbers; write float({low}, {high})")
    if kind == "log" and low <= 0:
        raise RecipeError(f"{what}: a logarithm begins above 0, not at {low}")
    return Parameter(path=path, kind=kind, low=low, high=high)


def with_values(base: Recipe, values: Mapping[str, Value]) -> Recipe:
    """Builds the recipe of a trial.

    Args:
        base: recipe common to all trials.
        values: values by path.

    Raises:
        RecipeError: a value or the combination is invalid.
    """
    document = base.document()
    for path, value in values.items():
        set_value(document, path.split("."), value, f"--param {path}")
    told = ", ".join(f"{path}={value}" for path, value in values.items())
    return validate_recipe(document, told)


def check_parameters(base: Recipe, parameters: Sequence[Parameter], imports: bool = True) -> None:
    """Rejects parameters that make every trial invalid, before anything runs.

    A value is rejected if it is invalid alone, with the first, and with the last values of the
    other parameters. A value that only some combinations forbid makes a trial fail.

    Args:
        base: recipe common to all trials.
        parameters: parameters of the search.
        imports: True to import code for checking its parameters; otherwise its source is parsed.

    Raises:
        RecipeError: a path is unknown, a value is rejected, or a parameter has no effect.
    """
    first = {parameter.path: parameter.ends()[0] for parameter in parameters}
    last = {parameter.path: parameter.ends()[-1] for parameter in parameters}
    for parameter in parameters:
        digests = set()
        for value in parameter.ends():
            taken = _taken(base, parameter.path, value, ({}, first, last))
            digests.add(taken.training_digest())
            for part in _CODE:
                if parameter.path.startswith(f"{part}.args"):
                    _check_code(taken, part, imports)
        for value in parameter.between():
            try:
                _taken(base, parameter.path, value, ({}, first, last))
            except RecipeError as error:
                raise RecipeError(f"{error}{_whole(parameter)}") from error
        if len(digests) < len(parameter.ends()):
            raise RecipeError(
                f"--param {parameter} changes nothing about the trained weights; search for "
                "something that does, and change this by --set"
            )


def _whole(parameter: Parameter) -> str:
    """Suggests the `int` form for a range that is valid only at its ends, if both are whole."""
    low, high = parameter.low, parameter.high
    if low != int(low) or high != int(high):
        return ""
    return f"; for whole numbers alone, write {parameter.path}=int({int(low)}, {int(high)})"


def _taken(base: Recipe, path: str, value: Value, among: Sequence[Mapping[str, Value]]) -> Recipe:
    """Returns a recipe with the value, in the first combination that is valid."""
    refusal: RecipeError | None = None
    for others in among:
        try:
            return with_values(base, {**others, path: value})
        except RecipeError as error:
            refusal = refusal or error
    assert refusal is not None, "there is company to try"
    raise refusal


def _check_code(recipe: Recipe, part: str, imports: bool) -> None:
    if not imports:
        check_target_arguments(recipe)
        return
    named = recipe.model if part == "model" else recipe.data
    offered = {} if part == "model" else {"seed": recipe.seed}
    if named.target is not None:
        check_target(named.target, named.args, part, offered)
