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

from model_store.host.memory_limit import tells_of_memory
from model_store.strict import nearest_name
from training.errors import MemoryRunOutError, TargetError, TrainingError
from training.recipe.user_code import failure_in_words, headline

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
        near = nearest_of_few(name, _classes_and_functions(module))
        raise TargetError(f"{key}: {place} has no {name!r}{near}{hidden_by(place)}")
    found = getattr(module, name)
    if not callable(found):
        raise TargetError(f"{key}: {target} is a {type(found).__name__}; name a class or function")
    return found  # type: ignore[no-any-return]


def call_target(
    target: str, args: Mapping[str, Any], key: str, offered: Mapping[str, Any] | None = None
) -> Any:
    """Calls a target with keyword arguments, after checking that it takes them.

    Args:
        target: see `load_target`.
        args: keyword arguments.
        key: the part of the recipe, such as `model`.
        offered: keyword arguments for a target that has parameters of these names; `args` go first.

    Raises:
        TargetError: the target cannot be found, an argument is unknown or missing, or it raised.
    """
    function = load_target(target, f"{key}.target")
    given = _checked_arguments(function, args, target, key, offered)
    return call_named(function, f"{key}.target {target}", **given)


def call_named(function: Callable[..., Any], named: str, /, *args: Any, **kwargs: Any) -> Any:
    """Calls code of the recipe's own, and tells what it raises with its own lines.

    Args:
        function: that code.
        named: what it is in the recipe, for messages: `model.target nets.py:Net`.
        args: its arguments.
        kwargs: its arguments by name.

    Raises:
        TrainingError: as the code raised it; functions of ours do.
        MemoryRunOutError: it asked for more memory than there is.
        TargetError: it raised anything else.
    """
    try:
        return function(*args, **kwargs)
    except TrainingError:
        raise
    except (Exception, SystemExit) as error:  # the code is the user's: it may raise anything
        raise target_failure(f"{named} fails", error) from error


def target_failure(what: str, error: BaseException) -> TrainingError:
    """The error that says in words what code of the recipe's own has raised.

    Args:
        what: failed, such as `model.target nets.py:Net fails`.
        error: what it raised.
    """
    if isinstance(error, MemoryError) or tells_of_memory(str(error)):
        return MemoryRunOutError(f"{what}: memory ran out ({headline(error)})")
    return TargetError(f"{what}: {failure_in_words(error)}")


def check_target(
    target: str, args: Mapping[str, Any], key: str, offered: Mapping[str, Any] | None = None
) -> None:
    """Checks that a target is there and takes its arguments, without calling it.

    Raises:
        TargetError: see `call_target`.
    """
    _checked_arguments(load_target(target, f"{key}.target"), args, target, key, offered)


def _checked_arguments(
    function: Callable[..., Any],
    args: Mapping[str, Any],
    target: str,
    key: str,
    offered: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """The arguments that a target is called with."""
    try:
        signature = inspect.signature(function)
    except ValueError:  # things written in C may not say what they take
        return {**(offered or {}), **args}
    return fitting_arguments(signature, args, target, key, offered)


def fitting_arguments(
    signature: inspect.Signature,
    args: Mapping[str, Any],
    target: str,
    key: str,
    offered: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The arguments that a target is called with: the recipe's, and what it takes of the offered.

    Args:
        signature: of the target.
        args: the recipe's.
        target: its name, for messages.
        key: the part of the recipe, such as `model`.
        offered: see `call_target`.

    Raises:
        TargetError: it does not take one of `args`, or needs more.
    """
    parameters = signature.parameters.values()
    known = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    if not takes_any:
        for name in args:
            if name not in known:
                raise TargetError(
                    f"unknown key '{name}' in '{key}.args': {target} does not take it"
                    f"{nearest_name(name, known)}"
                )
    taken = {n: value for n, value in (offered or {}).items() if takes_any or n in known}
    try:
        signature.bind(**{**taken, **args})
    except TypeError as error:
        raise TargetError(f"{key}.args do not fit {target}: {error}") from error
    return {**taken, **args}


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
    except (Exception, SystemExit) as error:  # the file is the user's: it may raise anything
        del sys.modules[module_name]
        raise TargetError(
            f"{key}: {path} fails when imported: {failure_in_words(error)}"
        ) from error
    return module


def _named_module(place: str, key: str) -> ModuleType:
    try:
        return importlib.import_module(place)
    except (Exception, SystemExit) as error:  # the module is the user's: it may raise anything
        if missing := _missing_module(place, error):
            where = hidden_by(place) or (
                f"{_nearest_module(missing)}; packages are looked for in the environment and in "
                "the working directory"
            )
            what = f"{key}: cannot import {place!r}: no module {missing!r}"
            raise TargetError(f"{what}{where}") from error
        raise TargetError(f"{key}: cannot import {place!r}: {failure_in_words(error)}") from error


def hidden_by(place: str) -> str:
    """That another package hides the one of this name in the working directory; empty if none does.

    Args:
        place: of a target.
    """
    top = place.partition(".")[0]
    here = next((p for p in (Path.cwd() / top, Path.cwd() / f"{top}.py") if p.exists()), None)
    found = sys.modules.get(top)
    if here is None or found is None or place.endswith(".py"):
        return ""
    places = [*getattr(found, "__path__", []), *filter(None, [getattr(found, "__file__", None)])]
    if not places or any(Path(path).is_relative_to(Path.cwd()) for path in places):
        return ""
    ours = Path(places[0]).is_relative_to(Path(__file__).parents[2])
    owner = "flambeau has a package" if ours else "the environment has a package"
    file = f"{place.replace('.', '/')}.py"
    return (
        f"; {owner} of the name '{top}' ({places[0]}), which hides yours ({here}): name the file "
        f"instead ({file}:Name), or rename your package"
    )


def _nearest_file(path: Path) -> str:
    """What is nearest to the first part of a path that is not there, in words."""
    with contextlib.suppress(OSError):  # a folder that may not be read
        part = path
        while not part.parent.is_dir():
            part = part.parent
        return nearest_of_few(
            part.name,
            [
                found.name
                for found in part.parent.iterdir()
                if (found.suffix == ".py" if part == path else found.is_dir())
            ],
        )
    return ""


def _classes_and_functions(module: ModuleType) -> list[str]:
    """Names of what a target may be: what the module's own package has made, if it has any."""
    found = {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("_") and callable(value)
    }
    package = module.__name__.partition(".")[0]
    own = [
        name
        for name, value in found.items()
        if str(getattr(value, "__module__", "")).partition(".")[0] == package
    ]
    return own or list(found)


def _missing_module(place: str, error: BaseException) -> str | None:
    """The part of a module's name that is not there; None if something in the module fails."""
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    return missing if missing and f"{place}.".startswith(f"{missing}.") else None


def _nearest_module(missing: str) -> str:
    """What is nearest to a module that is not there, in words."""
    package, _, name = missing.rpartition(".")
    if not package:
        # Folders without `__init__.py` are packages too, and not listed as such.
        folders = [found.name for found in Path.cwd().iterdir() if found.is_dir()]
        return nearest_of_few(name, [*folders, *(found.name for found in pkgutil.iter_modules())])
    siblings = pkgutil.iter_modules(getattr(sys.modules.get(package), "__path__", []))
    return nearest_of_few(name, [found.name for found in siblings])


def nearest_of_few(name: str, known: Collection[str]) -> str:
    """As `nearest_name`; nothing, where none is near and there are more than `NAMES_TOLD`."""
    near = difflib.get_close_matches(name, known, n=1)
    return nearest_name(name, near or known) if near or len(known) <= NAMES_TOLD else ""
