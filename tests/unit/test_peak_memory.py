"""Peak memory: what was there at the worst moment, not what is left of it."""

from pathlib import Path

import numpy as np
import pytest

from model_store import peak_memory
from model_store.peak_memory import PeakMemory

MIB = 2**20


def test_memory_that_was_given_back_counts() -> None:
    np.ones(64 * MIB, np.uint8)  # before: no part of it
    measured = PeakMemory()
    np.ones(32 * MIB, np.uint8)
    grown = measured.grown_bytes()
    assert grown is not None
    assert 28 * MIB < grown < 60 * MIB


def test_where_the_system_does_not_say_there_is_no_figure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(peak_memory, "STATUS", tmp_path / "status")
    assert PeakMemory().grown_bytes() is None
