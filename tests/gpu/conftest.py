"""These tests need a GPU: `make test-gpu` runs them, and says so where there is none."""

import pytest
import torch

from services.inference.backends.device import Device


@pytest.fixture(scope="session", autouse=True)
def gpu() -> Device:
    """The first GPU."""
    if not torch.cuda.is_available():
        pytest.skip(
            f"no CUDA GPU here: torch {torch.__version__} says torch.cuda.is_available() is False"
        )
    return Device("cuda", 0)
