"""Memory freed by training stays with its process, unless the C library is configured otherwise."""

import ctypes
import io
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.unit.training.recipes import DATA, recipe, splits
from training.loop.loop import train
from training.process.kept_memory import (
    HIGHEST_MMAP_THRESHOLD,
    LARGEST,
    MMAP_THRESHOLD,
    TOLD_BY,
    TRIM_THRESHOLD,
    freed_memory_kept,
)
from training.run_folder import RunFolder
from training.watcher import NullWatcher

ROOT = Path(__file__).parents[4]
MIB = 2**20
ALLOCATING = f"""
import numpy as np
from training.process.kept_memory import freed_memory_kept

def taken():
    return int(open("/proc/self/statm").read().split()[1]) * {os.sysconf("SC_PAGE_SIZE")}

before = taken()
with freed_memory_kept():
    np.ones(64 * {MIB} // 8)
    print(taken() - before)
print(taken() - before)
"""


class Library:
    """A C library that records the options it is given, and rejects sizes above a limit."""

    def __init__(self, limit: int = LARGEST) -> None:
        self.limit = limit
        self.told: dict[int, int] = {}
        self.trims = 0

    def mallopt(self, name: int, value: int) -> int:
        if value <= self.limit or name != MMAP_THRESHOLD:
            self.told[name] = value
            return 1
        return 0

    def malloc_trim(self, pad: int) -> int:
        self.trims += 1
        return 1


class Looking(NullWatcher):
    """Records the options of the C library at the end of an epoch."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self.seen: dict[int, int] = {}

    def end_epoch(self, epoch: int, metrics: object) -> None:
        self.seen = dict(self.library.told)


def put_in_place(library: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts a fake in the place of the process's C library."""
    load = ctypes.CDLL

    def find(name: str | None, *given: Any, **named: Any) -> object:
        return library if name is None else load(name, *given, **named)

    monkeypatch.setattr(ctypes, "CDLL", find)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    found = Library()
    put_in_place(found, monkeypatch)
    for name in ("GLIBC_TUNABLES", *TOLD_BY):
        monkeypatch.delenv(name, raising=False)
    return found


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is another one")
@pytest.mark.parametrize(
    ("told", "kept"),
    [({}, True), ({"GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=65536"}, False)],
    ids=["not told", "told"],
)
def test_freed_memory_stays_until_the_end_and_then_goes_back(
    told: dict[str, str], kept: bool
) -> None:
    inherited = {k: v for k, v in os.environ.items() if k not in ("GLIBC_TUNABLES", *TOLD_BY)}
    argv = [sys.executable, "-c", ALLOCATING]
    done = subprocess.run(
        argv, cwd=ROOT, env=inherited | told, capture_output=True, text=True, check=True
    )
    within, after = (int(line) for line in done.stdout.split())
    assert (within > 60 * MIB) == kept
    assert after < 4 * MIB


def test_training_keeps_what_it_frees(tmp_path: Path, library: Library) -> None:
    chosen, looking = recipe(train={"epochs": 1}), Looking(library)
    folder = RunFolder(tmp_path, chosen, DATA)
    with folder.locked():
        train(chosen, splits(), folder, Console(file=io.StringIO()), watcher=looking)
    assert looking.seen == {MMAP_THRESHOLD: LARGEST, TRIM_THRESHOLD: LARGEST}
    assert library.trims == 1
    assert library.told == {
        MMAP_THRESHOLD: HIGHEST_MMAP_THRESHOLD,
        TRIM_THRESHOLD: 2 * HIGHEST_MMAP_THRESHOLD,
    }


def test_a_library_that_takes_no_large_size_gets_its_largest(library: Library) -> None:
    library.limit = HIGHEST_MMAP_THRESHOLD
    with freed_memory_kept():
        assert library.told == {MMAP_THRESHOLD: HIGHEST_MMAP_THRESHOLD, TRIM_THRESHOLD: LARGEST}


@pytest.mark.parametrize(
    ("name", "value", "left_alone"),
    [
        ("GLIBC_TUNABLES", "glibc.malloc.trim_threshold=65536", True),
        ("GLIBC_TUNABLES", "glibc.pthread.rseq=0", False),
        *((name, "65536", True) for name in TOLD_BY),
    ],
)
def test_what_a_person_has_told_the_library_stays(
    library: Library, monkeypatch: pytest.MonkeyPatch, name: str, value: str, left_alone: bool
) -> None:
    monkeypatch.setenv(name, value)
    with freed_memory_kept():
        pass
    assert (not library.told) == left_alone
    assert (library.trims == 0) == left_alone


def test_another_c_library_is_left_alone(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    put_in_place(object(), monkeypatch)
    with freed_memory_kept():
        assert not library.told
