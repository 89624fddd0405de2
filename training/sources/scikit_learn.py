"""The data sets in scikit-learn's wheel: nothing is downloaded."""

import importlib

import numpy as np

from training.sources.rows import Rows


def read_scikit_learn(name: str) -> tuple[Rows, tuple[str, ...]]:
    """Reads all rows of a set.

    Args:
        name: `digits`, `iris`, `wine`, `breast_cancer` or `diabetes`.

    Returns:
        The rows: `image`, FP32 [rows, 1, 8, 8] from 0 to 1, for digits, `features`, FP32
        [rows, features] as measured, for the others. Labels INT64 [rows], for diabetes FP32. And
        the names of the classes; none for diabetes.
    """
    # Imported by name, since scikit-learn has no types.
    module = importlib.import_module("sklearn.datasets")
    # scikit-learn scales diabetes by all rows, which no client can repeat.
    options = {"scaled": False} if name == "diabetes" else {}
    bunch = getattr(module, f"load_{name}")(**options)
    if name == "digits":
        inputs = {"image": (bunch.images / 16.0).astype(np.float32)[:, None]}
    else:
        inputs = {"features": bunch.data.astype(np.float32)}
    names = tuple(str(target) for target in bunch.get("target_names", ()))
    labels = bunch.target.astype(np.int64 if names else np.float32)
    return Rows(inputs, labels, lambda row: f"row {row} of {name}"), names
