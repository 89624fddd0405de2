"""Peak memory: the highest use, not the use at the end."""

import mmap
from pathlib import Path

import pytest

from model_store.host import peak_memory
from model_store.host.peak_memory import PeakMemory

MIB = 2**20


def fill(count: int) -> None:
    """Takes pages of the system's own, which no allocator has kept from a test before."""
    with mmap.mmap(-1, count) as pages:
        for start in range(0, count, MIB):
            pages[start : start + MIB] = bytes([1]) * MIB


def test_memory_that_was_given_back_counts() -> None:
    fill(64 * MIB)  # before: no part of it
    measured = PeakMemory()
    fill(32 * MIB)
    grown = measured.grown_bytes()
    assert grown is not None
    assert 28 * MIB < grown < 60 * MIB


def test_where_the_system_does_not_say_there_is_no_figure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(peak_memory, "STATUS", tmp_path / "status")
    assert PeakMemory().grown_bytes() is None
