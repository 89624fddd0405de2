"""Runs a file of the user's Python code, which the caller has decided to trust, as a module.

In: the source of one file. Out: the module, or a class or function of it.
"""

import hashlib
import sys
from types import ModuleType
from typing import Any

from flambeau.protocol.strict import nearest_name

_PREFIX = "flambeau_code_"


class UserCodeError(Exception):
    """The file does not run, or lacks the name."""


def load_name(source: bytes, name: str, path: str | None = None) -> Any:
    """Runs the file, unless this source has run at this path before, and returns an object of it.

    Args:
        source: Python source in UTF-8.
        name: name of a class or function in the file.
        path: path of the file, for tracebacks; None for a generated name.

    Raises:
        UserCodeError: the file does not run, or lacks the name.
    """
    module = _module(source, path)
    if not hasattr(module, name):
        public = [known for known in vars(module) if not known.startswith("_")]
        raise UserCodeError(f"its file has no '{name}'{nearest_name(name, public)}")
    return getattr(module, name)


def forget(loaded: object) -> None:
    """Removes the module of an object that `load_name` returned, once nothing runs it."""
    name = getattr(loaded, "__module__", "")
    if name.startswith(_PREFIX):
        sys.modules.pop(name, None)


def _module(source: bytes, path: str | None) -> ModuleType:
    # Each file gets its own name in `sys.modules`, where classes look up their module.
    digest = hashlib.sha256(source + b"\0" + (path or "").encode())
    name = f"{_PREFIX}{digest.hexdigest()[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    module = ModuleType(name)
    module.__file__ = path or f"{name}.py"
    sys.modules[name] = module
    try:
        code = compile(source, module.__file__, "exec")
        exec(code, vars(module))  # noqa: S102 - it is trusted
    except BaseException as error:  # the file may even call `sys.exit`
        del sys.modules[name]
        raise UserCodeError(f"its file does not run: {error!r}") from error
    return module
