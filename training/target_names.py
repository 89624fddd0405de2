"""Misspelt targets of a recipe, found by reading source code, before torch is imported.

Importing a target takes seconds, since nearly all of them import torch. A name that no statement of
the module's source can have made is told at once. Whatever cannot be decided by reading is left to
`training.targets`, which imports it.
"""

import ast
import importlib.util
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from model_store.strict import nearest_name
from training.errors import TargetError
from training.recipe import Recipe
from training.targets import hidden_by, load_target, split_target

MAX_SOURCE_BYTES = 1024 * 1024
_DYNAMIC = re.compile(r"\bimport \*|\b__getattr__\b|\bglobals\(|\bexec\(|\bsetattr\(|\bvars\(")
"""What can give a module names that its source does not spell."""


def check_target_names(recipe: Recipe) -> None:
    """Checks each `target` of a recipe whose module's source can be read.

    Raises:
        TargetError: a file or package is not there, or a module's source has no such name.
    """
    for key, target in _targets(recipe.model_dump(), ""):
        parts = split_target(target)
        if parts is not None and _is_missing(parts[0]):
            load_target(target, key)  # tells what is near, and runs nothing
        source = _source(parts[0]) if parts is not None else None
        if parts is None or source is None or _DYNAMIC.search(source):
            continue
        place, name = parts
        try:
            names = set(_top_level_names(ast.parse(source).body))
        except (SyntaxError, ValueError, RecursionError):  # told in words where it is imported
            continue
        if name not in names:
            public = [known for known in names if not known.startswith("_")]
            near = nearest_name(name, public)
            raise TargetError(f"{key}: {place} has no {name!r}{near}{hidden_by(place)}")


def _targets(value: Any, key: str) -> Iterator[tuple[str, str]]:
    """Every `target` with its key in the recipe."""
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
    """Whether there is no such file, or no package that a module could be of."""
    if place.endswith(".py"):
        return not Path(place).is_file()
    package, _, rest = place.partition(".")
    # Parts of our own package can be looked for without running the code of others.
    is_ours = package == "training" and "." not in rest
    if not is_ours and (Path(package).exists() or Path(f"{package}.py").exists()):
        return False
    try:
        return importlib.util.find_spec(place if is_ours else package) is None
    except (ImportError, ValueError):
        return False


def _source(place: str) -> str | None:
    """The source of a file or of a module of ours; None if it cannot be known without importing."""
    path = Path(place)
    if not place.endswith(".py"):
        # Packages of others may run anything when their parts are looked for.
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


def _top_level_names(statements: list[ast.stmt]) -> Iterator[str]:
    """Names that these statements may bind, those within `if`, `try` and loops included."""
    for statement in statements:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
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
