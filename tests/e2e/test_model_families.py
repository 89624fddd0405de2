"""Every family of networks, from its recipe to a published version: short runs on real data.

The recipes train for longer; here a few epochs show that each kind of artifact is verified, and
that the accuracy is far above chance.
"""

import io
from pathlib import Path

import pytest
from rich.console import Console

from model_store.manifest import Manifest
from model_store.store import ModelStore
from services.inference.loading.loader import LoadOptions, load_version
from training.pipeline import run
from training.recipe.file import load_recipe
from training.reporting.report import Report

RECIPES = Path(__file__).parents[2] / "training/recipes"

FAMILIES: dict[str, tuple[float, tuple[str, ...]]] = {
    "breast_cancer_mlp": (0.9, ("train.epochs=8",)),
    "digits_residual_cnn": (
        0.5,
        ("train.epochs=3", "data.args={canvas: 16, copies: 1}", "dynamic={image: {2: [8, 16]}}"),
    ),
    "digits_lstm": (0.7, ("train.epochs=6", "model.args.hidden=24")),
    "digits_encoder": (0.6, ("train.epochs=5", "model.args.layers=1")),
    "numbers_seq2seq": (
        0.35,
        (
            "train.epochs=5",
            "data.args={rows: 1000, longest: 2}",
            "data.batch_size=32",
            "model.args={symbols: 11, longest: 3, hidden: 32}",
        ),
    ),
    "digits_swish": (0.85, ("train.epochs=5",)),
    "digits_early_exit": (0.7, ("train.epochs=6",)),
}
"""By recipe, the minimum accuracy of a short run, and the settings that shorten it."""
LONG = {"digits_residual_cnn", "digits_lstm", "digits_encoder", "numbers_seq2seq"}


def trained(recipe: str, overrides: tuple[str, ...], folder: Path) -> tuple[ModelStore, Manifest]:
    store = str(folder / "store")
    # Tolerances of quantized kinds are for networks with confident outputs.
    chosen = load_recipe(str(RECIPES / f"{recipe}.yaml"), [*overrides, "track=[]"])
    loose = {"max_abs_difference": 1.0, "min_agreement": 0.9}
    export = [
        entry.model_copy(update={"tolerance": entry.tolerance.model_copy(update=loose)})
        if entry.precision == "int8"
        else entry
        for entry in chosen.listed_exports()
    ]
    chosen = chosen.model_copy(update={"export": tuple(export)})
    manifest = run(chosen, store, folder / "runs", console=Console(file=io.StringIO()))
    return ModelStore(store), manifest


@pytest.mark.parametrize(
    "recipe",
    [pytest.param(name, marks=pytest.mark.long if name in LONG else []) for name in FAMILIES],
)
def test_a_family_learns_and_every_kind_of_its_recipe_is_proven(
    recipe: str, tmp_path: Path
) -> None:
    floor, overrides = FAMILIES[recipe]
    store, manifest = trained(recipe, overrides, tmp_path)
    entry = manifest.file("report.json")
    assert entry is not None
    report = Report.model_validate_json(store.read_file(manifest, entry))
    assert {artifact.name: artifact.refusal for artifact in report.artifacts} == {
        artifact.name: None for artifact in report.artifacts
    }
    judged = report.checkpoint.metric
    assert judged is not None
    assert judged.value >= floor
    for artifact in manifest.artifacts:
        proof = artifact.verification
        assert proof.metrics["accuracy"] >= floor - 0.05
        if artifact.precision == "fp32":
            assert proof.max_abs_difference < 1e-4
            assert proof.metrics["accuracy"] == pytest.approx(judged.value, abs=0.01)
    loaded = load_version(store, manifest, LoadOptions(artifact="onnx"))
    for backend in loaded.backends:
        backend.close()


def test_every_recipe_that_ships_is_tried() -> None:
    found = {path.stem for path in RECIPES.glob("*.yaml")}
    # These three: tests/e2e/test_training.py, test_preprocessing.py, and a unit test of numbers.
    assert found == {*FAMILIES, "digits_cnn", "digits_raw", "diabetes_mlp"}
