"""The tests that run a line: recorded once, by `line_recorder.py`."""

import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import coverage

from tests.mutants.line_recorder import FOLDER

RUNS = (
    ("tests/unit", "tests/contract", "--ignore=tests/unit/training"),
    ("tests/unit/training",),
)
"""Arguments of pytest; training has processes of its own, as in `make test`."""


def measure(copy: Path, folder: Path, workers: int) -> None:
    """Runs the tests of a copy of the sources once, and keeps what each of them ran.

    Args:
        copy: folder of the copy.
        folder: gets the data; made if it does not exist.
        workers: tests at once.

    Raises:
        subprocess.CalledProcessError: the tests could not be run.
    """
    folder.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, FOLDER: str(folder), "PYTHONPATH": str(copy)}
    failed: list[str] = []
    for number, arguments in enumerate(RUNS):
        cache = folder / f"cache{number}"
        command = [
            sys.executable, "-m", "pytest", *arguments, "-q", "-n", str(workers),
            "--dist=worksteal", "-p", "tests.mutants.line_recorder", "-o", f"cache_dir={cache}",
        ]  # fmt: skip
        done = subprocess.run(command, cwd=copy, env=environment, check=False)
        if done.returncode > 1:  # 1: tests failed
            done.check_returncode()
        kept = cache / "v" / "cache" / "lastfailed"
        failed += json.loads(kept.read_text()) if kept.exists() else {}
    (folder / "failed.json").write_text(json.dumps(sorted(failed)))


class Covering:
    """The findings of `measure`.

    Attributes:
        failed: tests that failed without any change, which notice nothing.
    """

    def __init__(self, folder: Path, copy: Path) -> None:
        self.failed: list[str] = json.loads((folder / "failed.json").read_text())
        self._tests: dict[str, dict[int, list[str]]] = {}
        left_out = {"", *self.failed}
        for file in folder.iterdir():
            if not file.is_file() or file.suffix:
                continue
            data = coverage.CoverageData(no_disk=True)
            data.loads(file.read_bytes())
            for path in data.measured_files():
                lines = self._tests.setdefault(str(Path(path).relative_to(copy)), defaultdict(list))
                for line, tests in data.contexts_by_lineno(path).items():
                    lines[line] += [test for test in tests if test not in left_out]

    def tests(self, name: str, line: int) -> list[str]:
        """Returns the tests that run a line, each once.

        A line that none runs in its own process, such as one of a worker process, has those that
        run anything of its file, and behind them those of its folder.
        """
        if found := self._tests.get(name, {}).get(line):
            return list(dict.fromkeys(found))
        folder = f"{Path(name).parent}/"
        near = [name, *(file for file in self._tests if file.startswith(folder))]
        return list(
            dict.fromkeys(
                test
                for file in near
                for tests in self._tests.get(file, {}).values()
                for test in tests
            )
        )
