"""Writes a class of the caller's program as one file of source that runs elsewhere.

In: a class, from a script, a module or a cell of a notebook. Out: Python source with the class, and
the imports, constants, functions and classes that it uses.

Rules: global names are followed from the class through the caller's own modules, and local ones of
the same spelling are not; what is installed (packages, the standard library) is imported; numbers
and arrays of NumPy are written exactly; what cannot be written as source, such as an open file, is
refused with its name. Type hints are not evaluated there, so a name that only hints use may be
missing. The caller's program is not executed again, so it needs no `if __name__ == "__main__"`.
"""

import ast
import builtins
import copy
import linecache
import math
import symtable
import sys
import sysconfig
import textwrap
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

from flambeau.publishing.errors import CaptureError

MAX_DEFINITIONS = 200
"""Limit on the functions, classes and constants of one file."""
MAX_CONSTANT_CHARACTERS = 10_000
_INSTALLED = ("site-packages", "dist-packages")
_PLAIN = (type(None), bool, int, str, bytes)
_NUMPY = "numpy.frombuffer("
_PORTABLE = "biufcSUmM"
"""Kinds of NumPy's types whose bytes are the values, on every machine."""


def class_source(definition: type | FunctionType) -> str:
    """Returns source that defines a class, or a function, and all that it uses.

    Raises:
        CaptureError: its source is not available, or it uses a value that has none.
    """
    found = _Collected()
    found.add(definition.__name__, definition, definition.__name__)
    imports = dict.fromkeys(["from __future__ import annotations", *found.imports])
    parts = found.parts
    return "\n".join([*imports, "", "", "\n\n".join(parts.values())]).strip() + "\n"


class _Collected:
    """The definitions that a class needs, each after those that it uses."""

    def __init__(self) -> None:
        self.imports: list[str] = []
        self.parts: dict[str, str] = {}
        self._values: dict[str, Any] = {}

    def add(self, name: str, value: Any, user: str) -> None:
        """Adds a global name, and what its definition uses.

        Args:
            name: the name.
            value: its value.
            user: the definition that uses it, for messages.
        """
        if name in self._values:
            if self._values[name] is not value:
                raise CaptureError(
                    f"'{name}' means two things in the modules that the class uses; rename one"
                )
            return
        if len(self._values) >= MAX_DEFINITIONS:
            raise CaptureError(
                f"the class uses more than {MAX_DEFINITIONS} global names; move them into a "
                "package, and install that where the model is served"
            )
        self._values[name] = value
        try:
            self._add_value(name, value, user)
        except CaptureError:
            del self._values[name]
            raise

    def _add_value(self, name: str, value: Any, user: str) -> None:
        if isinstance(value, ModuleType):
            self._add_module(name, value, user)
        elif isinstance(value, type | FunctionType):
            self._add_definition(name, value)
        elif (text := _literal(value)) is not None:
            _check_length(name, text)
            if _NUMPY in text:
                self.imports.append("import numpy")
            self.parts[name] = f"{name} = {text}\n"
        else:
            self._add_imported(name, value, user)

    def _add_module(self, name: str, module: ModuleType, user: str) -> None:
        if _is_own(module):
            raise CaptureError(
                f"'{user}' uses the module '{module.__name__}' of your project; import the "
                "functions that it needs (from ... import ...), or give its file in files"
            )
        full = module.__name__
        self.imports.append(f"import {full}" if full == name else f"import {full} as {name}")

    def _add_definition(self, name: str, value: Any) -> None:
        module = sys.modules.get(value.__module__)
        if value.__name__ == "<lambda>":
            raise CaptureError("a lambda cannot be written as source; write a function (def)")
        if "<locals>" in value.__qualname__:
            raise CaptureError(
                f"'{value.__name__}' is defined inside a function, whose variables it may use; "
                "define it at the top level of a file or a cell, and give a class its values by "
                "args"
            )
        if module is None or not _is_own(module) or value.__qualname__ != value.__name__:
            self._add_import(name, value.__module__, value.__qualname__.partition(".")[0])
            return
        text = _definition(value)
        tree = ast.parse(text)
        scope = vars(module) if module is not None else {}
        used, dispensable = _names(tree)
        for one in (*used, *dispensable):
            if one == value.__name__ or one not in scope:
                continue
            try:
                self.add(one, scope[one], value.__name__)
            except CaptureError:
                if one not in dispensable:
                    raise
        self.parts[name] = (
            text if name == value.__name__ else f"{text}\n\n{name} = {value.__name__}\n"
        )

    def _add_imported(self, name: str, value: Any, user: str) -> None:
        """Imports a value from the installed module that has it under this name."""
        place = getattr(value, "__module__", None)
        module = sys.modules.get(place) if isinstance(place, str) else None
        own_name = getattr(value, "__name__", name)
        if module is None or _is_own(module) or getattr(module, own_name, None) is not value:
            raise CaptureError(
                f"'{user}' uses '{name}', a {type(value).__name__} of your program that cannot be "
                "written as source; make it inside the function, or in load() of a class, from "
                "args or files"
            )
        self._add_import(name, module.__name__, own_name)

    def _add_import(self, name: str, module: str, own_name: str) -> None:
        if module == "builtins":
            return
        alias = "" if own_name == name else f" as {name}"
        self.imports.append(f"from {module} import {own_name}{alias}")


def _is_own(module: ModuleType) -> bool:
    """Returns True for code of the caller's project, which other machines do not have."""
    if module.__name__ == "__main__":
        return True
    file = getattr(module, "__file__", None)
    if file is None:
        return False
    path = Path(file).resolve()
    standard = Path(sysconfig.get_paths()["stdlib"]).resolve()
    is_ours = path.is_relative_to(Path(__file__).resolve().parents[1])
    is_installed = any(part in _INSTALLED for part in path.parts)
    return not (is_ours or is_installed or path.is_relative_to(standard))


def _definition(value: Any) -> str:
    """Returns the source of a function or class.

    Raises:
        CaptureError: it is not available.
    """
    code = _code_of(value)
    lines = linecache.getlines(code.co_filename) if code is not None else []
    if not lines and getattr(sys.modules.get(value.__module__), "__file__", None):
        lines = linecache.getlines(str(sys.modules[value.__module__].__file__))
    text = "".join(lines)
    kinds = (ast.ClassDef,) if isinstance(value, type) else (ast.FunctionDef, ast.AsyncFunctionDef)
    try:
        tree = ast.parse(text)
    except SyntaxError:  # magic commands of a notebook's cell
        text = "".join(line for line in lines if not line.lstrip().startswith(("%", "!")))
        tree = ast.parse(text)
    found = [n for n in ast.walk(tree) if isinstance(n, kinds) and n.name == value.__name__]
    if not found:
        raise CaptureError(
            f"the source of '{value.__name__}' is not available; define it in a file or a cell"
        )
    node = found[-1]  # the last definition of a name is the one that holds
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    return textwrap.dedent("".join(text.splitlines(keepends=True)[first - 1 : node.end_lineno]))


def _code_of(value: Any) -> CodeType | None:
    """Returns the code of a function, or of any method of a class."""
    if isinstance(value, FunctionType):
        return value.__code__
    for member in vars(value).values():
        inner = getattr(member, "__func__", member)  # of static and class methods
        if isinstance(inner, FunctionType) and inner.__module__ == value.__module__:
            return inner.__code__
    return None


def _names(tree: ast.AST) -> tuple[list[str], list[str]]:
    """Returns the global names that a definition reads, and those that it may do without.

    The latter are read by type hints alone, or are assigned in the body of a class, too.
    """
    hints: set[int] = set()
    for node in ast.walk(tree):
        for hint in (getattr(node, "annotation", None), getattr(node, "returns", None)):
            if isinstance(hint, ast.AST):
                hints |= set(map(id, ast.walk(hint)))
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    hinted = {node.id: None for node in names if id(node) in hints}
    text = ast.unparse(_WithoutHints().visit(copy.deepcopy(tree)))
    read, assigned = _globals(symtable.symtable(text, "<definition>", "exec"))
    used = {node.id: None for node in names if id(node) not in hints and node.id in read}
    either = {node.id: None for node in names if node.id in assigned} | hinted
    return (
        [name for name in used if not hasattr(builtins, name)],
        [name for name in either if name not in used and not hasattr(builtins, name)],
    )


class _WithoutHints(ast.NodeTransformer):
    """Removes the type hints, which are not evaluated where the source runs."""

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.annotation = ast.Constant(None)
        return self.generic_visit(node)


def _globals(table: symtable.SymbolTable) -> tuple[set[str], set[str]]:
    """Returns the global names of a scope and those in it, and the attributes of classes.

    An attribute that is read before its assignment is a global name.
    """
    symbols = table.get_symbols()
    read = {one.get_name() for one in symbols if one.is_global()}
    assigned: set[str] = set()
    if table.get_type() == "class":
        assigned = {one.get_name() for one in symbols if one.is_local() and one.is_referenced()}
    for child in table.get_children():
        inner = _globals(child)
        read |= inner[0]
        assigned |= inner[1]
    return read, assigned


def _literal(value: Any) -> str | None:
    """Returns an expression that gives exactly this value; None if there is none."""
    kind = type(value)
    if isinstance(value, np.ndarray | np.generic):
        return _array_literal(np.asarray(value), isinstance(value, np.generic))
    if kind in _PLAIN:
        return repr(value)
    if kind is float:
        return repr(value) if math.isfinite(value) else f"float('{value}')"
    if kind is complex:
        return f"complex({_literal(value.real)}, {_literal(value.imag)})"
    if kind is dict:
        parts = [(_literal(key), _literal(item)) for key, item in value.items()]
        if any(None in pair for pair in parts):
            return None
        return "{" + ", ".join(f"{key}: {item}" for key, item in parts) + "}"
    if kind not in (tuple, list, set, frozenset):
        return None
    items = [_literal(item) for item in value]
    if None in items:
        return None
    joined = ", ".join(map(str, items))
    if kind is list:
        return f"[{joined}]"
    return f"({joined},)" if items and kind is tuple else f"{kind.__name__}([{joined}])"


def _array_literal(array: Any, is_scalar: bool) -> str | None:
    if array.dtype.kind not in _PORTABLE or array.dtype.char in "gG":  # long doubles
        return None
    data = f"{_NUMPY}bytes.fromhex('{array.tobytes().hex()}'), {array.dtype.str!r})"
    return f"{data}[0]" if is_scalar else f"{data}.reshape({array.shape}).copy()"


def _check_length(name: str, text: str) -> None:
    if len(text) > MAX_CONSTANT_CHARACTERS:
        raise CaptureError(
            f"the constant '{name}' has {len(text):,} characters of source; put it into a file, "
            "and give that in files"
        )
