"""scikit-learn's digits in five more forms: at many sizes, raw, as columns, as ink, as numbers.

Each function is a data set (see `training.datasets`) made from `training.datasets.digits`: an image
is in the same split in every form. 8 x 8 pixels from 0 to 1; the first axis is the rows.
"""

from collections.abc import Callable

import numpy as np

from flambeau.protocol.tensors import Array
from training.datasets import digits
from training.loading.label_arrays import IGNORED_LABEL

Found = dict[str, tuple[dict[str, Array], Array]]

SIDE = 8
"""Pixels of an image's edge, and of a column."""
LONGEST_INK = 48
"""Maximum number of ink pixels of a row; no image has more than 46 at the default threshold."""


def at_sizes(seed: int, canvas: int = 24, copies: int = 2) -> Found:
    """Enlarges each digit to 8 to `canvas` pixels, and places it on an empty canvas at random.

    A network that is trained on it accepts images of other sizes too: an image of 8 x 8 is a
    digit of that size without the canvas.

    Args:
        seed: seed of the splits, sizes and places.
        canvas: pixels of the edge of every image.
        copies: copies of each training digit, each of another size.

    Returns:
        `image`, FP32 [rows, 1, canvas, canvas], and the digits.
    """

    def place(images: Array, random: np.random.Generator) -> dict[str, Array]:
        return {"image": np.stack([_on_canvas(image[0], canvas, random) for image in images])}

    return _converted(seed, place, copies)


def as_raw(seed: int, side: int = 16) -> Found:
    """Enlarges each digit, in integers from 0 to 16, as a scanner returns them.

    Args:
        seed: seed of the splits.
        side: pixels of the edge of every image.

    Returns:
        `image`, UINT8 [rows, 1, side, side], and the digits.
    """

    def scan(images: Array, random: np.random.Generator) -> dict[str, Array]:
        large = np.stack([enlarge(image[0], side) for image in images])
        return {"image": np.rint(16 * large).astype(np.uint8)[:, None]}

    return _converted(seed, scan)


def as_columns(seed: int) -> Found:
    """Returns each digit as its columns from left to right, without empty ones at the edges.

    Returns:
        `columns`, FP32 [rows, 8, 8], 0 after the last column; `lengths`, INT64 [rows], 3 to 8; and
        the digits.
    """

    def cut(images: Array, random: np.random.Generator) -> dict[str, Array]:
        return _padded([_columns(image[0]) for image in images], SIDE)

    return _converted(seed, cut)


def as_ink(seed: int, threshold: float = 0.25) -> Found:
    """Returns each digit as a list of its pixels with ink, in reading order.

    Args:
        seed: seed of the splits.
        threshold: minimum darkness of a pixel, 0 to 1.

    Returns:
        `tokens`, INT64 [rows, 48]: 1 to 64 for light and 65 to 128 for dark pixels, 0 after the
        last; `mask`, BOOL [rows, 48], True for tokens; and the digits.
    """

    def list_ink(images: Array, random: np.random.Generator) -> dict[str, Array]:
        tokens = np.zeros((len(images), LONGEST_INK), np.int64)
        for row, image in enumerate(images):
            pixels = image.ravel()
            places = np.flatnonzero(pixels >= threshold)[:LONGEST_INK]
            dark = pixels[places] >= (1 + threshold) / 2
            tokens[row, : len(places)] = 1 + places + SIDE * SIDE * dark
        return {"tokens": tokens, "mask": tokens > 0}

    return _converted(seed, list_ink)


def as_numbers(seed: int, rows: int = 4000, longest: int = 3) -> Found:
    """Returns digits side by side that form a number: sequences to sequences.

    Args:
        seed: seed of the splits and of the digits of each number.
        rows: numbers for training; validation and test have an eighth as many each.
        longest: digits of the longest number.

    Returns:
        `columns`, FP32 [rows, 8 * longest, 8], and `lengths`, INT64 [rows]; the labels, INT64
        [rows, longest + 1], are the digits, the end symbol 10, and -100 after it.
    """
    found = {}
    for number, (name, (inputs, labels)) in enumerate(digits(seed).items()):
        random = np.random.default_rng((seed, number))
        count = rows if name == "train" else rows // 8
        found[name] = _numbers(inputs["image"], labels, count, longest, random)
    return found


def _converted(
    seed: int, convert: Callable[[Array, np.random.Generator], dict[str, Array]], copies: int = 1
) -> Found:
    found = {}
    for number, (name, (inputs, labels)) in enumerate(digits(seed).items()):
        times = copies if name == "train" else 1
        random = np.random.default_rng((seed, number))
        images = np.tile(inputs["image"], (times, 1, 1, 1))
        found[name] = (convert(images, random), np.tile(labels, times))
    return found


def _on_canvas(image: Array, canvas: int, random: np.random.Generator) -> Array:
    """Places [8, 8] on [1, canvas, canvas]."""
    size = int(random.integers(SIDE, canvas, endpoint=True))
    top, left = random.integers(0, canvas - size, 2, endpoint=True)
    whole = np.zeros((1, canvas, canvas), np.float32)
    whole[0, top : top + size, left : left + size] = enlarge(image, size)
    return whole


def enlarge(image: Array, size: int) -> Array:
    """Enlarges [height, width] to [size, size] bilinearly; corners stay in the corners."""
    rows, columns = (np.linspace(0, edge - 1, size) for edge in image.shape)
    up = np.stack([np.interp(rows, np.arange(len(image)), line) for line in image.T], axis=1)
    wide = [np.interp(columns, np.arange(image.shape[1]), line) for line in up]
    return np.stack(wide).astype(np.float32)


def _columns(image: Array) -> Array:
    """Returns the columns [length, 8] from the first to the last that is not empty."""
    filled = np.flatnonzero(image.any(axis=0))
    return np.ascontiguousarray(image.T[filled[0] : filled[-1] + 1])


def _padded(rows: list[Array], longest: int) -> dict[str, Array]:
    columns = np.zeros((len(rows), longest, SIDE), np.float32)
    for row, own in enumerate(rows):
        columns[row, : len(own)] = own
    return {"columns": columns, "lengths": np.array([len(own) for own in rows])}


def _numbers(
    images: Array, labels: Array, rows: int, longest: int, random: np.random.Generator
) -> tuple[dict[str, Array], Array]:
    strips, written = [], np.full((rows, longest + 1), IGNORED_LABEL)
    for row in range(rows):
        chosen = random.integers(0, len(images), random.integers(1, longest, endpoint=True))
        strips.append(np.concatenate([_columns(images[index, 0]) for index in chosen]))
        written[row, : len(chosen) + 1] = [*labels[chosen], 10]
    return _padded(strips, SIDE * longest), written
