"""Counters of a server of several processes are compared from scrape to scrape."""

from pathlib import Path

import pytest

from tests.chaos.processes_server import CounterWatch, ProcessesServer

KEY = "flambeau_requests_total", frozenset({("code", "200")})
BYTES = "flambeau_link_bytes", frozenset[tuple[str, str]]()


@pytest.mark.parametrize(
    ("now", "fallen"),
    [
        ({KEY: 5.0, BYTES: 0.0}, []),
        ({KEY: 6.0}, []),
        ({KEY: 4.0}, ["flambeau_requests_total code=200: 5, then 4.0"]),
        ({}, ["flambeau_requests_total code=200: 5, then None"]),
    ],
)
def test_counter_that_falls_or_is_gone_is_told(
    now: dict[tuple[str, frozenset[tuple[str, str]]], float], fallen: list[str], tmp_path: Path
) -> None:
    watch = CounterWatch(ProcessesServer(tmp_path, tmp_path / "log", 2))
    watch.compare({KEY: 5.0, BYTES: 64.0}, now)
    assert watch.fallen == fallen
