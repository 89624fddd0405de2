"""Options of the simulation: number of requests, and the seed that replays a failure."""

import pytest

SIMULATED_REQUESTS = "--simulated-requests"
SIMULATION_SEED = "--simulation-seed"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of a run that names this folder, such as `pytest tests/unit/inference ...`."""
    parser.addoption(
        SIMULATED_REQUESTS,
        type=int,
        default=100_000,
        help="how many requests test_simulation.py sends; 1000000 take a minute and a half",
    )
    parser.addoption(
        SIMULATION_SEED,
        type=int,
        default=None,
        help="the seed that a failure of test_simulation.py printed: simulates just that again",
    )
