"""The measured models: trained, verified and published once, by the recipes in this folder.

    python -m bench.measured.models [--store var/bench_store]

Publishes `tiny-mlp`, `cnn`, `encoder` and `text`, each with TorchScript, ONNX and ONNX int8, unless
the newest version in the store comes from the same recipe. Peers load the weights with
`load_network`, or without our code: `bench/measured/networks.py` is plain torch, and
`<store>/<model>/<version>/checkpoint.safetensors` is the `state_dict` of its class.
"""

import argparse
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from model_store.errors import ModelNotFoundError
from model_store.manifest import Manifest
from model_store.store import ModelStore

if TYPE_CHECKING:
    from torch import nn

    from training.recipe.recipe import Recipe

ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "bench" / "recipes"
STORE = ROOT / "var" / "bench_store"
RUNS = ROOT / "var" / "bench_runs"


def ensure_bench_models(store_url: str = str(STORE), only: str = "") -> None:
    """Trains and publishes missing models; takes minutes the first time, no time after that.

    Args:
        store_url: URL of the bench store.
        only: name of a single model to ensure; empty for all.

    Raises:
        TrainingError, StoreError: see `training.pipeline.run`.
    """
    from training.pipeline import run
    from training.recipe.file import load_recipe

    store = ModelStore(store_url)
    for path in sorted(RECIPES.glob("*.yaml")):
        recipe = load_recipe(str(path))
        if recipe.publish.model != (only or recipe.publish.model):
            continue
        if not _is_published(store, recipe):
            run(recipe, store_url, RUNS)


def load_network(store_url: str, model: str) -> "nn.Module":
    """Loads the trained network of a model's newest version, in evaluation mode.

    Args:
        store_url: URL of the bench store.
        model: name in the store, such as `cnn`.

    Raises:
        ModelNotFoundError: no version is published; call `ensure_bench_models` first.
        StoreError: a file of the version is missing or damaged.
    """
    from safetensors.torch import load

    from training.network.model import build_model
    from training.publish import CHECKPOINT, RECIPE
    from training.recipe.file import parse_recipe

    store = ModelStore(store_url)
    manifest = _newest(store, model)
    recipe = parse_recipe(_read(store, manifest, RECIPE).decode(), f"{model}: {RECIPE}")
    network = build_model(recipe, [spec.name for spec in manifest.signature.inputs])
    network.load_state_dict(load(_read(store, manifest, CHECKPOINT)))
    return network.eval()


def _is_published(store: ModelStore, recipe: "Recipe") -> bool:
    from training.recipe.file import resolved_yaml

    try:
        manifest = _newest(store, recipe.publish.model)
    except ModelNotFoundError:
        return False
    digest = hashlib.sha256(resolved_yaml(recipe).encode()).hexdigest()
    return manifest.lineage.recipe_sha256 == digest


def _newest(store: ModelStore, model: str) -> Manifest:
    return store.manifest(model, store.versions(model)[-1])


def _read(store: ModelStore, manifest: Manifest, name: str) -> bytes:
    entry = manifest.file(name)
    assert entry is not None, f"training publishes {name} with every version"
    return store.read_file(manifest, entry)


def main() -> None:
    """Fills the store, and prints its contents."""
    parser = argparse.ArgumentParser(prog="python -m bench.measured.models", description=__doc__)
    parser.add_argument("--store", default=str(STORE), help="folder or URL of a bucket")
    url = parser.parse_args().store
    ensure_bench_models(url)
    store = ModelStore(url)
    for model in store.models():
        manifest = _newest(store, model)
        names = ", ".join(artifact.name for artifact in manifest.artifacts_by_speed())
        print(f"{model} {manifest.version}: {names} (fastest first)")


if __name__ == "__main__":
    main()
