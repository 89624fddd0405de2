"""Finds the code a recipe names, and calls it with the recipe's arguments.

In: `path/file.py:Name`, from the working directory, or `package.module:Name`. Out: the object.
The code imports nothing of ours. A recipe is trusted: naming a target runs it.
"""

import contextlib
import difflib
import hashlib
import importlib
import importlib.util
import inspect
import pkgutil
import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from model_store.strict import nearest_name
from training.errors import TargetError

NAMES_TOLD = 20
"""Most files or modules that a message lists, where none of them is near."""
TARGET_FORM = "path/file.py:Name or package.module:Name"


def split_target(target: str) -> tuple[str, str] | None:
    """The place and the name of a target: a path that ends in `.py`, or a module by its full name.

    The only reading of targets there is: who decides whether one may run reads it as who runs it.

    Returns:
        None for a text that is no target.
    """
    place, _, name = target.rpartition(":")
    fits = place.endswith(".py") or all(part.isidentifier() for part in place.split("."))
    return (place, name) if fits and name.isidentifier() else None


def load_target(target: str, key: str) -> Callable[..., Any]:
    """The function or class a recipe names.

    Args:
        target: `path/file.py:Name` or `package.module:Name`.
        key: where the recipe says so, for messages, such as `model.target`.

    Raises:
        TargetError: no such file, module or name, or it cannot be called.
    """
    parts = split_target(target)
    if parts is None:
        raise TargetError(f"{key} is {target!r}; write {TARGET_FORM}")
    place, name = parts
    if str(Path.cwd()) not in sys.path:
        # At the end, so that a project's own packages are found and hide no installed ones.
        sys.path.append(str(Path.cwd()))
    module = _file_module(place, key) if place.endswith(".py") else _named_module(place, key)
    if not hasattr(module, name):
        public = [known for known in vars(module) if not known.startswith("_")]
        raise TargetError(f"{key}: {place} has no {name!r}{nearest_name(name, public)}")
    found = getattr(module, name)
    if not callable(found):
        raise TargetError(f"{key}: {target} is a {type(found).__name__}; name a class or function")
    return found  # type: ignore[no-any-return]


def call_target(target: str, args: Mapping[str, Any], key: str) -> Any:
    """Calls a target with keyword arguments, after checking that it takes them.

    Args:
        target: see `load_target`.
        args: keyword arguments.
        key: the part of the recipe, such as `model`.

    Raises:
        TargetError: the target cannot be found, or an argument is unknown or missing.
    """
    function = load_target(target, f"{key}.target")
    # Things written in C may not say what they take.
    with contextlib.suppress(ValueError):
        _check_arguments(inspect.signature(function), args, target, key)
    return function(**args)


def check_target(target: str, args: Mapping[str, Any], key: str) -> None:
    """Checks that a target is there and takes its arguments, without calling it.

    Raises:
        TargetError: see `call_target`.
    """
    with contextlib.suppress(ValueError):
        _check_arguments(inspect.signature(load_target(target, f"{key}.target")), args, target, key)


def _check_arguments(
    signature: inspect.Signature, args: Mapping[str, Any], target: str, key: str
) -> None:
    parameters = signature.parameters.values()
    known = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        for name in args:
            if name not in known:
                raise TargetError(
                    f"unknown key '{name}' in '{key}.args': {target} does not take it"
                    f"{nearest_name(name, known)}"
                )
    try:
        signature.bind(**args)
    except TypeError as error:
        raise TargetError(f"{key}.args do not fit {target}: {error}") from error


def _file_module(place: str, key: str) -> ModuleType:
    path = Path(place).absolute()
    if not path.is_file():
        raise TargetError(
            f"{key}: there is no file {path}{_nearest_file(path)}; paths start at the working "
            "directory"
        )
    # The name keeps equal file names apart, and lets torch find the module's source by name.
    module_name = f"{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    if module_name in sys.modules:
        return sys.modules[module_name]
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None, "a path ending in .py has a spec"
    assert spec.loader is not None, "and a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # the file is the user's: it may raise anything
        del sys.modules[module_name]
        raise TargetError(f"{key}: {path} fails when imported: {error!r}") from error
    return module


def _named_module(place: str, key: str) -> ModuleType:
    try:
        return importlib.import_module(place)
    except Exception as error:  # the module is the user's: it may raise anything
        raise TargetError(
            f"{key}: cannot import {place!r}: {error!r}{_nearest_module(place, error)}; packages "
            "are looked for in the environment and in the working directory"
        ) from error


def _nearest_file(path: Path) -> str:
    """What is nearest to the first part of a path that is not there, in words."""
    with contextlib.suppress(OSError):  # a folder that may not be read
        part = path
        while not part.parent.is_dir():
            part = part.parent
        return _nearest(
            part.name,
            [
                found.name
                for found in part.parent.iterdir()
                if (found.suffix == ".py" if part == path else found.is_dir())
            ],
        )
    return ""


def _nearest_module(place: str, error: Exception) -> str:
    """What is nearest to the part of a module's name that is not there, in words."""
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing is None or not f"{place}.".startswith(f"{missing}."):
        return ""  # the module is there, and something in it fails
    package, _, name = missing.rpartition(".")
    if not package:
        # Folders without `__init__.py` are packages too, and not listed as such.
        folders = [found.name for found in Path.cwd().iterdir() if found.is_dir()]
        return _nearest(name, [*folders, *(found.name for found in pkgutil.iter_modules())])
    siblings = pkgutil.iter_modules(getattr(sys.modules.get(package), "__path__", []))
    return _nearest(name, [found.name for found in siblings])


def _nearest(name: str, known: Collection[str]) -> str:
    """As `nearest_name`; nothing, where none is near and there are too many to tell."""
    near = difflib.get_close_matches(name, known, n=1)
    return nearest_name(name, near or known) if near or len(known) <= NAMES_TOLD else ""
