"""The wheel and the changelog. `make release-check` installs the wheel and goes the whole path."""

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PACKAGES = {"flambeau", "model_store", "protos", "services", "training"}
HEADING = re.compile(r"## \[(Unreleased|(\d+)\.(\d+)\.(\d+))\](?: - (\d{4}-\d\d-\d\d))?")
KINDS = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from copies of the sources, so that nothing is left behind in the checkout."""
    sources = tmp_path_factory.mktemp("sources")
    for name in PACKAGES:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, sources / name, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, sources)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation",
               "--no-index", "--wheel-dir", str(sources / "dist"), str(sources)]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True, text=True)
    (found,) = (sources / "dist").iterdir()
    return found


def files_of_packages() -> set[str]:
    """What git knows in them; generated or forgotten files are not among it."""
    done = subprocess.run(
        ["git", "ls-files", *PACKAGES], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return set(done.stdout.splitlines())


def test_the_wheel_has_every_file_of_the_packages_and_nothing_else(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    about = f"flambeau-{PROJECT['version']}.dist-info/"
    assert {name for name in names if not name.startswith(about)} == files_of_packages()
    assert f"{about}licenses/LICENSE" in names
    for name in ("flambeau/py.typed", "services/gateway/docs.html", "protos/open_inference.proto"):
        assert name in names
    assert any(name.endswith(".lua") for name in names)


def test_the_wheel_says_its_version(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path)
    program = "import flambeau, flambeau.cli as c; print(flambeau.__file__); c.main()"
    command = [sys.executable, "-P", "-c", program, "--version"]
    done = subprocess.run(
        command, env={"PYTHONPATH": str(tmp_path)}, check=True, capture_output=True, text=True
    )
    place, version = done.stdout.splitlines()
    assert Path(place).is_relative_to(tmp_path)
    assert version == f"flambeau {PROJECT['version']}"


def test_the_changelog_is_kept() -> None:
    """As https://keepachangelog.com/en/1.1.0/ has it: the newest first, each with its date."""
    lines = (ROOT / "CHANGELOG.md").read_text().splitlines()
    headings = [HEADING.fullmatch(line) for line in lines if line.startswith("## ")]
    assert all(headings), "a heading is no version"
    names = [heading[1] for heading in headings if heading]
    assert names[0] == "Unreleased"
    assert names[1] == PROJECT["version"]
    released = [tuple(map(int, heading.group(2, 3, 4))) for heading in headings[1:] if heading]
    assert released == sorted(released, reverse=True)
    assert [heading[1] for heading in headings[1:] if heading and not heading[5]] == []
    assert {line[4:] for line in lines if line.startswith("### ")} <= KINDS
