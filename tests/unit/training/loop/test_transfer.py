"""Training from a stored version: matching weights are loaded, others reported, with lineage."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from rich.console import Console
from safetensors.torch import load_file, save
from torch import Tensor, nn

from model_store.errors import DigestMismatchError
from model_store.manifest import Parent
from model_store.store import ModelStore
from tests.fixtures.store_versions import draft_in, entry_in
from tests.unit.training.recipes import CLASSES, DATA, recipe, splits
from training.errors import RecipeError
from training.loop.loop import train
from training.loop.transfer import CHECKPOINT, FirstWeights, with_parent
from training.network.model import build_model
from training.network.stored_version import with_parent_number
from training.recipe.file import parse_recipe, resolved_yaml
from training.recipe.recipe import Recipe
from training.run_folder import RunFolder

PARENT = Parent(model="digits", version=1, checkpoint_sha256="4" * 64)


def beginning_with(version: str, **changes: Any) -> Recipe:
    model = {"target": "training.networks:SmallCnn", "args": {"width": 4, "classes": CLASSES}}
    return recipe(model={**model, "from": version}, **changes)


def other_head() -> dict[str, Tensor]:
    """Weights of the same network for ten classes, from another random state."""
    torch.manual_seed(9)
    chosen = recipe(model={"target": "training.networks:SmallCnn", "args": {"width": 4}})
    return build_model(chosen).state_dict()


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    """Holds `digits` 1, which is `production`, with a checkpoint."""
    folder, store = tmp_path / "draft", ModelStore(str(tmp_path / "store"))
    files = (entry_in(folder, CHECKPOINT, save(other_head())),)
    store.publish(draft_in(folder, files=files), folder)
    store.promote("digits", 1)
    return store


def test_a_run_begins_with_what_fits_and_tells_what_does_not(
    tmp_path: Path, store: ModelStore
) -> None:
    still = {"train": {"epochs": 1}, "optim": {"adamw": {"lr": 1e-12}}}
    asked = beginning_with("digits@production", **still)
    chosen, first = with_parent(asked, store)
    assert chosen.document()["model"]["from"] == "digits@1"
    assert parse_recipe(resolved_yaml(chosen), "stored") == chosen
    shown, folder = io.StringIO(), RunFolder(tmp_path / "runs", chosen, DATA)
    with folder.locked():
        found = train(chosen, splits(), folder, Console(file=shown), first=first)
    entry = store.manifest("digits", 1).file(CHECKPOINT)
    assert entry is not None
    assert found.parent == Parent(
        model="digits", version=1, checkpoint_sha256=entry.sha256, semver="1.0.0"
    )
    told, given = json.loads(folder.transfer.read_text()), other_head()
    skipped = {"head.2.weight", "head.2.bias"}
    assert set(told["skipped"]) == skipped
    assert set(told["taken"]) == set(given) - skipped
    assert told["missing"] == told["unexpected"] == []
    assert f"from digits@1 (1.0.0): {len(given) - 2} weights taken\n" in shown.getvalue()
    assert "2 skipped for their shape: head.2.bias ([10] there, [3] here)" in shown.getvalue()
    weights = load_file(found.weights)
    assert torch.allclose(weights["features.0.weight"], given["features.0.weight"])


def test_names_of_one_side_only_are_told_and_shared_weights_are_not_missing() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
            self.second.weight = self.first.weight

    model, weight = Tied(), torch.ones(4, 4)
    first = FirstWeights(
        PARENT,
        {"second.weight": weight, "first.bias": torch.ones(4).int(), "old.bias": torch.ones(4)},
    )
    found = first.put_into(model)
    assert (found.taken, found.unexpected) == (("second.weight",), ("old.bias",))
    assert found.missing == ("second.bias",)
    assert found.skipped == {"first.bias": "[4] int32 there, [4] here"}
    assert torch.equal(model.first.weight, weight)


@pytest.mark.parametrize("behind", [True, False])
def test_preprocessing_on_either_side_changes_no_name(behind: bool) -> None:
    steps = [{"normalize": {"mean": [0.5], "std": [2.0]}}]
    plain, stepped = recipe(), recipe(preprocess=steps)
    old = build_model(stepped if behind else plain, ["image"])
    new = build_model(plain if behind else stepped, ["image"])
    found = FirstWeights(PARENT, old.state_dict()).put_into(new)
    assert (found.skipped, found.missing) == ({}, ())
    weights = [
        next(tensor for name, tensor in model.state_dict().items() if "features.0.weight" in name)
        for model in (old, new)
    ]
    assert torch.equal(*weights)


def test_weights_of_another_network_are_refused() -> None:
    first = FirstWeights(PARENT, {"stem.weight": torch.ones(2, 2)})
    with pytest.raises(RecipeError, match=r"digits@1: none of its weights fits .* stem.weight"):
        first.put_into(build_model(recipe()))


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("digit@1", r"model 'digit' is not in the store .*did you mean 'digits'"),
        ("digits@2", "has no version 2; published: 1"),
        ("digits@prodction", "no alias 'prodction' .did you mean 'production'.*; its versions: 1"),
    ],
)
def test_a_version_that_is_not_there_is_named(version: str, words: str, store: ModelStore) -> None:
    with pytest.raises(RecipeError, match=words):
        with_parent(beginning_with(version), store)


def test_a_range_of_semantic_versions_takes_the_newest_that_fits(
    tmp_path: Path, store: ModelStore
) -> None:
    folder = tmp_path / "later"
    files = (entry_in(folder, CHECKPOINT, save(other_head()) + b" "),)
    for bump in ("minor", "major"):
        store.publish(draft_in(folder, files=files), folder, bump=bump)  # 2 and 3: 1.1.0, 2.0.0
    store.promote("digits", 3, alias="1.0.0")
    wanted = {"^1": 2, "^1.0.0": 2, "~1.0": 1, "^2": 3, "1.1.0": 2, "2": 2, "1.0.0": 3}
    for text, version in wanted.items():
        chosen = with_parent_number(beginning_with(f"digits@{text}"), store)
        assert chosen.model.from_ == f"digits@{version}", text
    with pytest.raises(RecipeError, match=r"no version of 'digits' fits \^3; it has: 2\.0\.0, 1"):
        with_parent(beginning_with("digits@^3"), store)
    with pytest.raises(RecipeError, match=r"write \^1\.1, ~1\.1 or all three numbers"):
        with_parent(beginning_with("digits@1.1"), store)
    with pytest.raises(ValidationError, match="write a version such as"):
        beginning_with("digits@^1.x")


def test_a_changed_checkpoint_is_not_read(tmp_path: Path, store: ModelStore) -> None:
    path = tmp_path / "store" / "digits" / "1" / CHECKPOINT
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(DigestMismatchError, match="sha256 differs"):
        with_parent(beginning_with("digits@1"), store)


def test_a_version_without_a_checkpoint_is_refused(tmp_path: Path, store: ModelStore) -> None:
    store.publish(draft_in(tmp_path / "bare", model="bare"), tmp_path / "bare")
    with pytest.raises(RecipeError, match=r"without checkpoint\.safetensors"):
        with_parent(beginning_with("bare@1"), store)


def test_an_unknown_key_beside_from_is_told_the_name_that_recipes_have() -> None:
    with pytest.raises(RecipeError, match=r"unknown key 'form' in 'model' .did you mean 'from'"):
        parse_recipe(resolved_yaml(recipe()).replace("  from:", "  form:"), "recipe.yaml")
