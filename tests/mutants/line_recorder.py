"""Plugin of pytest: records the lines of the sources that each test runs.

In: `MUTANTS_LINES`, a folder. Out: a file of coverage data for each process of pytest-xdist. The
data stays in memory, so that processes that tests fork leave it alone, and is written every few
seconds, so that a worker that crashes loses little.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import coverage
import pytest

FOLDER = "MUTANTS_LINES"
"""Environment variable: folder of the data."""
PACKAGES = ("services", "model_store", "training")
WRITE_EVERY_S = 5.0


class _Recorder:
    def __init__(self, file: Path) -> None:
        self._file = file
        self._coverage = coverage.Coverage(data_file=None, source=[*PACKAGES], config_file=False)
        self._coverage.start()
        self._written_at = time.monotonic()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._coverage.switch_context(item.nodeid)
        try:
            return (yield)
        finally:
            self._coverage.switch_context("")
            if time.monotonic() - self._written_at >= WRITE_EVERY_S:
                self._write()

    def pytest_sessionfinish(self) -> None:
        self._coverage.stop()
        self._write()

    def _write(self) -> None:
        self._file.write_bytes(self._coverage.get_data().dumps())
        self._written_at = time.monotonic()


def pytest_configure(config: pytest.Config) -> None:
    """Starts to record in a process that runs tests: a worker of pytest-xdist."""
    if hasattr(config, "workerinput"):
        name = f"{os.getpid()}-{config.workerinput['workerid']}"
        config.pluginmanager.register(_Recorder(Path(os.environ[FOLDER]) / name))
