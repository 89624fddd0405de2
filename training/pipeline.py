"""One run from a recipe to a published version: train, export, verify, report, publish, promote.

A recipe with `train: none` has its given weights in place of the first.
"""

from contextlib import nullcontext
from pathlib import Path

from rich.console import Console

from model_store.manifest import Manifest
from model_store.store import ModelStore, Sign
from training.auto.attempts import prove_auto
from training.distributed.ranks import ALONE, Ranks
from training.exporters.export import export_all
from training.loading.splits import Splits
from training.loop.evaluation import evaluate
from training.loop.given_weights import take_given_weights
from training.loop.loop import Trained, train
from training.loop.loop import assist as assist_training
from training.metrics.guess import Guess, best_guess
from training.metrics.task_metric import TaskMetric
from training.preparation import Prepared, prepare
from training.process.isolated_run import start_process_server
from training.promotion import Promotion, promote
from training.publish import check_bump, publish
from training.recipe.destination import check_destination
from training.recipe.needed_packages import check_packages
from training.recipe.parts.auto_export import AutoPart
from training.recipe.parts.loss_parts import LABELS
from training.recipe.parts.promotion_condition import GUESS
from training.recipe.recipe import Recipe
from training.reporting.curves import read_curves
from training.reporting.examination import Examination
from training.reporting.examiner import examine
from training.reporting.report import AutoReport, LiveComparison, Report, print_table
from training.run_folder import RunFolder
from training.sources.data_files import DataReach
from training.sources.named_files import check_named_files
from training.tracking.progress import say
from training.verification.departure import was_refused, with_departure
from training.verification.live_comparison import compare_with_live
from training.verification.verify import Reference, checkpoint_report, reference, verify_apart
from training.watcher import Watcher


def run(
    recipe: Recipe,
    store_url: str,
    runs_dir: Path,
    resume: bool = False,
    console: Console | None = None,
    sign: Sign | None = None,
    watcher: Watcher | None = None,
    reach: DataReach | None = None,
    ranks: Ranks = ALONE,
    into: str = "",
) -> Manifest:
    """Trains the recipe, or takes its weights, and publishes the verified artifacts.

    Args:
        recipe: the run.
        store_url: the model store.
        runs_dir: the folder of all runs; recipe and data decide the folder of this one.
        resume: True to resume from the newest checkpoint of the same recipe and data.
        console: shows progress and the table; the standard output by default.
        sign: makes the version's signature; None leaves it unsigned.
        watcher: receives the progress of the run, and may stop it.
        reach: files of data that may be read; None for any.
        ranks: all ranks of the run; this process is the first, and the others call `assist`.
        into: store for the version, whose aliases the caller moves; empty for `store_url`.

    Returns:
        The manifest of the published version.

    Raises:
        TrainingError: see `training.errors`.
        StoreError: the store cannot be opened or written; nothing is published.
    """
    console = console or Console()
    _check(recipe, reach, into)
    store = ModelStore(store_url)  # one that cannot be opened fails here, not after training
    target = ModelStore(into) if into else store
    prepared = prepare(recipe, store, reach, ranks)
    recipe, raw, splits, step = prepared.recipe, prepared.raw, prepared.splits, prepared.step
    folder = RunFolder(Path(runs_dir), recipe, raw.sha256())
    with folder.locked():
        if watcher:
            watcher.begin(folder.path)
        trained = _trained(prepared, folder, console, resume, watcher, ranks)
        check_bump(recipe, raw, trained, target, step)  # exporting may take longer than training
        files = folder.empty_version()
        golden, report = _prove(recipe, trained, splits, files, console)
        with console.status("comparing with the live version"):
            found = compare_with_live(recipe, trained, splits, golden, report.metrics, store, step)
        report = _completed(report, recipe, golden, raw, folder, found)
        print_table(report, console)
        warning = _warn(recipe, report.guess, console)
        manifest = publish(recipe, raw, trained, golden, report, files, target, sign, step)
        promotion = Promotion(False, "") if into else promote(recipe, manifest, store, found)
        if watcher:
            watcher.promoted(promotion.text + warning)
    outcome = f"{promotion.text}{promotion.advice(manifest, store_url)}"
    say(console, f"{'verified' if into else 'published'} {_named(manifest, sign)}{outcome}")
    return manifest


def _check(recipe: Recipe, reach: DataReach | None, into: str) -> None:
    check_destination(recipe, into)
    check_named_files(recipe, reach)
    check_packages(recipe)


def _named(manifest: Manifest, sign: Sign | None) -> str:
    return f"{manifest.model} {manifest.version_text}{', signed' if sign else ''}"


def _trained(
    prepared: Prepared,
    folder: RunFolder,
    console: Console,
    resume: bool,
    watcher: Watcher | None,
    ranks: Ranks,
) -> Trained:
    """Trains the network, or takes the weights of the recipe."""
    recipe, splits = prepared.recipe, prepared.splits
    if prepared.given is not None:
        return take_given_weights(recipe, splits, folder, console, prepared.given)
    return train(recipe, splits, folder, console, resume, watcher, prepared.first, ranks)


def _completed(
    report: Report,
    recipe: Recipe,
    golden: Reference,
    raw: Splits,
    folder: RunFolder,
    comparison: LiveComparison | None,
) -> Report:
    """Adds the comparison, the curves of training and the examination of answers to a report."""
    curves, examination = read_curves(recipe, folder), _examination(recipe, golden, raw)
    return report.model_copy(
        update={"comparison": comparison, "curves": curves, "examination": examination}
    )


def _examination(recipe: Recipe, golden: Reference, raw: Splits) -> Examination | None:
    """Examines the answers of the checkpoint to the test rows."""
    outputs = golden.test_outputs[golden.signature.outputs[0].name]
    names = recipe.answer_labels()
    return examine(golden.metric, outputs, golden.test.labels, names, raw.test.inputs)


def _warn(recipe: Recipe, guess: Guess | None, console: Console) -> str:
    """Warns if a guess is as good as the model; returns the text for the last event."""
    warning = None if guess is None else guess.warning()
    if guess is None or warning is None:
        return ""
    advice = "train longer, or another network"
    if recipe.weights is not None:
        advice = "check that weights, preprocess and the order of classes belong together"
    say(
        console,
        f"warning: {warning}; {advice}; publish: {{if: {guess.condition}}} "
        "keeps such a version from going live",
    )
    return f"; warning: {warning}"


def assist(
    recipe: Recipe,
    store_url: str,
    runs_dir: Path,
    resume: bool,
    watcher: Watcher,
    reach: DataReach,
    ranks: Ranks,
) -> None:
    """Trains together with the first rank, which does all else alone.

    Args:
        recipe: the run.
        store_url: the store of the first rank.
        runs_dir: the runs folder of the first rank.
        resume: the same value as on the first rank.
        watcher: may end the run on all ranks.
        reach: the same value as on the first rank.
        ranks: all ranks of the run.

    Raises:
        TrainingError: see `training.errors`.
    """
    prepared = prepare(recipe, ModelStore(store_url), reach, ranks)
    recipe = prepared.recipe
    folder = RunFolder(runs_dir, recipe, prepared.raw.sha256())
    first = prepared.first
    assist_training(recipe, prepared.splits, folder, resume, watcher, first, ranks)


def _prove(
    recipe: Recipe, trained: Trained, splits: Splits, files: Path, console: Console
) -> tuple[Reference, Report]:
    """Exports the artifacts of the recipe, and compares each with the checkpoint."""
    start_process_server()  # for what verifies them; it imports its libraries beside this process
    embeddings = recipe.model.embeddings
    golden, metric = reference(trained, splits.test, TaskMetric.of(recipe), embeddings)
    checkpoint = checkpoint_report(recipe, trained, golden, metric)
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
        looking = "locating the departure of refused artifacts"
        with console.status(looking) if any(map(was_refused, reports)) else nullcontext():
            artifacts = tuple(
                with_departure(report, artifact, golden, recipe, trained.weights)
                for report, artifact in zip(reports, exported, strict=True)
            )
    metrics = {
        **evaluate(trained.model, splits.validation, recipe, "val", trained.loss),
        **evaluate(trained.model, splits.test, recipe, "test", trained.loss),
    }
    guess = best_guess(
        golden.metric,
        splits.train_labels[LABELS],
        golden.test.labels,
        metric,
        golden.signature.outputs[0].shape[-1],
        recipe.answer_labels(),
    )
    if guess is not None:
        metrics |= {f"{GUESS}/{name}": value for name, value in guess.metrics.items()}
    return golden, Report(
        run=recipe.name,
        model=recipe.publish.model,
        epochs=trained.state.epoch,
        best_epoch=trained.state.best_epoch,
        metrics=metrics,
        checkpoint=checkpoint,
        artifacts=artifacts,
        auto=auto,
        guess=guess,
    )
