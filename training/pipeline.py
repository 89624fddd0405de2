"""One run from a recipe to a published version: train, export, verify, report, publish, promote."""

from pathlib import Path

from rich.console import Console

from model_store.manifest import Manifest
from model_store.pointers import PRODUCTION
from model_store.store import ModelStore, Sign
from training.attempts import prove_auto
from training.auto_export import AutoPart
from training.datasets import Splits, load_splits
from training.departure import with_departure
from training.export import export_all
from training.loop import Trained, evaluate, train
from training.preprocessing import with_statistics
from training.progress import say
from training.publish import promote, publish
from training.python_step import open_recipe_step
from training.recipe import Recipe
from training.report import AutoReport, Report, print_table
from training.run_folder import RunFolder
from training.verify import Reference, reference, verify_apart
from training.watcher import Watcher


def run(
    recipe: Recipe,
    store_url: str,
    runs_dir: Path,
    resume: bool = False,
    console: Console | None = None,
    sign: Sign | None = None,
    watcher: Watcher | None = None,
) -> Manifest:
    """Trains the recipe and publishes what is proven.

    Args:
        recipe: the run.
        store_url: the model store, a folder or `s3://bucket/prefix`.
        runs_dir: the folder of all runs; this one finds its own by recipe and data.
        resume: goes on from the newest checkpoint of the same recipe and data, if there is one.
        console: shows progress and the table; the standard output by default.
        sign: makes the version's signature; None leaves it unsigned.
        watcher: told how far the run is, and may stop it.

    Returns:
        The manifest of the published version.

    Raises:
        TrainingError: see `training.errors`.
        StoreError: the store cannot be opened or written; nothing is published.
    """
    console = console or Console()
    store = ModelStore(store_url)  # a store that cannot be opened fails here, not after training
    raw = load_splits(recipe)
    step = open_recipe_step(recipe)
    splits = raw if step is None else step.prepared(raw)
    recipe = with_statistics(recipe, splits)
    folder = RunFolder(Path(runs_dir), recipe, raw.sha256())
    with folder.locked():
        if watcher:
            watcher.begin(folder.path)
        trained = train(recipe, splits, folder, console, resume, watcher)
        files = folder.empty_version()
        golden, report = _prove(recipe, trained, splits, files, console)
        print_table(report, console)
        manifest = publish(recipe, raw, trained, golden, report, files, store, sign, step)
        moved = promote(recipe, manifest, store)
    outcome = f" → {PRODUCTION}" if moved else f"; {PRODUCTION} stays where it is"
    signed = ", signed" if sign else ""
    say(console, f"published {manifest.model} {manifest.version}{signed}{outcome}")
    return manifest


def _prove(
    recipe: Recipe, trained: Trained, splits: Splits, files: Path, console: Console
) -> tuple[Reference, Report]:
    """Exports the artifacts of the recipe, and replays each against the checkpoint."""
    golden, checkpoint = reference(trained, splits.test)
    auto: AutoReport | None = None
    if isinstance(recipe.export, AutoPart):
        trial = prove_auto(recipe, recipe.export.auto, trained, splits, golden, files, console)
        artifacts, auto = trial.artifacts(), trial.auto
    else:
        exported = export_all(recipe, trained, splits, files, console)
        with console.status("replaying every artifact against the checkpoint"):
            reports = [
                verify_apart(artifact, golden, recipe.export_limits) for artifact in exported
            ]
        with console.status("looking where refused artifacts depart"):
            artifacts = tuple(
                with_departure(report, artifact, golden, recipe, trained.weights)
                for report, artifact in zip(reports, exported, strict=True)
            )
    metrics = {
        **evaluate(trained.model, splits.validation, recipe, "val", trained.loss),
        **evaluate(trained.model, splits.test, recipe, "test", trained.loss),
    }
    return golden, Report(
        run=recipe.name,
        model=recipe.publish.model,
        epochs=trained.state.epoch,
        best_epoch=trained.state.best_epoch,
        metrics=metrics,
        checkpoint=checkpoint,
        artifacts=artifacts,
        auto=auto,
    )
