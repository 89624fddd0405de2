"""Tests use what is public: they reach into no object, and patch no private name.

A name with a leading underscore may change in any refactoring. A test that uses it fails then,
although the behaviour is the same, and holds the refactoring up.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]
OF_OTHERS = {
    "_exit": "documented function of `os`",
    "_inductor": "package of torch that AOTInductor's documentation names",
    "_replace": "documented method of named tuples",
    "_set_running_loop": "documented hook of `asyncio` for event loops of others",
}
"""Names that only look private."""
PATCHING = ("delattr", "getattr", "hasattr", "patch", "patch.object", "setattr")


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in OF_OTHERS


def private_names(node: ast.AST) -> Iterator[str]:
    """Returns the private names of others that a node uses."""
    match node:
        case ast.Attribute(value=ast.Name(id="self" | "cls")):
            pass
        case ast.Attribute(value=ast.Call(func=ast.Name(id="super"))):
            pass
        case ast.Attribute(attr=name):
            yield name
        case ast.ImportFrom(names=names):
            yield from (name.name for name in names)
        case ast.Call(func=function, args=arguments) if ast.unparse(function).endswith(PATCHING):
            texts = [a.value for a in arguments if isinstance(a, ast.Constant)]
            yield from (str(text).rpartition(".")[2] for text in texts)


def test_no_test_uses_a_private_name() -> None:
    found = [
        f"{path.relative_to(TESTS)}, line {node.lineno}: {name}"  # type: ignore[attr-defined]
        for path in sorted(TESTS.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        for name in private_names(node)
        if is_private(name)
    ]
    assert found == []


def test_private_names_are_found() -> None:
    source = (
        "from a import _b\nx._y\nself._z\npatch.setattr(a, '_b', 1)\npatch('a._b')\nx._replace()\n"
    )
    found = [name for node in ast.walk(ast.parse(source)) for name in private_names(node)]
    assert sorted(filter(is_private, found)) == ["_b", "_b", "_b", "_y"]
