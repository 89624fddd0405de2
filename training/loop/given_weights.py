"""Takes the weights of a recipe with `train: none` in place of a training.

In: `weights` of a recipe. Out: the same as from a training: a model with these weights, in
evaluation mode, and their file.

Rules: every weight of the network comes from the file, and every weight of the file goes into the
network; statistics of batch norms are those of the file.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from safetensors.torch import save_model
from torch import Tensor, nn

from model_store.manifest import DataFile
from training.errors import RecipeError
from training.loading.splits import Splits
from training.loop.loop import Trained
from training.loop.objective import make_objective
from training.loop.train_state import TrainState
from training.loop.transfer import TransferReport, copy_matching, named_as_in
from training.loop.weights_file import read_weights_file
from training.network.model import build_model, try_model
from training.network.preprocessing import network_of
from training.process.reproducibility import reproducible
from training.recipe.recipe import Recipe
from training.run_folder import RunFolder
from training.sources.data_files import DataFiles, DataReach
from training.tracking.progress import say

COUNTER = "num_batches_tracked"
"""A count of batch norms that only training reads; old files lack it."""


@dataclass(frozen=True, slots=True)
class GivenWeights:
    """The weights of a file that a recipe names."""

    file: DataFile
    """Path and digest, for the lineage."""
    tensors: dict[str, Tensor]


def read_given_weights(recipe: Recipe, reach: DataReach | None = None) -> GivenWeights | None:
    """Reads the file of `weights`; None if the recipe trains its network.

    Args:
        recipe: the run.
        reach: files that may be read; None for any.

    Raises:
        DataError: the file does not exist, is too large, or is not permitted.
        RecipeError: see `read_weights_file`.
    """
    if recipe.weights is None:
        return None
    files = DataFiles(reach or DataReach(), "weights")
    tensors = read_weights_file(files.file(recipe.weights), recipe.weights)
    return GivenWeights(files.noted[0], tensors)


def take_given_weights(
    recipe: Recipe, splits: Splits, folder: RunFolder, console: Console, given: GivenWeights
) -> Trained:
    """Builds the network, fills it with the given weights, and tries it.

    Args:
        recipe: the run.
        splits: the data.
        folder: the run's folder, which gets a copy of the weights.
        console: shows the progress.
        given: weights of the recipe.

    Raises:
        RecipeError: the weights do not fit the network.
        TargetError: the model is no `nn.Module`, cannot be made, or fails on the data.
        DataError: a row has a label that is no class of the model.
    """
    with reproducible(recipe.seed, recipe.train.threads, recipe.train.deterministic):
        model = build_model(recipe, list(splits.train.inputs))
        taken = _fill(model, given, recipe)
        signature = try_model(model, splits, recipe)
        widths = [spec.shape[-1] for spec in signature.outputs]
        loss = make_objective(recipe, splits.train_labels, widths)
    say(console, f"weights {given.file.path}: {taken} tensors, sha256 {given.file.sha256[:12]}…")
    return Trained(
        model=model.eval(),
        weights=_saved(model, folder.path / "weights.safetensors"),
        signature=signature,
        loss=loss,
        state=TrainState(finished=True),
        given=given.file,
    )


def _fill(model: nn.Module, given: GivenWeights, recipe: Recipe) -> int:
    """Copies all weights into the model. Returns the number of tensors.

    Raises:
        RecipeError: a weight is left over, missing or of another shape, or layers that share a
            weight have different ones in the file.
    """
    report = copy_matching(given.tensors, model)
    missing = tuple(name for name in report.missing if not name.endswith(COUNTER))
    report = TransferReport(report.taken, report.skipped, missing, report.unexpected)
    named = f"weights {given.file.path}: they do not fit model.target {recipe.model.target}"
    if report.skipped or report.missing or report.unexpected:
        raise RecipeError(
            f"{named}: {'; '.join(report.lines())}; give the weights of this network, or the "
            "model.args with which it was trained"
        )
    own = network_of(model).state_dict()
    wanted = named_as_in(own, given.tensors)
    for name in report.taken:
        if not torch.equal(own[name], wanted[name].to(own[name].dtype)):
            raise RecipeError(
                f"{named}: {name} shares its values with another layer of the network, and the "
                "file has different ones for them"
            )
    return len(report.taken)


def _saved(model: nn.Module, path: Path) -> Path:
    """Writes the weights of the model as safetensors, whole or not at all."""
    temporary = path.with_name(path.name + ".tmp")
    save_model(model, str(temporary))
    return temporary.replace(path)
