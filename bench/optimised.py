"""Runs a benchmark in an optimised build of Python, as users have.

    python -m bench.optimised bench.overload --rounds 1

Distributions optimise their builds of CPython with profiles. Version managers often do not, and
such a build is a fifth slower. If ours is one of those and the system has a better one of the same
version, the benchmark and all servers that it starts run in the latter, with our packages.
"""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

ENVIRONMENT = Path(__file__).parents[1] / "var" / "bench" / "venv"
SYSTEM = Path("/usr/bin")
"""Where distributions install theirs, whose builds are optimised."""
_FLAGS = "import sysconfig; print(sysconfig.get_config_var('CONFIG_ARGS'))"


def main() -> None:
    """Replaces this process by `python -m MODULE ARGUMENT...`."""
    python = optimised_python()
    os.execv(python, [python, "-m", *sys.argv[1:]])


def optimised_python() -> str:
    """Returns an interpreter with our packages: this one, or one made for benchmarks."""
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    better = SYSTEM / name
    if _is_optimised(sys.executable):
        return sys.executable
    if not better.exists():
        print(f"note: no optimised build of {name} is here; servers are slower than users' are")
        return sys.executable
    subprocess.run([better, "-m", "venv", "--without-pip", ENVIRONMENT], check=True)
    link = ENVIRONMENT / "lib" / name / "site-packages" / "ours.pth"
    link.write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    return str(ENVIRONMENT / "bin" / "python")


def _is_optimised(python: str) -> bool:
    if Path(python).resolve().parent == SYSTEM:
        return True
    done = subprocess.run([python, "-c", _FLAGS], capture_output=True, text=True, check=True)
    return "--enable-optimizations" in done.stdout


if __name__ == "__main__":
    main()
