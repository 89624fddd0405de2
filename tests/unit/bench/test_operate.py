"""Figures that the benchmark of metrics, keys and traces derives from its rounds."""

import pytest

from bench.operate import (
    BARE,
    METRICS,
    STEPS,
    WITH_KEYS,
    WITH_TRACES,
    LoadFigures,
    Variant,
    cost_of,
    medians,
    run_round,
    verdicts,
)
from bench.servers.uncounted_server import INSTEAD
from flambeau.server_process import ServerProcess

SERVERS = (BARE, METRICS, WITH_KEYS, WITH_TRACES)
TOGETHER, TRACES = "metrics, tracing off and keys together", "traces of 1 %"


def one_round(*rates: float, failed: int = 0) -> dict[str, LoadFigures]:
    """Returns a round with these request rates, each on one full core."""
    return {
        name: LoadFigures(
            server=name, requests_per_second=rate, cpu_us=1e6 / rate, least_cpu_us=1e6 / rate,
            p50_ms=1, p99_ms=2, failed=failed,
        )
        for name, rate in zip(SERVERS, rates, strict=True)
    }  # fmt: skip


def test_a_cost_is_the_median_of_ratios_within_rounds_however_fast_each_round_was() -> None:
    rounds = [one_round(1000, 990, 960, 950), one_round(100, 99, 98, 97), one_round(10, 9, 9.4, 9)]
    cost = cost_of(TOGETHER, rounds)
    assert cost.throughput == pytest.approx(0.96)
    assert cost.throughput_quartiles == pytest.approx((0.95, 0.97))
    assert cost.cpu == pytest.approx(1 / 0.96)
    assert cost_of(TRACES, rounds).throughput == pytest.approx(95 / 96)


def test_failures_of_all_rounds_add_up_and_the_least_time_is_kept() -> None:
    loads = medians([one_round(1000, 1, 1, 1, failed=2), one_round(500, 1, 1, 1, failed=1)])
    assert (loads[0].requests_per_second, loads[0].failed) == (750, 3)
    assert (loads[0].cpu_us, loads[0].least_cpu_us) == (1500, 1000)
    assert [load.server for load in loads] == list(SERVERS)


@pytest.mark.parametrize(
    ("rates", "reached"),
    [
        ((100, 99, 96, 92), [True, True]),
        ((100, 97, 94, 93), [False, True]),
        ((100, 99, 98, 90), [True, False]),
    ],
)
def test_all_but_traces_is_judged_together_and_traces_by_what_they_add(
    rates: tuple[float, ...], reached: list[bool]
) -> None:
    rounds = [one_round(*rates)]
    found = verdicts([cost_of(what, rounds) for what in STEPS], medians(rounds), dropped=0)
    throughput = [verdict.reached for verdict in found if "requests/s" in verdict.what]
    assert throughput == reached
    assert [verdict.reached for verdict in found[-2:]] == [True, True]


def test_failed_requests_and_dropped_spans_reach_no_target() -> None:
    rounds = [one_round(100, 100, 100, 100, failed=1)]
    found = verdicts([cost_of(what, rounds) for what in STEPS], medians(rounds), dropped=1)
    assert [verdict.reached for verdict in found[-2:]] == [False, False]


def test_who_is_first_in_a_round_is_last_in_the_next() -> None:
    asked: list[str] = []

    def load(name: str, *_: object) -> LoadFigures:
        asked.append(name)
        return one_round(1, 1, 1, 1)[name]

    server = ServerProcess(pid=1, http="here:1", grpc="here:2", metrics="here:3")
    variants = {name: Variant(server, []) for name in SERVERS}
    for number in (0, 1):
        assert list(run_round(variants, number, load)) == list(SERVERS)
    assert asked == [*SERVERS, *reversed(SERVERS)]


def test_what_is_to_count_nothing_is_there() -> None:
    """Otherwise the server would count under another name, and the cost would seem to be zero."""
    missing = [(o, name) for o, names in INSTEAD.items() for name in names if not hasattr(o, name)]
    assert missing == []
