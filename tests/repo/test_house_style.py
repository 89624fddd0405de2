"""The house style, where a program can judge it. The prose is in CONTRIBUTING.md."""

import ast
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 60
"""Decorators and docstring included."""
MEDIAN_FUNCTION_LINES = 9
LONG_FUNCTION_LINES = 24
"""Limit of the 90th percentile."""
MAX_FOLDER_FILES = 20
"""Source files of a folder, besides `__init__.py`."""
BANNED_NAMES = {"utils", "util", "common", "helpers", "helper", "base", "manager", "misc"}
SHADOWING_NAMES = {"grpc", "queue", "logging", "onnx", "redis", "torch", "json", "signal", "types"}
SOURCES = ("bench", "deploy", "flambeau", "model_store", "services", "training")


def tracked(*patterns: str) -> list[Path]:
    """Files git tracks, or would track: what a fresh clone holds after the next commit."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [path for name in names.splitlines() if (path := ROOT / name).exists()]


PYTHON_FILES = [path for path in tracked("*.py") if "_pb2" not in path.name]


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    return (node.end_lineno or node.lineno) - first + 1


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


SOURCE_FILES = [path for path in PYTHON_FILES if relative(path).startswith(SOURCES)]


@pytest.mark.parametrize("path", PYTHON_FILES, ids=relative)
def test_a_file_stays_readable_in_one_sitting(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MAX_FILE_LINES
    for node in functions(path):
        lines = length(node)
        assert lines <= MAX_FUNCTION_LINES, f"{node.name} at line {node.lineno}: {lines} lines"


def test_functions_are_short() -> None:
    lengths = sorted(length(node) for path in SOURCE_FILES for node in functions(path))
    assert lengths[len(lengths) // 2] <= MEDIAN_FUNCTION_LINES
    assert lengths[len(lengths) * 9 // 10] <= LONG_FUNCTION_LINES


def test_a_folder_holds_few_source_files() -> None:
    counts = Counter(path.parent for path in SOURCE_FILES if path.name != "__init__.py")
    crowded = {relative(path): n for path, n in counts.items() if n > MAX_FOLDER_FILES}
    assert not crowded, f"folders with more than {MAX_FOLDER_FILES} source files: {crowded}"


@pytest.mark.parametrize("path", PYTHON_FILES, ids=relative)
def test_a_file_is_named_after_one_noun(path: Path) -> None:
    assert path.stem not in BANNED_NAMES | SHADOWING_NAMES


@pytest.mark.parametrize("path", PYTHON_FILES, ids=relative)
def test_a_module_opens_with_what_it_is(path: Path) -> None:
    text = path.read_text()
    if text.strip():
        docstring = ast.get_docstring(ast.parse(text))
        assert docstring, "no module docstring"
        assert "TODO" not in docstring


@pytest.mark.parametrize(
    "path",
    [p for p in PYTHON_FILES if not relative(p).startswith(("tests", "bench"))],
    ids=relative,
)
def test_public_things_say_what_they_are(path: Path) -> None:
    tree = ast.parse(path.read_text())
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    bodies = [tree.body, *(c.body for c in classes if not c.name.startswith("_"))]
    for body in bodies:
        for node in body:
            if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if not node.name.startswith("_"):
                assert ast.get_docstring(node), f"{node.name} at line {node.lineno}"


@pytest.mark.parametrize("path", PYTHON_FILES, ids=relative)
def test_imports_are_absolute(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import at line {node.lineno}"


UNPICKLES_IF_ALLOWED = {"training/importing/sources/unpickling.py"}
"""Files of foreign models that a user trusts: `flambeau import --allow-pickle`."""


@pytest.mark.parametrize(
    "path", [p for p in PYTHON_FILES if not relative(p).startswith("tests")], ids=relative
)
def test_nothing_deserialises_by_pickle(path: Path) -> None:
    text = path.read_text()
    assert not re.search(r"^\s*(import|from) (pickle|dill|joblib|cloudpickle)", text, re.MULTILINE)
    if relative(path) not in UNPICKLES_IF_ALLOWED:
        assert not re.search(r"\bload\([^)]*weights_only=(?!True)", text)
    assert "allow_pickle=True" not in text


WHAT_OTHERS_ARE_TOLD = [
    "model_store/storage/s3_credentials.py",
    "training/importing/sources/hugging_face_folder.py",
    "training/process/isolated_run.py",
    "training/process/kept_memory.py",
]
"""They look whether variables of others are set: of obstore, to name missing credentials, and of
the C library, so as not to decide what a person has decided; or tell the Python that they start to
look for no module in the working directory, and transformers to use no network. Nothing of ours is
configured by them."""


def test_only_configuration_reads_the_environment() -> None:
    readers = [
        relative(path)
        for path in PYTHON_FILES
        if not relative(path).startswith(("tests", "bench"))
        and re.search(r"os\.(environ(?!\.setdefault)|getenv)", path.read_text())
    ]
    assert readers == WHAT_OTHERS_ARE_TOLD


def test_every_skip_gives_its_reason() -> None:
    for path in tracked("tests/*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("pytest.mark.skip"):
                assert any(k.arg == "reason" for k in node.keywords), f"{path}:{node.lineno}"
