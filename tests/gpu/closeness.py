"""When two arrays count as equal."""

import numpy as np

from flambeau.protocol.tensors import Array


def assert_close(found: Array, right: Array, tolerance: float = 1e-5) -> None:
    """Every element differs by at most the tolerance."""
    assert found.shape == right.shape
    difference = np.abs(found.astype(np.float64) - right.astype(np.float64))
    assert difference.max() <= tolerance
