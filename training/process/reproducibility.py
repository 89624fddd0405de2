"""Makes runs reproducible: seeds, and deterministic algorithms."""

import contextlib
import random
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch
from torch.utils import deterministic as torch_deterministic


@contextlib.contextmanager
def reproducible(seed: int, threads: int, deterministic: bool = True) -> Iterator[None]:
    """Seeds every generator and allows only deterministic algorithms, until the block ends.

    Args:
        seed: the seed of the run.
        threads: number of torch's threads; 0 leaves it as it is.
        deterministic: False permits other algorithms too.
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


@contextlib.contextmanager
def unwritten_memory_shown() -> Iterator[Callable[[], None]]:
    """Fills new memory with NaN, until the yielded function is called.

    Torch does so in deterministic mode, so that reading uninitialised memory never goes unnoticed
    by chance. A correct program's results do not depend on the fill, which for a CNN on the CPU
    takes a hundredth of each step: one step shows as much as all equal ones.

    Yields:
        The function; its effect ends with the block.
    """
    name = "fill_uninitialized_memory"
    before = getattr(torch_deterministic, name)
    try:
        yield partial(setattr, torch_deterministic, name, False)
    finally:
        setattr(torch_deterministic, name, before)
