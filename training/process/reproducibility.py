"""One place where randomness is taken out of a run."""

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


@contextlib.contextmanager
def unwritten_memory_shown() -> Iterator[Callable[[], None]]:
    """What reads memory that nothing has written gets NaN, until the function is called.

    Torch fills all new memory with NaN while it is to be deterministic, so that such a mistake is
    no matter of chance. Where there is none the filling changes no bit, and of a CNN on the CPU it
    takes a hundredth of each step: one step shows as much as all that do the same.

    Yields:
        The function; what it does ends with the block.
    """
    name = "fill_uninitialized_memory"
    before = getattr(torch_deterministic, name)
    try:
        yield partial(setattr, torch_deterministic, name, False)
    finally:
        setattr(torch_deterministic, name, before)
