"""`make test-pythons`: the wheel with its extra `serve` on every interpreter from Python 3.11 on.

Prints a line for each: seconds and megabytes of the installation, and whether it serves.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from tests.fixtures import onnx_models
from tests.pythons.interpreters import interpreters
from tests.pythons.small_installation import try_installation


def main() -> int:
    """Tries all. Returns the exit code: 0 if each serves."""
    parser = argparse.ArgumentParser(prog="python -m tests.pythons", description=__doc__)
    parser.add_argument("wheel", type=Path, help="flambeau's")
    wheel = parser.parse_args().wheel.absolute()
    found = interpreters()
    names = ", ".join(".".join(map(str, version)) for version in found)
    print(f"interpreters on PATH and of pyenv, one a minor version: {names}", flush=True)
    print("python    installed    size  verdict", flush=True)
    faults = 0
    with tempfile.TemporaryDirectory(prefix="flambeau-") as name:
        store = Path(name) / "store"
        onnx_models.publish(str(store), "linear", onnx_models.linear(2.0))
        for version, program in found.items():
            folder = Path(name) / ".".join(map(str, version[:2]))
            tried = try_installation(program, wheel, store, folder)
            faults += bool(tried.fault)
            verdict = tried.fault or "serves ONNX over REST and gRPC"
            shown = ".".join(map(str, version))
            print(
                f"{shown:<8}{tried.seconds:>8.0f} s{tried.megabytes:>7.0f} MB  {verdict}",
                flush=True,
            )
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
