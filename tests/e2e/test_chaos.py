"""A quarter of a minute of chaos; `make chaos` has ten minutes of it."""

import random

from tests.chaos.chaos import run_chaos

SECONDS = 15


def test_no_request_is_lost_or_answered_twice_whatever_dies() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # pytest shows it when this fails
    assert run_chaos(SECONDS, seed, "valkey").complaints() == []
