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


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    return (node.end_lineno or node.lineno) - first + 1


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


SOURCE_FILES = [path for path in PYTHON_FILES if relative(path).startswith(SOURCES)]


UNPICKLES_IF_ALLOWED = {"training/importing/sources/unpickling.py"}
"""Files of foreign models that a user trusts: `flambeau import --allow-pickle`."""


def test_every_file_keeps_the_rules() -> None:
    """One test for all files and rules: each file is parsed once."""
    faults = [
        f"{relative(path)}: {fault}"
        for path in PYTHON_FILES
        for fault in faults_of(relative(path), path.read_text())
    ]
    assert faults == []


def faults_of(name: str, text: str) -> Iterator[str]:
    """Yields what breaks a rule in a file of this name."""
    tree = ast.parse(text)
    yield from _too_long(text, tree)
    if Path(name).stem in BANNED_NAMES | SHADOWING_NAMES:
        yield "its name says nothing, or is that of a library"
    docstring = ast.get_docstring(tree)
    if text.strip() and (not docstring or "TODO" in docstring):
        yield "no module docstring, or one with a TODO"
    yield from (
        f"line {node.lineno}: a relative import"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.level
    )
    if not name.startswith(("tests", "bench")):
        yield from _without_docstring(tree)
    if not name.startswith("tests"):
        yield from _unpickling(name, text)


def _too_long(text: str, tree: ast.Module) -> Iterator[str]:
    lines = len(text.splitlines())
    if lines > MAX_FILE_LINES:
        yield f"{lines} lines"
    for node in functions(tree):
        if length(node) > MAX_FUNCTION_LINES:
            yield f"line {node.lineno}: {node.name} has {length(node)} lines"


def _without_docstring(tree: ast.Module) -> Iterator[str]:
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    bodies = [tree.body, *(c.body for c in classes if not c.name.startswith("_"))]
    for body in bodies:
        for node in body:
            if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if not node.name.startswith("_") and not ast.get_docstring(node):
                yield f"line {node.lineno}: {node.name} has no docstring"


def _unpickling(name: str, text: str) -> Iterator[str]:
    if re.search(r"^\s*(import|from) (pickle|dill|joblib|cloudpickle)", text, re.MULTILINE):
        yield "imports a pickling module"
    if name not in UNPICKLES_IF_ALLOWED and re.search(r"\bload\([^)]*weights_only=(?!True)", text):
        yield "loads without weights_only=True"
    if "allow_pickle=True" in text:
        yield "allow_pickle=True"


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        ("services/a.py", '"""A."""\n' * 501, "501 lines"),
        ("services/a.py", '"""A."""\ndef _f():\n' + "    pass\n" * 60, "line 2: _f has 61 lines"),
        ("services/utils.py", '"""A."""\n', "its name says nothing"),
        ("services/a.py", "x = 1\n", "no module docstring"),
        ("services/a.py", '"""A."""\nfrom .b import c\n', "line 2: a relative import"),
        ("services/a.py", '"""A."""\nclass A:\n    pass\n', "line 2: A has no docstring"),
        ("services/a.py", '"""A."""\nimport pickle\n', "imports a pickling module"),
        ("services/a.py", '"""A."""\nload(x, weights_only=False)\n', "loads without"),
        ("services/a.py", '"""A."""\nload(x, allow_pickle=True)\n', "allow_pickle=True"),
    ],
)
def test_a_rule_finds_what_breaks_it(name: str, text: str, fault: str) -> None:
    (found,) = faults_of(name, text)
    assert found.startswith(fault)


def test_functions_are_short() -> None:
    trees = (ast.parse(path.read_text()) for path in SOURCE_FILES)
    lengths = sorted(length(node) for tree in trees for node in functions(tree))
    assert lengths[len(lengths) // 2] <= MEDIAN_FUNCTION_LINES
    assert lengths[len(lengths) * 9 // 10] <= LONG_FUNCTION_LINES


def test_a_folder_holds_few_source_files() -> None:
    counts = Counter(path.parent for path in SOURCE_FILES if path.name != "__init__.py")
    crowded = {relative(path): n for path, n in counts.items() if n > MAX_FOLDER_FILES}
    assert not crowded, f"folders with more than {MAX_FOLDER_FILES} source files: {crowded}"


WHAT_OTHERS_ARE_TOLD = [
    "flambeau/commands/migration/serve_torchserve.py",
    "flambeau/commands/options/token.py",
    "flambeau/local/own_process.py",
    "model_store/storage/azure_credentials.py",
    "model_store/storage/gcs_credentials.py",
    "model_store/storage/s3_credentials.py",
    "training/importing/sources/hugging_face_folder.py",
    "training/process/isolated_run.py",
    "training/process/kept_memory.py",
]
"""The key for the server that a recipe names is in no recipe. The others look whether variables of
others are set: of obstore, to name missing credentials, and of the C library, so as not to
decide what a person has decided; or tell the Python that they start to
look for no module in the working directory and where temporary files lie, and transformers to use
no network. TorchServe's configuration may name variables and be named by one. Nothing of ours is
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
