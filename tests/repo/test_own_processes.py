"""No process of ours is started so that it looks for modules in the working directory first."""

import ast
from collections.abc import Iterator

import pytest

from tests.repo.test_house_style import ROOT, tracked

SOURCES = ("flambeau/*.py", "services/*.py", "training/*.py", "model_store/*.py")
FILES = [path for path in tracked(*SOURCES) if "_pb2" not in path.name]
SAFE = {"-P", "-I", "PYTHONSAFEPATH=1"}


def unsafe_starts(code: str) -> Iterator[int]:
    """Lines of commands with `-m` or `-c` for a Python and no option for a safe path."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.List | ast.Tuple):
            words = {one.value for one in node.elts if isinstance(one, ast.Constant)}
            is_python = "python" in words or "torchrun" in words or "sys.executable" in {
                ast.unparse(one) for one in node.elts
            }  # fmt: skip
            if ("-m" in words or (is_python and "-c" in words)) and not SAFE & words:
                yield node.lineno


def test_no_process_looks_for_modules_in_the_working_directory() -> None:
    found = [
        f"{path.relative_to(ROOT)}, line {line}"
        for path in FILES
        for line in unsafe_starts(path.read_text())
    ]
    assert not found, "use model_store.host.own_process.own_command"


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("x = [sys.executable, '-m', 'services.gateway']", [1]),
        ("x = (sys.executable, '-c', 'import services')", [1]),
        ("x = ['torchrun', '-m'] + y", [1]),
        ("x = [python, '-P', '-m', module]", []),
        ("x = ['PYTHONSAFEPATH=1', program, '-m']", []),
    ],
)
def test_the_rule_finds_what_it_forbids(code: str, found: list[int]) -> None:
    assert list(unsafe_starts(code)) == found
