"""Data for the measured networks: generated from a seed, learned in seconds.

Each function is a data set of `training.datasets`: the class of a row shows through noise, so
that a short training ends in a model with confident answers, as a real model has.
"""

import numpy as np

from bench.measured.networks import CLASSES, VOCABULARY
from flambeau.protocol.tensors import Array

Splits = dict[str, tuple[dict[str, Array], Array]]

VALIDATION_ROWS, TEST_ROWS = 32, 64
SHORTEST, LONGEST = 8, 128
"""Shortest and longest text, in tokens."""
OWN_WORDS = 5
"""Words of the vocabulary that belong to one class."""


def feature_vectors(seed: int, rows: int = 2048) -> Splits:
    """Returns `features`, FP32 [rows, 64]: ten clouds."""
    random = np.random.default_rng(seed)
    labels = _labels(random, rows)
    centres = random.normal(size=(CLASSES, 64))
    features = centres[labels] + random.normal(size=(len(labels), 64))
    return _split({"features": features.astype(np.float32)}, labels)


def images(seed: int, rows: int = 96) -> Splits:
    """Returns `image`, FP32 [rows, 3, 64, 64]: ten shifted patterns of 8 x 8 coloured squares."""
    random = np.random.default_rng(seed)
    labels = _labels(random, rows)
    patterns = random.normal(size=(CLASSES, 3, 8, 8)).repeat(8, axis=2).repeat(8, axis=3)
    moved = [np.roll(patterns[label], random.integers(0, 4, 2), (1, 2)) for label in labels]
    image = np.stack(moved) + 0.5 * random.normal(size=(len(labels), 3, 64, 64))
    return _split({"image": image.astype(np.float32)}, labels)


def sentences(seed: int, rows: int = 160) -> Splits:
    """Returns `tokens`, INT64 [rows, 64]: each class has words of its own."""
    random = np.random.default_rng(seed)
    labels = _labels(random, rows)
    return _split({"tokens": _tokens(random, labels, 64)}, labels)


def texts(seed: int, rows: int = 512) -> Splits:
    """Returns `tokens` and `mask`, INT64 and BOOL [rows, 128]: 8 to 128 words, then padding."""
    random = np.random.default_rng(seed)
    labels = _labels(random, rows)
    lengths = random.integers(SHORTEST, LONGEST, len(labels), endpoint=True)
    mask = np.arange(LONGEST) < lengths[:, None]
    return _split({"tokens": _tokens(random, labels, LONGEST) * mask, "mask": mask}, labels)


def _labels(random: np.random.Generator, train_rows: int) -> Array:
    return random.integers(0, CLASSES, train_rows + VALIDATION_ROWS + TEST_ROWS)


def _tokens(random: np.random.Generator, labels: Array, length: int) -> Array:
    """Draws tokens; about every second one is a word that only the class has."""
    shape = (len(labels), length)
    own = OWN_WORDS * labels.astype(np.int64)[:, None] + random.integers(0, OWN_WORDS, shape)
    common = random.integers(OWN_WORDS * CLASSES, VOCABULARY, shape)
    return np.where(random.random(shape) < 0.5, own, common)


def _split(inputs: dict[str, Array], labels: Array) -> Splits:
    """Splits off the last rows for validation and test."""
    first = len(labels) - VALIDATION_ROWS - TEST_ROWS
    parts = {
        "train": slice(first),
        "validation": slice(first, first + VALIDATION_ROWS),
        "test": slice(first + VALIDATION_ROWS, None),
    }
    return {
        name: ({key: array[part] for key, array in inputs.items()}, labels[part])
        for name, part in parts.items()
    }
