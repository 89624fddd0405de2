"""Builds the network of a recipe with its trained weights.

In: a recipe and a file of weights. Out: the module, with the layer sizes after pruning.
"""

from collections.abc import Sequence
from pathlib import Path

from safetensors.torch import load_file, load_model
from torch import nn

from training.loop.compression.channel_removal import resize_like
from training.network.model import build_model
from training.process.reproducibility import reproducible
from training.recipe.recipe import Recipe


def trained_model(recipe: Recipe, weights: Path, inputs: Sequence[str]) -> nn.Module:
    """Builds the network, and loads its weights; in evaluation mode.

    Args:
        recipe: the run.
        weights: weights of its checkpoint, as safetensors.
        inputs: names of the model's inputs, in order.

    Raises:
        TargetError: the network's code cannot be found or does not take its arguments.
        RuntimeError: the weights are of another network.
    """
    with reproducible(recipe.seed, threads=1):
        model = build_model(recipe, inputs)
    if recipe.prune is not None and recipe.prune.structured:
        resize_like(model, load_file(weights))
    load_model(model, str(weights))
    return model.eval()
