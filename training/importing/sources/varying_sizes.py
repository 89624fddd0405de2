"""Sizes of the dimensions that vary, where one may be computed from others: `n + 1`, `2*n`.

In: inputs as a file states them. Out: a size for each dimension that varies, so that all fit each
other and the file's limits.

Rule: a name is an expression if it has sums, products or whole quotients of names and numbers. An
expression whose names no other dimension tells is a name like any other.
"""

import ast
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from training.importing.sources.read_tensor import UNNAMED, ReadTensor, batch_axes

Place = tuple[str, int]
"""An input and one of its dimensions."""
Values = dict[str, int]
"""Sizes by name."""

MAX_SEARCHED = 4096
"""Largest size of a name that is searched for to fit the sizes computed from it."""
_EXPRESSION = re.compile(r"(?:[A-Za-z_]\w{0,60}|\d{1,9}(?!\w)|[-+*() ]|//){1,32}")
_OPERATIONS: dict[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}


@dataclass(frozen=True, slots=True)
class _Varying:
    """A dimension that varies."""

    place: Place
    name: str
    """Name, unique if the file gives none."""
    low: int
    high: int | None

    def fits(self, size: int | None) -> bool:
        return size is not None and size >= self.low and (self.high is None or size <= self.high)


def chosen_sizes(inputs: Sequence[ReadTensor], preferred: int) -> dict[Place, int]:
    """Returns a size for each dimension that varies, the batch included.

    Args:
        inputs: inputs in order.
        preferred: size of a name that no limit and no other size excludes.
    """
    varying = _varying(inputs)
    values: Values = {}
    for name in _names(varying):
        users = [one for one in varying if name in _words(one.name)]
        tried = (preferred, *range(1, MAX_SEARCHED))
        values[name] = next(
            (size for size in tried if _all_fit(users, {**values, name: size})), preferred
        )
    found = {one.place: _size(one.name, values) for one in varying}
    return {one.place: one.low if (size := found[one.place]) is None else size for one in varying}


def changed_sizes(
    inputs: Sequence[ReadTensor], sizes: Mapping[Place, int], change: Callable[[int], int]
) -> dict[Place, int] | None:
    """Returns other sizes of the dimensions that vary, without the batch.

    Args:
        inputs: inputs in order.
        sizes: sizes that fit, of all dimensions that vary.
        change: returns the changed size of a name.

    Returns:
        Sizes within the limits; None if a computed size would be outside, or none changes.
    """
    axes = batch_axes(inputs)
    varying = _varying(inputs)
    values = _solved(varying, sizes)
    fixed = {one.name for one in varying if one.place[1] == axes[one.place[0]]}
    changed = dict(values)
    for name in set(values) - fixed:
        users = [one for one in varying if one.name == name]
        low = max((one.low for one in users), default=1)
        highs = [one.high for one in users if one.high is not None]
        other = max(change(values[name]), low)
        if other == values[name] == low:
            other += 1
        changed[name] = min([other, *highs])
    found = {one.place: _size(one.name, changed) for one in varying if one.name not in fixed}
    if not all(one.fits(found[one.place]) for one in varying if one.place in found):
        return None
    new = {place: size for place, size in found.items() if size is not None}
    return new if any(size != sizes[place] for place, size in new.items()) else None


def dependent_names(inputs: Sequence[ReadTensor]) -> set[str]:
    """Returns the names of dimensions that do not vary by themselves.

    They occur several times, are computed from others, or others are computed from them.
    """
    names = [one.name for one in _varying(inputs)]
    computed = {name for name in names if _words(name) != {name}}
    sources = set().union(*map(_words, computed))
    return {n for n in names if names.count(n) > 1 or n in computed or n in sources}


def _varying(inputs: Sequence[ReadTensor]) -> list[_Varying]:
    return [
        _Varying(
            (tensor.name, axis),
            f"{tensor.name}[{axis}]" if name == UNNAMED else name,
            *tensor.ranges.get(axis, (1, None)),
        )
        for tensor in inputs
        for axis, name in enumerate(tensor.dims)
        if isinstance(name, str)
    ]


def _solved(varying: Sequence[_Varying], sizes: Mapping[Place, int]) -> Values:
    """Returns the values of the names from sizes that fit."""
    values = {one.name: sizes[one.place] for one in varying if _words(one.name) == {one.name}}
    for one in varying:
        unknown = _words(one.name) - set(values)
        if len(unknown) == 1 and one.name not in values:
            (name,) = unknown
            size = sizes[one.place]
            for value in range(1, min(2 * size + 64, 2**20)):
                if _size(one.name, {**values, name: value}) == size:
                    values[name] = value
                    break
    for one in varying:  # what cannot be solved is a name like any other
        if _size(one.name, values) != sizes[one.place]:
            values[one.name] = sizes[one.place]
    return values


def _names(varying: Iterable[_Varying]) -> list[str]:
    """Returns the names that sizes are computed from, in order."""
    return list(dict.fromkeys(name for one in varying for name in sorted(_words(one.name))))


def _all_fit(varying: Iterable[_Varying], values: Values) -> bool:
    """Returns True if each size is within its limits; one of unknown names is not looked at."""
    return all(
        one.fits(_size(one.name, values)) for one in varying if _words(one.name) <= set(values)
    )


def _words(name: str) -> set[str]:
    """Returns the names in an expression; of another name, itself."""
    tree = _tree(name)
    return {name} if tree is None else {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}


def _size(name: str, values: Values) -> int | None:
    """Returns the size that a name stands for; None if a part of it is unknown."""
    if name in values:
        return values[name]
    tree = _tree(name)
    return None if tree is None else _value(tree, values)


def _tree(name: str) -> ast.expr | None:
    """Returns an expression of several names and numbers; None for any other name."""
    if not _EXPRESSION.fullmatch(name) or not re.search(r"[-+*/(]", name):
        return None
    try:
        tree = ast.parse(name.strip(), mode="eval").body
    except SyntaxError:
        return None
    known = (ast.BinOp, ast.Name, ast.Constant, ast.operator, ast.expr_context)
    if not all(isinstance(node, known) for node in ast.walk(tree)):
        return None
    has_names = any(isinstance(node, ast.Name) for node in ast.walk(tree))
    return tree if has_names and isinstance(tree, ast.BinOp) else None


def _value(node: ast.expr, values: Values) -> int | None:
    if isinstance(node, ast.Constant):
        return int(node.value)  # type: ignore[arg-type]
    if isinstance(node, ast.Name):
        return values.get(node.id)
    assert isinstance(node, ast.BinOp)
    left, right = _value(node.left, values), _value(node.right, values)
    operation = _OPERATIONS.get(type(node.op))
    if left is None or right is None or operation is None:
        return None
    return None if operation is operator.floordiv and right == 0 else operation(left, right)
