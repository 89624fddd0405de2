"""Plugin of pytest: records the lines of the sources that each test runs.

In: `MUTANTS_LINES`, a folder. Out: a file of coverage data for each process of pytest-xdist. The
data stays in memory until the end, so that processes that tests fork leave it alone.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import coverage
import pytest

FOLDER = "MUTANTS_LINES"
"""Environment variable: folder of the data."""
PACKAGES = ("services", "model_store", "training")


class _Recorder:
    def __init__(self, folder: Path) -> None:
        self._file = folder / os.environ.get("PYTEST_XDIST_WORKER", "main")
        self._coverage = coverage.Coverage(data_file=None, source=[*PACKAGES], config_file=False)
        self._coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._coverage.switch_context(item.nodeid)
        try:
            return (yield)
        finally:
            self._coverage.switch_context("")

    def pytest_sessionfinish(self) -> None:
        self._coverage.stop()
        self._file.write_bytes(self._coverage.get_data().dumps())


def pytest_configure(config: pytest.Config) -> None:
    """Starts to record in a process that runs tests: a worker of pytest-xdist."""
    if hasattr(config, "workerinput"):
        config.pluginmanager.register(_Recorder(Path(os.environ[FOLDER])))
