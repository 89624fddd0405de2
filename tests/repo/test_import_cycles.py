"""No file of the source imports itself by way of others, not even for types."""

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = ("flambeau", "model_store", "services", "training", "bench", "deploy")


def modules() -> dict[str, Path]:
    """Source files by the name that they are imported by."""
    files = [path.relative_to(ROOT) for name in SOURCES for path in (ROOT / name).rglob("*.py")]
    return {".".join(path.with_suffix("").parts).removesuffix(".__init__"): path for path in files}


def imported_by(path: Path, known: dict[str, Path]) -> set[str]:
    """Modules of the source that a file imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            members = [f"{node.module}.{alias.name}" for alias in node.names]
            found.update(name if name in known else node.module for name in members)
        elif isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
    return found & known.keys()


def test_no_file_is_in_a_cycle_of_imports() -> None:
    known = modules()
    assert len(known) > 500
    graph = {name: imported_by(path, known) - {name} for name, path in known.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError("imports form a cycle: " + " <- ".join(error.args[1])) from None
