"""Finds misspelt targets of a recipe, and wrong arguments, by parsing source code.

Importing a target takes seconds, since nearly all import torch. This check runs first: it reports a
name that no statement of the module's source can bind, and an argument that the declared parameters
do not accept. Cases that parsing cannot decide are left to `targets.py`, which imports the target.
"""

import ast
import importlib.util
import inspect
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from training.errors import TargetError
from training.recipe.recipe import Recipe
from training.recipe.targets import (
    fitting_arguments,
    hidden_by,
    load_target,
    nearest_of_few,
    split_target,
)

MAX_SOURCE_BYTES = 1024 * 1024
_DYNAMIC = re.compile(r"\bimport \*|\b__getattr__\b|\bglobals\(|\bexec\(|\bsetattr\(|\bvars\(")
"""Constructs that can bind module names that the source does not spell out."""
_DEFINITIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_PLAIN_BASES = ("nn.Module", "torch.nn.Module", "Module", "object")
"""Bases of classes that accept the arguments of their `__init__`; others may have a metaclass."""


def check_target_names(recipe: Recipe) -> None:
    """Checks each `target` of a recipe whose module's source can be read.

    Raises:
        TargetError: a file or package is missing, a module's source has no such name, or the named
            object does not accept its arguments.
    """
    for key, target in _targets(recipe.model_dump(), ""):
        parts = split_target(target)
        if parts is not None and _is_missing(parts[0]):
            load_target(target, key)  # raises with the nearest names, and runs nothing
        body = _statements(parts[0]) if parts is not None else None
        if parts is None or body is None:
            continue
        place, name = parts
        names = set(_top_level_names(body))
        if name not in names:
            defined = [known.name for known in body if isinstance(known, _DEFINITIONS)]
            public = [known for known in defined or names if not known.startswith("_")]
            near = nearest_of_few(name, public)
            raise TargetError(f"{key}: {place} has no {name!r}{near}{hidden_by(place)}")
    check_target_arguments(recipe)


def check_target_arguments(recipe: Recipe) -> None:
    """Checks `model.args` and `data.args` if the parameters can be read from the source.

    Raises:
        TargetError: the target does not accept an argument, or requires more.
    """
    offered: dict[str, Any] = {"seed": recipe.seed}
    for key, target, args, more in (
        ("model", recipe.model.target, recipe.model.args, None),
        ("data", recipe.data.target, recipe.data.args, offered),
    ):
        parts = None if target is None else split_target(target)
        body = None if parts is None else _statements(parts[0])
        if target is None or parts is None or body is None:
            continue
        if (signature := _signature(body, parts[1])) is not None:
            fitting_arguments(signature, args, target, key, more)


def _targets(value: Any, key: str) -> Iterator[tuple[str, str]]:
    """Yields every `target` with its key in the recipe."""
    items: Iterable[tuple[str, Any]] = value.items() if isinstance(value, dict) else ()
    if isinstance(value, list | tuple):
        items = ((str(index), item) for index, item in enumerate(value))
    for name, item in items:
        inner = f"{key}.{name}" if key else str(name)
        if name == "target" and isinstance(item, str):
            yield inner, item
        else:
            yield from _targets(item, inner)


def _is_missing(place: str) -> bool:
    """Checks that the file, or the package of the module, does not exist."""
    if place.endswith(".py"):
        return not Path(place).is_file()
    package, _, rest = place.partition(".")
    # Modules of this package can be located without running third-party code.
    is_ours = package == "training" and "." not in rest
    if not is_ours and (Path(package).exists() or Path(f"{package}.py").exists()):
        return False
    try:
        return importlib.util.find_spec(place if is_ours else package) is None
    except (ImportError, ValueError):
        return False


def _source(place: str) -> str | None:
    """Reads the source of a file or of a `training` module; None if that would need an import."""
    path = Path(place)
    if not place.endswith(".py"):
        # Locating submodules of other packages may run arbitrary code.
        if place.partition(".")[0] != "training":
            return None
        try:
            spec = importlib.util.find_spec(place)
        except ImportError:
            return None
        if spec is None or spec.origin is None:
            return None
        path = Path(spec.origin)
    try:
        if path.suffix != ".py" or path.stat().st_size > MAX_SOURCE_BYTES:
            return None
        return path.read_text("utf-8")
    except (OSError, UnicodeError):
        return None


def _statements(place: str) -> list[ast.stmt] | None:
    """Parses a file or a `training` module; None if its statements may not show all its names."""
    source = _source(place)
    if source is None or _DYNAMIC.search(source):
        return None
    try:
        return ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError):  # reported when the target is imported
        return None


def _signature(body: list[ast.stmt], name: str) -> inspect.Signature | None:
    """Returns the parameters of a function or class; None if the source does not settle them."""
    found = _only(body, name)
    if isinstance(found, ast.ClassDef):
        plain = all(ast.unparse(base) in _PLAIN_BASES for base in found.bases)
        if not plain or found.keywords or "__new__" in _top_level_names(found.body):
            return None
        method = _only(found.body, "__init__")
        return None if not isinstance(method, ast.FunctionDef) else _parameters(method.args, 1)
    return None if found is None else _parameters(found.args, 0)


def _only(
    body: list[ast.stmt], name: str
) -> ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | None:
    """Returns the only definition of a name; None if it is bound twice or has decorators."""
    if list(_top_level_names(body)).count(name) != 1:
        return None
    found = [node for node in body if isinstance(node, _DEFINITIONS) and node.name == name]
    return found[0] if found and not found[0].decorator_list else None


def _parameters(arguments: ast.arguments, bound: int) -> inspect.Signature:
    """Converts the parameters of a definition to a signature.

    Args:
        arguments: parsed parameters.
        bound: number of leading parameters that are already bound.
    """
    kinds = inspect.Parameter
    written = [*arguments.posonlyargs, *arguments.args]
    needed, only = len(written) - len(arguments.defaults), len(arguments.posonlyargs)
    found = [
        kinds(
            one.arg,
            kinds.POSITIONAL_ONLY if place < only else kinds.POSITIONAL_OR_KEYWORD,
            default=kinds.empty if place < needed else ...,
        )
        for place, one in enumerate(written)
    ][bound:]
    if arguments.vararg is not None:
        found.append(kinds(arguments.vararg.arg, kinds.VAR_POSITIONAL))
    for one, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        empty = kinds.empty if default is None else ...
        found.append(kinds(one.arg, kinds.KEYWORD_ONLY, default=empty))
    if arguments.kwarg is not None:
        found.append(kinds(arguments.kwarg.arg, kinds.VAR_KEYWORD))
    return inspect.Signature(found)


def _top_level_names(statements: list[ast.stmt]) -> Iterator[str]:
    """Yields names that these statements may bind, also within `if`, `try` and loops."""
    for statement in statements:
        if isinstance(statement, _DEFINITIONS):
            yield statement.name
            continue
        if isinstance(statement, ast.Import | ast.ImportFrom):
            for alias in statement.names:
                yield alias.asname or alias.name.partition(".")[0]
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id
            elif isinstance(node, ast.stmt) and node is not statement:
                yield from _top_level_names([node])
