"""The capacity of a server of several processes is that of its busiest process."""

import pytest

from bench.cores import ONE, CoresFigures
from bench.servers.process_figures import EDGE, RUNS_MODELS


def figures(cpu_us: dict[str, float]) -> CoresFigures:
    return CoresFigures(
        shape="", form="", clients=1, requests_per_second=0, p50_ms=0, client_cpu_us=0,
        cpu_us=cpu_us, failures=0,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("cpu_us", "edges", "capacity"),
    [
        ({ONE: 50.0}, 1, 20_000),
        ({EDGE: 40.0, RUNS_MODELS: 10.0}, 1, 25_000),
        ({EDGE: 40.0, RUNS_MODELS: 10.0}, 2, 50_000),
        ({EDGE: 40.0, RUNS_MODELS: 10.0}, 14, 100_000),
    ],
)
def test_the_busiest_process_limits(cpu_us: dict[str, float], edges: int, capacity: float) -> None:
    assert figures(cpu_us).capacity_with(edges) == pytest.approx(capacity)
