"""Small networks run on one thread: threads that wait for each other are slow on busy cores."""

from collections.abc import Iterator

import pytest
import torch

from training.verification import verify


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _few_timed_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shortens timing runs: no test needs the speed of a tiny network."""
    monkeypatch.setattr(verify, "MAX_SECONDS", 0.0)
