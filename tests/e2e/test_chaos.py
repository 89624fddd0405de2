"""A quarter of a minute of chaos on each shape; `make chaos` has ten minutes of it."""

import random

import pytest

from tests.chaos.chaos import run_chaos
from tests.chaos.processes_chaos import run_processes_chaos

SECONDS = 15
pytestmark = pytest.mark.long


def test_no_request_is_lost_or_answered_twice_whatever_dies() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # pytest shows it when this fails
    assert run_chaos(SECONDS, seed, "valkey").complaints() == []


def test_no_request_is_lost_or_answered_twice_whichever_of_several_processes_dies() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    assert run_processes_chaos(SECONDS, seed).complaints() == []
