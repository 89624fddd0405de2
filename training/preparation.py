"""Prepares a run: loads its data, and completes the recipe with values of the data and store."""

from dataclasses import dataclass

from model_store.store import ModelStore
from training.datasets import load_splits, with_class_names
from training.distributed.ranks import ALONE, Ranks
from training.errors import RecipeError
from training.loading.splits import Splits
from training.loop.given_weights import GivenWeights, read_given_weights
from training.loop.transfer import FirstWeights, with_parent
from training.network.preprocessing import with_statistics
from training.network.python_step import Step, open_recipe_step
from training.recipe.parts.parallel_part import check_shares
from training.recipe.recipe import Recipe
from training.sources.data_files import DataReach


@dataclass(frozen=True, slots=True)
class Prepared:
    """Data and recipe of a run before training."""

    recipe: Recipe
    """With class names, statistics and the number of the parent version."""
    raw: Splits
    splits: Splits
    """After the Python step, if there is one."""
    step: Step | None
    first: FirstWeights | None
    given: GivenWeights | None
    """Weights that are published without training."""


def prepare(
    recipe: Recipe,
    store: ModelStore | None = None,
    reach: DataReach | None = None,
    ranks: Ranks = ALONE,
) -> Prepared:
    """Loads the data and the parent version of a run.

    Args:
        recipe: the run.
        store: store of the version of `model.from`; None for recipes without.
        reach: files of data that may be read; None for any.
        ranks: processes that share the batches.

    Raises:
        TrainingError: the data, the step or the version cannot be loaded.
        StoreError: the store cannot be read.
    """
    if recipe.weights is not None and ranks.world > 1:
        raise RecipeError(f"train is none, and torchrun started {ranks.world} processes; start one")
    given = read_given_weights(recipe, reach)
    first = None
    if store is not None:
        recipe, first = with_parent(recipe, store)
    raw = load_splits(recipe, reach)
    recipe = with_class_names(recipe, raw)
    try:
        check_shares(ranks.world, min(raw.train.rows, recipe.data.batch_size), "their size")
    except ValueError as error:
        raise RecipeError(str(error)) from None
    step = open_recipe_step(recipe)
    splits = raw if step is None else step.prepared(raw)
    return Prepared(with_statistics(recipe, splits), raw, splits, step, first, given)
