"""The order of rows: a function of the seed, the epoch and the sampler.

In: the sampler's facts about all rows. Out: places of rows in the split, in the order of one epoch.
A batch is a slice of the order; only the last one may be short.
"""

import numpy as np
import numpy.typing as npt

from flambeau.protocol.tensors import Array
from training.errors import RecipeError

Places = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


def shuffled(rows: int, seed: int, epoch: int) -> Places:
    """Returns every row once, [rows]."""
    return np.random.default_rng((seed, epoch)).permutation(rows)


def drawn(weights: Floats, seed: int, epoch: int) -> Places:
    """Draws as many rows as there are, with replacement, by weight, [rows].

    Args:
        weights: [rows], 0 or more.
        seed: the seed of the run.
        epoch: from 0.
    """
    # A cumulative sum and a search: shares need not add up to 1 to the last bit.
    ends = np.cumsum(weights)
    points = np.random.default_rng((seed, epoch)).random(len(weights)) * ends[-1]
    found: Places = np.searchsorted(ends, points, side="right")
    return np.minimum(found, int(np.flatnonzero(weights)[-1]))


def bucketed(lengths: Places, batch: int, window: int, seed: int, epoch: int) -> Places:
    """Returns every row once; each batch has rows of similar length, batches are shuffled.

    Args:
        lengths: [rows].
        batch: rows of one batch.
        window: batches that are sorted together.
        seed: the seed of the run.
        epoch: from 0.
    """
    random = np.random.default_rng((seed, epoch))
    order = random.permutation(len(lengths))
    size = batch * window
    parts = [order[start : start + size] for start in range(0, len(order), size)]
    order = np.concatenate([part[np.argsort(lengths[part], kind="stable")] for part in parts])
    whole = len(order) // batch
    batches = order[: whole * batch].reshape(whole, batch)
    # The short batch stays last: batches begin at multiples of their size.
    return np.concatenate([batches[random.permutation(whole)].ravel(), order[whole * batch :]])


def class_weights(labels: Array | None, where: str) -> Floats:
    """Returns weights by which every class is drawn equally often, [rows].

    Args:
        labels: labels of all training rows; None if they are not known.
        where: name of the data.

    Raises:
        RecipeError: there are no labels, they are no classes, or a row has several.
    """
    if labels is None:
        raise RecipeError(
            f"data.sampler balanced must know every label beforehand; give the data set of {where} "
            "an attribute `labels`, [rows], or take another sampler"
        )
    if labels.dtype.kind not in "iu" or labels.ndim != 1:
        raise RecipeError(
            f"data.sampler balanced needs one class for each row, and the labels of {where} are "
            f"{labels.dtype} {list(labels.shape)}; take plain or weighted"
        )
    _, classes, counts = np.unique(labels, return_inverse=True, return_counts=True)
    found: Floats = 1.0 / counts[classes]
    return found


def checked_weights(weights: object, rows: int, target: str) -> Floats:
    """Checks the return value of a `weighted` sampler's target, [rows].

    Raises:
        RecipeError: it is not one weight for each row, each 0 or more, and not all 0.
    """
    found = np.asarray(weights, np.float64)
    if found.shape != (rows,):
        raise RecipeError(
            f"data.sampler.weighted.target {target} returned shape {list(found.shape)}; return one "
            f"weight for each of the {rows} training rows"
        )
    if not np.isfinite(found).all() or (found < 0).any() or not found.any():
        wrong = np.flatnonzero(~np.isfinite(found) | (found < 0))
        what = f"{found[wrong[0]]} for row {wrong[0]}" if len(wrong) else "0 for every row"
        raise RecipeError(
            f"data.sampler.weighted.target {target} returned {what}; return 0 or more, and more "
            "than 0 for some"
        )
    return found
