"""Makes the artifacts of a recipe, one or two files each, from a trained model.

In: the weights of the best epoch. Out: for every entry of `export` an artifact, or the reason of
its failure.

Rules: each is made in its own process, with limits, from only the recipe and the weights, so that
it can be made again later; one that fails, crashes or times out does not stop the others, and
leaves no file.
"""

from dataclasses import dataclass, field
from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor, nn

from flambeau.publishing.network_outputs import OutputsInOrder
from model_store.arrays.padded_rows import shortened
from model_store.host.cpu_features import cpu_features
from model_store.manifest import MadeWith
from training.errors import IsolationError
from training.exporters.exporter import ExportJob, exporter_of
from training.exporters.half_precision import half_device
from training.loading.splits import Splits
from training.loop.loop import Trained
from training.loop.trained_model import trained_model
from training.network.model import for_export
from training.network.preprocessing import change_network
from training.process.isolated_run import run_limited
from training.process.library_versions import library_versions
from training.process.quiet import quiet
from training.recipe.kinds.export_kinds import EXPORT_KINDS, Export, notes
from training.recipe.kinds.onnx_kind import OnnxExport
from training.recipe.recipe import Recipe
from training.tracking.progress import say

EXAMPLE_ROWS = 2
"""Rows of the example: exporters specialise on 0 and 1 rows, so it has more."""


@dataclass(frozen=True, slots=True)
class Exported:
    """One entry of the recipe after the attempt to make it."""

    entry: Export
    path: Path
    failure: str | None
    """Reason why there is no file at `path`; None if there is one."""
    made_with: MadeWith = field(default_factory=MadeWith)

    def paths(self) -> list[Path]:
        """Returns the paths of its one or two files."""
        weights = self.entry.weights_file
        return [self.path] if weights is None else [self.path, self.path.with_name(weights)]


def export_all(
    recipe: Recipe, trained: Trained, splits: Splits, folder: Path, console: Console
) -> list[Exported]:
    """Makes every artifact that the recipe lists.

    Args:
        recipe: recipe with the entries and their limits.
        trained: trained model.
        splits: data; the train split gives examples and calibration rows.
        folder: destination of the files.
        console: console for progress.
    """
    entries = recipe.listed_exports()
    for note in notes(entries):
        say(console, note)
    found = []
    for entry in entries:
        with console.status(f"exporting {entry.name}"):
            found.append(export_entry(recipe, trained, splits, entry, folder))
    return found


def export_entry(
    recipe: Recipe,
    trained: Trained,
    splits: Splits,
    entry: Export,
    folder: Path,
    *,
    graph: Path | None = None,
    time_limit_s: float | None = None,
) -> Exported:
    """Makes one artifact.

    Args:
        recipe: recipe that builds the model and has the limits.
        trained: trained model.
        splits: data; the train split gives examples and calibration rows.
        entry: entry to make.
        folder: destination of the file.
        graph: path of the FP32 ONNX graph, which may not exist yet; default in the folder.
        time_limit_s: time limit in seconds; default of the recipe.
    """
    rows = max(EXAMPLE_ROWS, getattr(entry, "calibration_rows", 0))
    inputs = {name: array[:rows] for name, array in splits.train.inputs.items()}
    graph = graph or folder / OnnxExport().file
    job = ExportJob(
        recipe,
        trained.weights,
        trained.signature,
        entry,
        inputs,
        folder,
        graph,
        trained.qat_weights,
    )
    return _attempt(job, time_limit_s)


def _attempt(job: ExportJob, time_limit_s: float | None) -> Exported:
    entry, limits = job.entry, job.recipe.export_limits
    path = job.folder / entry.file
    try:
        made_with = run_limited(
            export_one,
            job,
            limits=limits,
            time_limit_s=time_limit_s,
        )
    except IsolationError as error:
        refused = Exported(entry, path, f"export failed: {error}")
        for file in refused.paths():
            file.unlink(missing_ok=True)
        return refused
    return Exported(entry, path, None, made_with)


def export_one(job: ExportJob) -> MadeWith:
    """Makes one artifact; runs in its own process.

    Returns:
        The libraries, CPU features and device it was made with.

    Raises:
        Exception: any exception of the exporter for an unsupported model.
    """
    device = half_device() if job.entry.precision == "fp16" else "cpu"
    model = trained_model(job.recipe, job.weights, [spec.name for spec in job.signature.inputs])
    short = shortened(job.inputs, job.signature)
    example = tuple(torch.from_numpy(array[:EXAMPLE_ROWS]) for array in short.values())
    with quiet():
        network = for_export(model) if job.entry.takes_twin else model
        if getattr(job.entry, "method", None) != "script":
            network = _with_plain_outputs(network, example)
        exporter_of(job.entry.kind).write(network, example, job)
    return MadeWith(
        libraries=library_versions(EXPORT_KINDS[job.entry.kind].recorded),
        cpu_features=cpu_features(),
        device=device,
    )


def _with_plain_outputs(model: nn.Module, example: tuple[Tensor, ...]) -> nn.Module:
    """Returns the model; one that returns a dictionary or dataclass returns a tuple instead."""
    with torch.inference_mode():
        found = model(*example)
    if isinstance(found, Tensor | tuple | list):
        return model
    return change_network(model, OutputsInOrder).eval()
