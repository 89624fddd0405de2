"""A Python step that rounds otherwise in another batch: its version is published, and loads."""

from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, nn

from model_store.store import ModelStore
from services.inference.loading.loader import LoadOptions, load_version
from tests.fixtures.word_counter import WORDS
from tests.unit.training.recipes import CLASSES, recipe
from training.errors import DataError
from training.pipeline import run

STEP = """
from tests.fixtures.word_counter import WordCounter

class Step(WordCounter):
    def __call__(self, inputs):
        rows = len(inputs["text"])
        counts = super().__call__(inputs)["counts"]
        return {{"counts": counts * 100 * (1 + (rows > 1) * {share})}}
"""


class Net(nn.Module):
    """Answers of the size of its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, CLASSES)

    def forward(self, counts: Tensor) -> Tensor:
        logits: Tensor = self.layer(counts.float())
        return logits


def stepped(folder: Path, share: float) -> Any:
    """A recipe whose step differs by a share between a row alone and one among others."""
    (folder / "step.py").write_text(STEP.format(share=share))
    step = {"python": {"target": f"{folder}/step.py:Step", "args": {"words": list(WORDS)}}}
    return recipe(
        preprocess=[step],
        data={"target": "tests.fixtures.word_counter:forecasts"},
        model={"target": f"{__name__}:Net"},
        train={"epochs": 1, "threads": 1},
        export=[{"kind": "onnx"}],
    )


def test_rounding_that_the_network_amplifies_is_allowed_where_the_version_loads(
    tmp_path: Path,
) -> None:
    store = ModelStore(str(tmp_path / "s"))
    exact = run(stepped(tmp_path, 0.0), store.url, tmp_path / "r")
    assert exact.artifacts[0].verification.tolerance.max_abs_difference == 1e-4
    rounding = run(stepped(tmp_path, 6e-6), store.url, tmp_path / "r")
    limit = rounding.artifacts[0].verification.tolerance.max_abs_difference
    assert 1e-4 < limit <= 1e-3
    for manifest in (exact, rounding):
        loaded = load_version(store, manifest, LoadOptions())
        for backend in loaded.backends:
            backend.close()
    assert loaded.parity.max_abs_difference > 1e-4, "the narrow limit would have refused it"


def test_a_step_that_differs_by_more_than_rounding_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="more than rounding"):
        run(stepped(tmp_path, 1e-4), str(tmp_path / "s"), tmp_path / "r")
