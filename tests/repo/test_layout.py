"""The layout: what lies at the top, and that imports find it there."""

import importlib.util
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("flambeau", "model_store", "protos", "services", "training")
TOP_LEVEL = {
    *PACKAGES,
    ".ci", ".dockerignore", ".gitignore", ".pre-commit-config.yaml", "ARCHITECTURE.md",
    "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "Makefile", "README.md", "SECURITY.md", "bench",
    "deploy", "docs", "examples", "k8s", "pyproject.toml", "tests",
}  # fmt: skip


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_is_found_in_the_repository(package: str) -> None:
    """A package of the same name in site-packages would win over an editable install."""
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    assert Path(spec.origin).is_relative_to(ROOT)


def test_nothing_else_lies_at_the_top() -> None:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    top = {name.split("/")[0] for name in names.splitlines()}
    assert top == TOP_LEVEL


def test_the_version_stands_in_one_place_and_in_the_changelog() -> None:
    import flambeau

    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert flambeau.__version__ == version
    assert f"## [{version}]" in (ROOT / "CHANGELOG.md").read_text()


def test_make_help_lists_every_verb() -> None:
    makefile = (ROOT / "Makefile").read_text()
    phony = {line.split()[1] for line in makefile.splitlines() if line.startswith(".PHONY:")}
    shown = subprocess.run(["make", "help"], cwd=ROOT, check=True, capture_output=True, text=True)
    assert {line.split()[0] for line in shown.stdout.splitlines()} == phony
