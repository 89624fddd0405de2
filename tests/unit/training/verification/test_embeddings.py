"""Networks with embedding outputs: verified by direction, in training and at load."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from model_store.arrays.golden_replay import replay_everything, replay_once
from model_store.golden import GoldenRows, parse_golden
from model_store.store import ModelStore
from tests.unit.training.recipes import CLASSES, recipe, splits
from training.errors import RecipeError
from training.network.model import build_model, try_model
from training.pipeline import run

WIDTH = 16


class Embedder(nn.Module):
    """Classes, and a vector of large numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, image: Tensor) -> Any:
        hidden = torch.relu(self.layer(image.flatten(1)))
        return self.head(hidden), 400 * hidden


def data(seed: int) -> Any:
    made = splits(80)
    named = {"train": made.train, "validation": made.validation, "test": made.test}
    return {name: (split.inputs, split.labels) for name, split in named.items()}


def embedding_recipe(embeddings: list[str], **changes: Any) -> Any:
    document: dict[str, Any] = {
        "model": {
            "target": f"{__name__}:Embedder",
            "outputs": ["logits", "vector"],
            "embeddings": embeddings,
        },
        "data": {"target": f"{__name__}:data"},
        "train": {"epochs": 12, "threads": 1},
        "optim": {"adamw": {"lr": 0.02}},
        "export": [{"kind": "onnx"}, {"kind": "onnx", "precision": "int8"}],
    }
    return recipe(**{**document, **changes})


class Turned:
    """A backend that gives golden outputs, with the vectors turned."""

    def __init__(self, golden: GoldenRows, share: float) -> None:
        self.golden, self.share = golden, share

    def run(self, inputs: Any) -> dict[str, Any]:
        rows = [
            int(np.flatnonzero((self.golden.inputs["image"] == row).all(axis=(1, 2, 3)))[0])
            for row in inputs["image"]
        ]
        found = {name: array[rows].copy() for name, array in self.golden.outputs.items()}
        vector: Any = found["vector"]
        found["vector"] = vector + vector.dtype.type(self.share) * np.roll(vector, 1, axis=1)
        return found


@pytest.mark.long
def test_an_embedding_is_proven_by_its_direction_here_and_in_servers(tmp_path: Path) -> None:
    store = ModelStore(str(tmp_path / "s"))
    plain = run(embedding_recipe([]), str(tmp_path / "s"), tmp_path / "r")
    assert [one.name for one in plain.artifacts] == ["onnx"], "8 bits move single numbers"
    manifest = run(embedding_recipe(["vector"]), str(tmp_path / "s"), tmp_path / "r")
    found = {one.name: one.verification for one in manifest.artifacts}
    assert set(found) == {"onnx", "onnx-int8"}
    assert found["onnx"].tolerance.embeddings == ("vector",)
    assert found["onnx"].tolerance.min_cosine == 0.9999
    assert found["onnx-int8"].cosine is not None
    assert 0.95 < found["onnx-int8"].cosine < 1
    read = store.manifest(manifest.model, manifest.version)
    tolerance = read.artifacts[0].verification.tolerance
    assert tolerance.embeddings == ("vector",)
    assert plain.artifacts[0].verification.cosine is None
    assert b"cosine" not in plain.to_json()

    golden = parse_golden(store.read_file(read, read.golden.file), read)
    for share, proven in ((1e-6, True), (0.5, False)):
        backend: Any = Turned(golden, share)
        once = replay_once("here", backend.run, golden, 64, tolerance.single_gates)
        assert (once.failure(tolerance) is None) is proven
        compared = replay_everything(backend.run, golden, read.signature, tolerance.single_gates)
        assert all((one.failure(tolerance) is None) is proven for one in compared)


@pytest.mark.parametrize(
    ("embeddings", "words"),
    [
        (["vectr"], "model.embeddings names 'vectr', .*did you mean 'vector'"),
        (["logits"], "model.embeddings names 'logits', whose classes the loss is about"),
    ],
)
def test_only_outputs_that_are_vectors_are_embeddings(embeddings: list[str], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        embedding_recipe(embeddings)


class Flat(Embedder):
    """One number for each row."""

    def forward(self, image: Tensor) -> Any:
        logits, vector = super().forward(image)
        return logits, vector[:, 0]


def test_an_output_that_is_no_vector_is_refused_before_the_training() -> None:
    wanted = embedding_recipe(["vector"]).model_copy()
    model = wanted.model.model_copy(update={"target": f"{__name__}:Flat"})
    wanted = wanted.model_copy(update={"model": model})
    with pytest.raises(RecipeError, match=r"names 'vector', which is float32 \[2\] for two rows"):
        try_model(build_model(wanted), splits(), wanted)


def test_what_is_an_embedding_changes_no_weight() -> None:
    digests = {embedding_recipe(names).training_digest() for names in ([], ["vector"])}
    assert len(digests) == 1
