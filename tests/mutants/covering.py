"""The tests that run a line: measured once, with coverage.py's contexts."""

import sqlite3
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import coverage.numbits

TESTS = ("tests/unit", "tests/contract")


def measure(copy: Path, packages: tuple[str, ...], file: Path, workers: int) -> None:
    """Runs the tests of a copy of the sources once, and keeps what each of them ran.

    Raises:
        subprocess.CalledProcessError: a test failed without any change.
    """
    command = [sys.executable, "-m", "pytest", *TESTS, "-q", "-n", str(workers), "--dist=worksteal"]
    command += [f"--cov={package}" for package in packages]
    command += ["--cov-context=test", "--cov-report=", "-p", "no:cacheprovider"]
    subprocess.run(command, cwd=copy, check=True)
    (copy / ".coverage").rename(file)


class Covering:
    """The findings of `measure`."""

    def __init__(self, file: Path, copy: Path) -> None:
        self._tests: dict[str, dict[int, list[str]]] = {}
        with sqlite3.connect(file) as found:
            rows = found.execute(
                "select file.path, context.context, line_bits.numbits from line_bits "
                "join file on file.id = line_bits.file_id "
                "join context on context.id = line_bits.context_id"
            ).fetchall()
        for path, context, bits in rows:
            test = context.rpartition("|")[0]
            if not test:
                continue
            name = str(Path(path).relative_to(copy))
            lines = self._tests.setdefault(name, defaultdict(list))
            for line in coverage.numbits.numbits_to_nums(bits):
                lines[line].append(test)

    def tests(self, name: str, line: int) -> list[str]:
        """Those that run a line of a file, each once."""
        return list(dict.fromkeys(self._tests.get(name, {}).get(line, [])))
