"""Finds the handler of an archive: a class, a function, or one of TorchServe's own.

In: the archive's folder and the handler's name. Out: the function that answers a batch, and the one
that initializes. The code is the archive's: it may do anything.
Source: the rules by which TorchServe 0.12 looks for handlers.
"""

import ast
import asyncio
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from model_store.archives.archive_files import PACKAGES
from model_store.archives.module_names import check_module_names
from model_store.errors import ModelArchiveError
from model_store.host.install_advice import install_command, package_command
from model_store.python_models.open_model import PythonModelError

Entry = Callable[[Any, Any], Any]
TORCHSERVE = "ts"
"""Package of TorchServe's handlers."""


class HandlerError(PythonModelError):
    """The handler cannot be found, does not initialize, or fails."""


@dataclass(frozen=True, slots=True)
class Handler:
    """A handler."""

    name: str
    answer: Entry
    """Answers a batch: the rows and the context."""
    initialize: Callable[[Any], Any]
    """Takes the context, once, before any batch."""


def open_handler(folder: Path, name: str, envelope: str | None = None) -> Handler:
    """Opens the handler of an archive.

    Args:
        folder: folder of the archive's files, whose modules become importable.
        name: `FILE.py`, `FILE.py:FUNCTION`, or the name of one of TorchServe's handlers.
        envelope: name of a request envelope of TorchServe's; None for none.

    Raises:
        HandlerError: it is missing, does not run, or is neither one class nor a function.
    """
    try:
        check_module_names(folder)
    except ModelArchiveError as error:
        raise HandlerError(str(error)) from error
    # Before all else, as TorchServe's PYTHONPATH.
    sys.path[:0] = [str(folder), str(folder / PACKAGES)]
    file, _, function = name.partition(":")
    stem = file.rpartition("/")[2].removesuffix(".py")
    path = folder / f"{stem}.py"
    try:
        if path.is_file():
            module = _module_of(path)
        else:
            module = importlib.import_module(f"{TORCHSERVE}.torch_handler.{stem}")
        answer, initialize = _entry_of(module, function or "handle", name)
        if inspect.isasyncgenfunction(answer):
            raise HandlerError(
                f"'{function or 'handle'}' of the handler '{name}' is an asynchronous generator; "
                "write one that returns a list"
            )
        if inspect.iscoroutinefunction(answer) or inspect.iscoroutinefunction(initialize):
            loop = asyncio.new_event_loop()
            answer, initialize = _awaited(answer, loop), _awaited(initialize, loop)
        if envelope:
            answer = _in_envelope(answer, envelope)
    except HandlerError:
        raise
    except ModuleNotFoundError as error:
        own = f"{TORCHSERVE}.torch_handler.{stem}"
        absent = _absent(path, "", set()) if path.is_file() else _absent_of(own, set())
        raise HandlerError(_missing(name, error, absent)) from error
    except BaseException as error:  # it may even call `sys.exit`
        raise HandlerError(f"the handler '{name}' does not load: {described(error, folder)}") from (
            error
        )
    return Handler(name, answer, initialize)


def described(error: BaseException, folder: Path) -> str:
    """Describes an exception in one line, with its place in the archive."""
    text = " ".join(str(error).split())
    raised = f"{type(error).__name__}: {text}" if text else type(error).__name__
    place, trace = "", error.__traceback__
    while trace is not None:
        path = Path(trace.tb_frame.f_code.co_filename)
        if path.is_relative_to(folder):
            place = f" ({path.relative_to(folder)}, line {trace.tb_lineno})"
        trace = trace.tb_next
    return raised + place


def _module_of(path: Path) -> ModuleType:
    """Runs a file as the module of its name, unless another has that name."""
    name = path.stem if path.stem not in sys.modules else f"{path.stem}_handler"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _entry_of(module: ModuleType, function: str, name: str) -> tuple[Entry, Callable[[Any], Any]]:
    if hasattr(module, function):
        entry: Entry = getattr(module, function)
        return entry, partial(entry, None)
    classes = _classes_of(module)
    if len(classes) != 1:
        found = ", ".join(one.__name__ for one in classes) or "none"
        raise HandlerError(
            f"the handler '{name}' has no function '{function}', and these classes: {found}; it "
            "must have the function, or exactly one class"
        )
    made = classes[0]()
    for method in ("handle", "initialize"):
        if not callable(getattr(made, method, None)):
            raise HandlerError(
                f"the class {classes[0].__name__} of the handler '{name}' has no method "
                f"'{method}'; write one, or inherit it from BaseHandler"
            )
    return made.handle, made.initialize


def _awaited(function: Callable[..., Any], loop: asyncio.AbstractEventLoop) -> Callable[..., Any]:
    """Returns a function that runs a coroutine function to its end; others as they are."""
    if not inspect.iscoroutinefunction(function):
        return function
    return lambda *arguments: loop.run_until_complete(function(*arguments))


def _classes_of(module: ModuleType) -> list[Any]:
    """Returns the classes that a module defines."""
    found = inspect.getmembers(module, inspect.isclass)
    return [one for _, one in found if one.__module__ == module.__name__]


def _in_envelope(answer: Entry, envelope: str) -> Entry:
    module = importlib.import_module(f"{TORCHSERVE}.torch_handler.request_envelope.{envelope}")
    wrapped: Entry = _classes_of(module)[0](answer).handle
    return wrapped


def _absent(source: Path, within: str, seen: set[str]) -> set[str]:
    """Returns the packages that a file imports and that are not installed.

    Those of TorchServe's modules that it imports count, too; imports in `try` and `if` do not.

    Args:
        source: the file.
        within: package of its relative imports; empty for none.
        seen: modules of TorchServe's that were read.
    """
    modules: list[str] = []
    for node in ast.parse(source.read_bytes()).body:
        if isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and (within or not node.level):
            named = "." * node.level + node.module
            modules.append(importlib.util.resolve_name(named, within))
    found: set[str] = set()
    for module in modules:
        package = module.partition(".")[0]
        if importlib.util.find_spec(package) is None:
            found.add(package)
        elif package == TORCHSERVE:
            found |= _absent_of(module, seen)
    return found


def _absent_of(module: str, seen: set[str]) -> set[str]:
    """Returns the packages that a module of TorchServe's imports and that are not installed."""
    if module in seen:
        return set()
    seen.add(module)
    try:
        spec = importlib.util.find_spec(module)
    except ImportError:  # TorchServe's package is not installed, or that module not in it
        return set()
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return set()
    return _absent(Path(spec.origin), module.rpartition(".")[0], seen)


def _missing(name: str, error: ModuleNotFoundError, absent: set[str]) -> str:
    package = (error.name or "").partition(".")[0]
    told = f"the handler '{name}' needs the package '{package}', which is not installed here; "
    if len(absent | {package}) > 1 and package != TORCHSERVE:
        named = sorted(absent | {package})
        told = f"the handler '{name}' needs packages that are not installed here: "
        return f"{told}{', '.join(named)}; install them with {package_command(' '.join(named))}"
    if package == TORCHSERVE and error.name in (TORCHSERVE, f"{TORCHSERVE}.torch_handler"):
        return f"{told}install it with {install_command('torchserve')}"
    if package == TORCHSERVE:
        return f"the handler '{name}' is no file of the archive, and TorchServe has no {error.name}"
    return f"{told}install it with {package_command(package)}"
