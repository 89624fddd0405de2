"""Imports the code that a recipe names, and calls it with the recipe's arguments.

In: `path/file.py:Name`, from the working directory, or `package.module:Name`. Out: the object.
That code needs no import from this project. Recipes are trusted: naming a target executes it.
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

from flambeau.protocol.strict import nearest_name
from model_store.host.memory_limit import tells_of_memory
from training.errors import MemoryRunOutError, TargetError, TrainingError
from training.recipe.user_code import failure_in_words, headline

NAMES_TOLD = 20
"""Most files or modules that a message lists if none of them is a close match."""
TARGET_FORM = "path/file.py:Name or package.module:Name"


def split_target(target: str) -> tuple[str, str] | None:
    """Splits a target into its place (a path that ends in `.py`, or a full module name) and name.

    The only parser of targets: authorisation and execution of a target read it the same way.

    Returns:
        None if the text is not a target.
    """
    place, _, name = target.rpartition(":")
    fits = place.endswith(".py") or all(part.isidentifier() for part in place.split("."))
    return (place, name) if fits and name.isidentifier() else None


def load_target(target: str, key: str) -> Callable[..., Any]:
    """Returns the function or class that a recipe names.

    Args:
        target: `path/file.py:Name` or `package.module:Name`.
        key: recipe key of the target, for messages, such as `model.target`.

    Raises:
        TargetError: the file, module or name does not exist, or the object is not callable.
    """
    parts = split_target(target)
    if parts is None:
        raise TargetError(f"{key} is {target!r}; write {TARGET_FORM}")
    place, name = parts
    if str(Path.cwd()) not in sys.path:
        # Appended last, so that a project's own packages are found but shadow no installed ones.
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
    """Calls a target with keyword arguments, after checking that it accepts them.

    Args:
        target: see `load_target`.
        args: keyword arguments.
        key: part of the recipe, such as `model`.
        offered: optional keyword arguments, passed if the target has such parameters; `args` win.

    Raises:
        TargetError: the target is not found, an argument is unknown or missing, or it raised.
    """
    function = load_target(target, f"{key}.target")
    given = _checked_arguments(function, args, target, key, offered)
    return call_named(function, f"{key}.target {target}", **given)


def call_named(function: Callable[..., Any], named: str, /, *args: Any, **kwargs: Any) -> Any:
    """Calls the recipe's own code, and reports its exceptions with the source lines involved.

    Args:
        function: callable to run.
        named: description for messages: `model.target nets.py:Net`.
        args: positional arguments.
        kwargs: keyword arguments.

    Raises:
        TrainingError: the code raised it; this project's functions do.
        MemoryRunOutError: memory ran out.
        TargetError: the code raised anything else.
    """
    try:
        return function(*args, **kwargs)
    except TrainingError:
        raise
    except (Exception, SystemExit) as error:  # user code may raise anything
        raise target_failure(f"{named} fails", error) from error


def target_failure(what: str, error: BaseException) -> TrainingError:
    """Converts an exception of the recipe's own code to an error with a readable message.

    Args:
        what: description of the failure, such as `model.target nets.py:Net fails`.
        error: exception that the code raised.
    """
    if isinstance(error, MemoryError) or tells_of_memory(str(error)):
        return MemoryRunOutError(f"{what}: memory ran out ({headline(error)})")
    return TargetError(f"{what}: {failure_in_words(error)}")


def check_target(
    target: str, args: Mapping[str, Any], key: str, offered: Mapping[str, Any] | None = None
) -> None:
    """Checks that a target exists and accepts its arguments, without calling it.

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
    """Returns the arguments that the target is called with."""
    try:
        signature = inspect.signature(function)
    except ValueError:  # C functions may have no signature
        return {**(offered or {}), **args}
    return fitting_arguments(signature, args, target, key, offered)


def fitting_arguments(
    signature: inspect.Signature,
    args: Mapping[str, Any],
    target: str,
    key: str,
    offered: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Returns the call arguments of a target: the recipe's, and the offered ones it accepts.

    Args:
        signature: signature of the target.
        args: arguments from the recipe.
        target: name of the target, for messages.
        key: part of the recipe, such as `model`.
        offered: see `call_target`.

    Raises:
        TargetError: the target does not accept one of `args`, or requires more.
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
    # The name distinguishes files of equal names, and lets torch find the module's source.
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
    except (Exception, SystemExit) as error:  # user code may raise anything
        del sys.modules[module_name]
        raise TargetError(
            f"{key}: {path} fails when imported: {failure_in_words(error)}"
        ) from error
    return module


def _named_module(place: str, key: str) -> ModuleType:
    try:
        return importlib.import_module(place)
    except (Exception, SystemExit) as error:  # user code may raise anything
        if missing := _missing_module(place, error):
            where = hidden_by(place) or (
                f"{_nearest_module(missing)}; packages are looked for in the environment and in "
                "the working directory"
            )
            what = f"{key}: cannot import {place!r}: no module {missing!r}"
            raise TargetError(f"{what}{where}") from error
        raise TargetError(f"{key}: cannot import {place!r}: {failure_in_words(error)}") from error


def hidden_by(place: str) -> str:
    """Returns a hint if another package shadows one in the working directory, otherwise "".

    Args:
        place: module or path part of a target.
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
    """Returns a hint with the nearest existing names for the first missing part of a path."""
    with contextlib.suppress(OSError):  # an unreadable folder
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
    """Returns the callable names of a module, only those of its own package if it has any."""
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
    """Returns the missing part of a module's name; None if code in the module fails."""
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    return missing if missing and f"{place}.".startswith(f"{missing}.") else None


def _nearest_module(missing: str) -> str:
    """Returns a hint with the names nearest to a missing module."""
    package, _, name = missing.rpartition(".")
    if not package:
        # Folders without `__init__.py` are packages too, but iter_modules does not list them.
        folders = [found.name for found in Path.cwd().iterdir() if found.is_dir()]
        return nearest_of_few(name, [*folders, *(found.name for found in pkgutil.iter_modules())])
    siblings = pkgutil.iter_modules(getattr(sys.modules.get(package), "__path__", []))
    return nearest_of_few(name, [found.name for found in siblings])


def nearest_of_few(name: str, known: Collection[str]) -> str:
    """Same as `nearest_name`, but "" if none is close and there are more than `NAMES_TOLD`."""
    near = difflib.get_close_matches(name, known, n=1)
    return nearest_name(name, near or known) if near or len(known) <= NAMES_TOLD else ""
