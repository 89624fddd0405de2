"""Locates a user's function, so that another process can load it from its file.

In: a function in the caller's process. Out: `path/file.py:name`, as recipes and gates name targets.
"""

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flambeau.publishing.errors import PublishError


def location_of(function: Callable[..., Any], where: str) -> str:
    """Returns the absolute path and the name of a function.

    Args:
        function: a function or class at the top of a file.
        where: its place in the call, for messages.

    Raises:
        PublishError: it has no file or no name there: a lambda, a method, a function
            within another, in a notebook's cell or typed at a prompt.
    """
    name = getattr(function, "__qualname__", type(function).__name__)
    try:
        file = inspect.getsourcefile(function)
    except TypeError:
        file = None
    if file is None or not name.isidentifier() or not file.endswith(".py"):
        raise PublishError(
            f"{where}: '{name}' is not a function at the top of a file, so another process cannot "
            "load it; move it to a file, and give the function or its location, file.py:name"
        )
    if not (path := Path(file).absolute()).is_file():
        raise PublishError(
            f"{where}: there is no file {file} that defines '{name}'; move it to a file"
        )
    return f"{path}:{name}"


def located(value: Any, where: str) -> Any:
    """Returns a value with its functions, also in mappings, replaced by their locations.

    Args:
        value: what a caller gave, such as `gates`.
        where: its place in the call, for messages.

    Raises:
        PublishError: see `location_of`.
    """
    if isinstance(value, Mapping):
        return {key: located(inner, f"{where}[{key!r}]") for key, inner in value.items()}
    return location_of(value, where) if callable(value) else value
