"""Prints the interpreter that `make` builds environments with: `python3`, or an optimised one.

Distributions optimise their builds of CPython with profiles. Version managers often do not, and
then a request costs a quarter more CPU time. If `python3` is such a build and the system has an
optimised one of the same version, with venv and headers, that one is printed. Run by make, by
`python3`, without packages.
"""

import subprocess
import sys
import sysconfig
from pathlib import Path

SYSTEM = Path("/usr/bin")
"""Where distributions install theirs, whose builds are optimised."""
NEEDED = """
import ensurepip, pathlib, sysconfig, venv
assert pathlib.Path(sysconfig.get_path("include"), "Python.h").exists()
"""
"""Fails where an environment or native code (torch.compile) could not be built."""


def main() -> None:
    """Prints a path; what else is to be said goes to standard error."""
    python = sys.executable
    if not is_optimised(python):
        better = SYSTEM / f"python{sys.version_info[0]}.{sys.version_info[1]}"
        if is_complete(better):
            print(f"note: {python} is not an optimised build; using {better}", file=sys.stderr)
            python = str(better)
        else:
            print(f"note: {python} is not an optimised build: servers are slower", file=sys.stderr)
    print(python)


def is_optimised(python: str) -> bool:
    """True if this interpreter, at the path `python`, was built with profiles."""
    flags = sysconfig.get_config_var("CONFIG_ARGS") or ""
    return Path(python).resolve().parent == SYSTEM or "--enable-optimizations" in flags


def is_complete(python: Path) -> bool:
    """True if the interpreter at `python` exists and can build environments and native code."""
    if not python.exists():
        return False
    done = subprocess.run([python, "-I", "-c", NEEDED], capture_output=True)  # noqa: S603
    return done.returncode == 0


if __name__ == "__main__":
    main()
