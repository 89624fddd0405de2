"""These tests need a GPU: `make test-gpu` runs them, and says so where there is none."""

from typing import Any

import onnxruntime
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


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> list[onnxruntime.InferenceSession]:
    """Sessions of ONNX Runtime that the test opens, in order."""
    opened: list[onnxruntime.InferenceSession] = []

    class Recorded(onnxruntime.InferenceSession):  # type: ignore[misc]
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            opened.append(self)

    monkeypatch.setattr(onnxruntime, "InferenceSession", Recorded)
    return opened
