"""A rank by itself: its random numbers, and the end of its process."""

import random
import subprocess
import sys

import numpy as np
import torch

from training.distributed.ranks import Ranks

PROGRAM = """
import atexit, os
from training.distributed.ranks import exit_rank
atexit.register(os.abort)  # finalization would call it
print("all is written")
exit_rank(3)
"""


def test_a_rank_exits_with_its_output_and_without_finalization() -> None:
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=100, check=False
    )
    assert (found.returncode, found.stdout) == (3, "all is written\n")


def draws(rank: int, epoch: int) -> tuple[float, ...]:
    """Returns a number of each library, after the rank has seeded them."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    Ranks(rank, 3).seed(7, epoch)
    return random.random(), float(np.random.random()), torch.rand(1).item()


def test_every_rank_and_epoch_has_random_numbers_of_its_own() -> None:
    """Rank 0 keeps those of a run in one process."""
    places = [(0, 0), (1, 0), (2, 0), (1, 1)]
    for numbers in zip(*(draws(*place) for place in places), strict=True):
        assert len(set(numbers)) == len(places)
    assert draws(0, 0) == draws(0, 1)


def test_a_rank_that_resumes_has_the_random_numbers_it_had() -> None:
    first = draws(1, 4)
    Ranks(1, 3).seed(7, 4)
    assert (random.random(), float(np.random.random()), torch.rand(1).item()) == first
