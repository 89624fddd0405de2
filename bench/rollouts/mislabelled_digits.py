"""Digits of which 3 % of the training rows have wrong labels: of two classes, the labels swapped.

A network learns around labels that are swapped at random: with 3 % of all rows, its answers differ
from those of a network with the right labels in less than 1 % of the test rows. So the swapped rows
are those of one way of writing, as from one careless annotator: the rows of each class that are the
furthest in one direction of its first principal component.
"""

import numpy as np

from flambeau.protocol.tensors import Array
from training.datasets import digits

SWAPPED = (1, 7)


def mislabelled(
    seed: int, validation_share: float = 0.15, test_share: float = 0.2, share: float = 0.03
) -> dict[str, tuple[dict[str, Array], Array]]:
    """Returns `training.datasets.digits` with wrong labels among the training rows.

    Args:
        seed: as there, and so are the next two.
        validation_share: share of rows to choose the best epoch by; their labels are right.
        test_share: share of rows for the test; their labels are right.
        share: share of the training rows with swapped labels, half of them of each class.
    """
    splits = digits(seed, validation_share, test_share)
    inputs, labels = splits["train"]
    swapped, each = labels.copy(), round(share * len(labels) / 2)
    for label, other in (SWAPPED, SWAPPED[::-1]):
        rows = np.flatnonzero(labels == label)
        swapped[rows[_in_order_of_writing(inputs["image"][rows])[:each]]] = other
    return {**splits, "train": (inputs, swapped)}


def _in_order_of_writing(images: Array) -> Array:
    """Returns places of images, [rows], by their first principal component."""
    flat = images.reshape(len(images), -1)
    directions = np.linalg.svd(flat - flat.mean(0), full_matrices=False)[0]
    return np.argsort(directions[:, 0])
