"""A recipe's part of a certificate; the recipe must be the one of the version."""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_model

from flambeau.protocol.tensors import Array
from model_store.golden import GoldenRows
from model_store.manifest import Artifact, Manifest
from tests.fixtures.store_versions import artifact_in, draft_in
from tests.unit.training.recipes import recipe, splits
from training.auto.recipe_judge import RecipeJudge
from training.datasets import Split
from training.errors import DataError, TargetError
from training.network.model import build_model, try_model
from training.network.runner import Runner, module_runner
from training.recipe.recipe import Recipe


def data(seed: int) -> dict[str, tuple[dict[str, Array], Array]]:
    """The splits of other tests, as a recipe's data set gives them."""
    found = splits()

    def pair(split: Split) -> tuple[dict[str, Array], Array]:
        return split.inputs, split.labels

    return {
        "train": pair(found.train),
        "validation": pair(found.validation),
        "test": pair(found.test),
    }


class Published:
    """A version of an untrained model, as far as a judge looks at it."""

    def __init__(self, folder: Path) -> None:
        self.recipe: Recipe = recipe(
            data={"target": "tests.unit.training.auto.test_recipe_judge:data"},
            export=[{"kind": "onnx"}],
        )
        torch.manual_seed(0)
        model = build_model(self.recipe).eval()
        self.weights = folder / "checkpoint.safetensors"
        save_model(model, str(self.weights))
        signature = try_model(model, splits(), self.recipe)
        self.run: Runner = module_runner(model, signature)
        inputs = splits().test.golden_inputs()
        self.golden = GoldenRows(inputs, self.run(inputs))
        draft = draft_in(folder / "draft", signature=signature)
        lineage = draft.lineage.model_copy(update={"data_sha256": splits().sha256()})
        changed = draft.model_copy(update={"lineage": lineage})
        self.manifest: Manifest = changed.seal(1, datetime.now(UTC))
        self.artifact: Artifact = artifact_in(folder / "draft")

    def judge(self) -> RecipeJudge:
        return RecipeJudge(self.recipe, self.manifest, self.weights, self.golden)


@pytest.fixture
def published(tmp_path: Path) -> Published:
    return Published(tmp_path)


def test_the_checkpoint_agrees_with_itself(published: Published) -> None:
    compared, metrics, refusal = published.judge().judge(published.run, published.artifact)
    assert [one.where for one in compared] == ["the test split"]
    assert compared[0].parity.max_abs_difference < 1e-5
    assert set(metrics) == {"accuracy", "macro_f1"}
    assert refusal is None


def test_a_metric_that_falls_too_far_refuses(published: Published) -> None:
    def worst(inputs: Mapping[str, Array]) -> dict[str, Array]:
        labels = dict(zip(map(bytes, test.inputs["image"]), test.labels, strict=True))
        wrong = [(labels[bytes(image)] + 1) % 3 for image in inputs["image"]]
        return {"logits": np.eye(3, dtype=np.float32)[wrong]}

    test = splits().test
    compared, metrics, refusal = published.judge().judge(worst, published.artifact)
    assert metrics["accuracy"] == 0.0
    assert refusal is not None
    assert "accuracy fell from" in refusal
    assert compared[0].place.startswith("row ")


def test_other_data_shows_nothing(published: Published) -> None:
    lineage = published.manifest.lineage.model_copy(update={"data_sha256": "5" * 64})
    published.manifest = published.manifest.model_copy(update={"lineage": lineage})
    with pytest.raises(DataError, match=r"digits 1 was made of 555555555555…"):
        published.judge()


def test_other_code_shows_nothing(published: Published) -> None:
    wrong = {"logits": np.add(published.golden.outputs["logits"], 1, dtype=np.float32)}
    published.golden = GoldenRows(published.golden.inputs, wrong)
    with pytest.raises(TargetError, match=r"does not give the golden outputs of digits 1 any more"):
        published.judge()
