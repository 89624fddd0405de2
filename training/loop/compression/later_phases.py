"""Phases after the training: pruning, and quantization-aware training.

Pure except for the model. In: the recipe and the trained model. Out: the model at the start of the
next phase, and the recipe of that phase. A combination that cannot work fails here before the
training.
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from flambeau.protocol.signature import Signature
from model_store.arrays.padded_rows import shortened
from training.errors import RecipeError, TrainingError
from training.loading.splits import Split
from training.loop.compression.channel_removal import remove_channels
from training.loop.compression.pruning import in_words, zero_smallest
from training.network.model import for_export
from training.network.preprocessing import Preprocessed, network_of
from training.process.root_cause import root_cause
from training.recipe.parts.compression import PrunePart
from training.recipe.recipe import Recipe

EXAMPLE_ROWS = 2
"""torch.export treats 0 and 1 rows as special cases."""


def try_compression(model: nn.Module, recipe: Recipe, rows: Split, signature: Signature) -> None:
    """Runs the later phases on a copy of the untrained model.

    Raises:
        RecipeError: the model cannot be pruned or quantized as the recipe says.
    """
    if recipe.prune is None and recipe.qat is None:
        return
    state = torch.get_rng_state()
    model = copy.deepcopy(model).eval()
    if recipe.prune is not None:
        prune(model, recipe.prune, example_of(rows))
    if recipe.qat is not None:
        quantization_aware(model, recipe, rows, signature)
    torch.set_rng_state(state)  # these parts of a recipe change nothing about its training


def fine_tuning(recipe: Recipe, phase: str, epochs: int, lr_share: float) -> Recipe:
    """Returns the recipe of a phase: the same run with its own epochs and learning rate.

    Args:
        recipe: the recipe of the run.
        phase: the suffix of the run's name in this phase.
        epochs: the number of epochs.
        lr_share: its peak learning rate, as a share of the training's.
    """
    train: dict[str, Any] = {"epochs": epochs}
    # A rewritten network has other names, no batch norms and constants in host memory, its ranges
    # have no average, and it rounds FP32.
    rewritten = phase == "qat"
    model: dict[str, Any] = {}
    debug: dict[str, Any] = {}
    if rewritten:
        train |= {"ema": None, "activation_checkpoint": (), "precision": "fp32", "device": "cpu"}
        train |= {"compile": False, "sync_batch_norm": False}
        debug |= {"gradients": (), "activations": (), "backward": ()}
    if rewritten or recipe.model.unfreeze_at is not None:
        model |= {"freeze": (), "unfreeze_at": None}
    # Weights pruned within the training stay 0, and are not pruned again.
    part = recipe.prune and recipe.prune.model_copy(update={"at": None})
    if (forcing := recipe.train.teacher_forcing) is not None:
        train["teacher_forcing"] = forcing.model_copy(update={"first": forcing.last})
    return recipe.model_copy(
        update={
            "name": f"{recipe.name}, {phase}",
            "train": recipe.train.model_copy(update=train),
            "prune": part,
            "optim": recipe.optim.slower(lr_share, one_group=rewritten),
            "model": recipe.model.model_copy(update=model),
            "debug": recipe.debug.model_copy(update=debug),
        }
    )


def prune(model: nn.Module, part: PrunePart, example: tuple[Tensor, ...]) -> str:
    """Removes weights or channels of the model, in place.

    Returns:
        A message with the removed weights or channels.

    Raises:
        RecipeError: no layer matches, or no channel can be removed.
    """
    network = network_of(model)
    if not part.structured:
        zero_smallest(network, part)
        return in_words(network)
    before = _parameters(model)
    if isinstance(model, Preprocessed):
        example = tuple(model.prepare(list(example)))
    sizes = remove_channels(network, part, example)
    kept = ", ".join(f"{name} {old} to {new}" for name, (old, new) in sizes.items())
    return f"pruned: {before:,} parameters to {_parameters(model):,}; channels of {kept}"


def quantization_aware(
    model: nn.Module, recipe: Recipe, rows: Split, signature: Signature
) -> nn.Module:
    """Returns a copy of the model with rounding between its operations.

    Args:
        model: the model, in evaluation mode.
        recipe: the recipe of the run.
        rows: rows of training data.
        signature: has the variable axes.

    Raises:
        RecipeError: torch.export cannot trace the model.
    """
    from training.programs.quantization_aware import QuantizationAware

    short = shortened({n: a[:EXAMPLE_ROWS] for n, a in rows.inputs.items()}, signature)
    example = tuple(torch.from_numpy(array) for array in short.values())
    try:
        return QuantizationAware(for_export(model), example, signature, recipe.data.batch_size)
    except TrainingError as error:
        reason = str(error)
    except Exception as error:  # torch raises many types for a model that it cannot trace
        reason = root_cause(error)
    raise RecipeError(f"qat needs a model that torch.export takes: {reason}; drop qat") from None


def example_of(rows: Split) -> tuple[Tensor, ...]:
    """Returns some training rows, as the model's arguments."""
    return tuple(torch.from_numpy(array[:EXAMPLE_ROWS]) for array in rows.inputs.values())


def _parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
