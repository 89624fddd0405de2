"""The wheel, installed into a bare environment, and the changelog.

`make release-check` downloads what the wheel needs as well, and goes the whole path.
"""

import json
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
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
    """Returns the files of the packages that git tracks."""
    done = subprocess.run(
        ["git", "ls-files", *PACKAGES], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return set(done.stdout.splitlines())


def test_the_wheel_has_every_file_of_the_packages_and_nothing_else(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    about = f"flambeau-{PROJECT['version']}.dist-info/"
    assert {name for name in names if not name.startswith(about)} == files_of_packages()
    assert f"{about}licenses/LICENSE" in names
    for name in (
        "flambeau/py.typed",
        "flambeau/protocol/client_messages.binpb",
        "services/gateway/edges/documentation/page.html",
        "protos/open_inference.proto",
    ):
        assert name in names
    assert any(name.endswith(".lua") for name in names)


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bare environment with the wheel in it. What it needs is found where the tests find theirs,
    but for this checkout: a path in a `.pth` file has its own `.pth` files left alone."""
    folder = tmp_path_factory.mktemp("release") / "venv"
    venv.create(folder, symlinks=True)
    python = folder / "bin/python"
    command = [sys.executable, "-m", "pip", f"--python={python}", "install", "--quiet", "--no-deps",
               "--no-index", "--no-compile", "--disable-pip-version-check", str(wheel)]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True, text=True)
    (own,) = folder.glob("lib/python*/site-packages")
    (own / "needs.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return folder


def run_installed(environment: Path, program: str, *arguments: str) -> str:
    """Runs a program of the environment outside of the repository; returns its output."""
    done = subprocess.run(
        [environment / "bin" / program, *arguments],
        cwd=environment.parent,
        env={"HOME": str(environment.parent), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_is_what_runs_once_it_is_installed(environment: Path) -> None:
    find = "from importlib.util import find_spec; import sys"
    program = f"{find}; print(*(find_spec(name).origin for name in sys.argv[1:]), sep='\\n')"
    found = run_installed(environment, "python", "-c", program, *sorted(PACKAGES)).splitlines()
    assert len(found) == len(PACKAGES)
    assert [place for place in found if not Path(place).is_relative_to(environment)] == []
    said = run_installed(environment, "flambeau", "--version")
    assert said == f"flambeau {PROJECT['version']}\n"
    schema = json.loads(run_installed(environment, "flambeau", "train", "schema"))
    assert {"data", "model", "publish"} <= schema["properties"].keys()


def test_the_changelog_is_kept() -> None:
    """Format of https://keepachangelog.com/en/1.1.0/: the newest first, each with its date."""
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
