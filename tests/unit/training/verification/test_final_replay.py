"""Before publishing, every artifact reproduces the golden rows of the very files."""

import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from torch import Tensor, nn

from flambeau.protocol.tensors import Array
from model_store import golden
from model_store.arrays.tensor_file import encode_tensors
from model_store.golden import read_golden
from model_store.manifest import Manifest
from model_store.store import ModelStore
from tests.unit.training.recipes import CLASSES, recipe, splits
from training.errors import NothingProvenError
from training.exporters import export
from training.pipeline import run
from training.verification import final_replay, verify
from training.verification.final_replay import first_failure

MODEL = "small"


class Turned(nn.Module):
    """Classes, and what lies turned in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, CLASSES)
        self.grid = nn.Linear(64, 24)

    def forward(self, image: Tensor) -> Any:
        rows = image.flatten(1)
        return self.head(rows), self.grid(rows).reshape(-1, 4, 6).transpose(1, 2)


def encode_in_memory_order(tensors: Mapping[str, Array]) -> bytes:
    """The file that safetensors 0.8.0 writes of arrays that lie turned in memory."""
    return encode_tensors({name: a.ravel("K").reshape(a.shape) for name, a in tensors.items()})


def data(seed: int) -> Any:
    made = splits(80)
    named = {"train": made.train, "validation": made.validation, "test": made.test}
    return {name: (split.inputs, split.labels) for name, split in named.items()}


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Manifest]:
    for module in (export, verify, final_replay):
        monkeypatch.setattr(module, "run_limited", lambda call, *given, **_: call(*given))
    wanted = recipe(
        model={"target": f"{__name__}:Turned", "outputs": ["logits", "grid"]},
        data={"target": f"{__name__}:data"},
        train={"epochs": 1, "threads": 1},
        export=[{"kind": "onnx"}, {"kind": "torchscript"}],
    )

    def trained() -> Manifest:
        store, runs = str(tmp_path / "store"), tmp_path / "runs"
        return run(wanted, store, runs, console=Console(file=io.StringIO()))

    return trained


def test_a_turned_output_is_published_as_it_is(
    train: Callable[[], Manifest], tmp_path: Path
) -> None:
    manifest, store = train(), ModelStore(str(tmp_path / "store"))
    assert [artifact.name for artifact in manifest.artifacts] == ["onnx", "torchscript"]
    stored, folder = read_golden(store, manifest), tmp_path / "store" / MODEL / "1"
    assert first_failure(manifest, folder, stored) is None
    stored.outputs["grid"][7] += 1
    failure = first_failure(manifest, folder, stored)
    assert failure is not None
    assert failure.startswith("onnx: the stored golden rows: largest difference 1 is above")
    assert failure.endswith("most in row 7 of 'grid'")


def test_golden_rows_that_were_written_wrongly_are_not_published(
    train: Callable[[], Manifest], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(golden, "encode_tensors", encode_in_memory_order)
    with pytest.raises(
        NothingProvenError, match=r"'small' differ from what was verified.* of 'grid'"
    ):
        train()
    assert ModelStore(str(tmp_path / "store")).storage.list() == {}
