"""Finds the interpreters of this machine that flambeau supports.

In: PATH, and pyenv's folder of versions. Out: one interpreter for each minor version.
"""

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

OLDEST = (3, 11)
NEWEST_LOOKED_FOR = 20
ASK = "import ensurepip, sys, venv; print(*sys.version_info[:3])"
"""An interpreter without venv makes no environment."""

Version = tuple[int, ...]


def candidates(search_path: str, pyenv: Path) -> Iterator[Path]:
    """Programs that may be one, the same one perhaps twice."""
    names = [f"python3.{minor}" for minor in range(OLDEST[1], NEWEST_LOOKED_FOR)] + ["python3"]
    for folder in search_path.split(os.pathsep):
        for name in names:
            if (program := Path(folder or ".") / name).is_file():
                yield program
    yield from sorted(pyenv.glob("versions/*/bin/python3"))


def version_of(program: Path) -> Version | None:
    """Its version; None if it does not run or has no venv, as pyenv's shims without a version."""
    try:
        done = subprocess.run([program, "-c", ASK], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return tuple(map(int, done.stdout.split())) if done.returncode == 0 else None


def newest_of_each(found: Iterable[tuple[Version, Path]]) -> dict[Version, Path]:
    """The newest interpreter of every minor version from `OLDEST` on; of two alike the first."""
    best: dict[Version, tuple[Version, Path]] = {}
    for version, program in found:
        minor = version[:2]
        if minor >= OLDEST and (minor not in best or version > best[minor][0]):
            best[minor] = (version, program)
    return {version: program for _, (version, program) in sorted(best.items())}


def interpreters() -> dict[Version, Path]:
    """Those of this machine by version, oldest first."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    programs = dict.fromkeys([Path(sys.executable), *candidates(os.environ.get("PATH", ""), pyenv)])
    versions = ((version_of(program), program) for program in programs)
    return newest_of_each((version, program) for version, program in versions if version)
