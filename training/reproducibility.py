"""One place where randomness is taken out of a run."""

import contextlib
import random
from collections.abc import Iterator

import numpy as np
import torch


@contextlib.contextmanager
def reproducible(seed: int, threads: int, deterministic: bool = True) -> Iterator[None]:
    """Seeds every generator and allows only deterministic algorithms, until the block ends.

    Args:
        seed: of the run.
        threads: that torch computes with; 0 leaves them.
        deterministic: False allows the others too.
    """
    before = torch.are_deterministic_algorithms_enabled(), torch.get_num_threads()
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    torch.use_deterministic_algorithms(deterministic)
    if threads:
        torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0])
        torch.set_num_threads(before[1])
