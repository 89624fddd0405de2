"""Figures that the benchmarks derive from observations: overload, swaps, soak, lengths."""

import math
from array import array

import numpy as np
import pytest

from bench.lengths import bucketed, random_texts
from bench.loads.closed_loop import steady_rate
from bench.loads.open_loop import Shots
from bench.loads.shooter import Outcome
from bench.overload import compared_with_best, load_figures
from bench.overload import medians as load_medians
from bench.served_figures import ServedFigure
from bench.served_figures import medians as served_medians
from bench.servers.metrics_page import parse_metrics
from bench.soak import growth_after
from bench.swap import CALM_S, SETTLE_S, ModelSwaps, Swap, swap_figures, version_of
from flambeau.protocol.signature import Padding

A, R, E, F = Outcome.ANSWERED, Outcome.REFUSED, Outcome.EXPIRED, Outcome.FAILED


def shots_of(*ended: tuple[float, float, Outcome, int]) -> Shots:
    """Builds shots from (sent at, took, outcome, tag)."""
    sent, took, outcomes, tags = zip(*ended, strict=True)
    return Shots(array("d", sent), array("d", took), array("b", outcomes), array("q", tags))


def test_a_load_counts_by_what_its_callers_saw() -> None:
    shots = shots_of(
        (0, 0.010, A, 0), (0, 0.050, A, 0), (0, 0.051, A, 0), (0, 0.049, E, 0),
        (0, 0.002, R, 0), (0, 0.004, R, 0), (0, 0.001, F, 0),
    )  # fmt: skip
    load = load_figures(shots, seconds=2, deadline_s=0.05)
    assert (load.offered, load.admitted, load.in_time, load.late) == (7, 4, 2, 2)
    assert (load.refused, load.failed) == (2, 1)
    assert load.made_it == 0.5
    assert load.goodput_per_second == 1
    assert load.offered_per_second == 3.5
    assert load.refused_p50_ms == pytest.approx(3)
    assert load.in_time_p99_ms == pytest.approx(49.6)


def test_a_load_that_was_all_refused_has_no_share_that_made_it() -> None:
    load = load_figures(shots_of((0, 0.001, R, 0)), seconds=1, deadline_s=0.05)
    assert load.admitted == 0
    assert math.isnan(load.made_it)


def test_loads_are_compared_within_their_round_and_failures_add_up() -> None:
    full = load_figures(shots_of((0, 0.01, A, 0), (0, 0.01, A, 0), (0, 0, F, 0)), 1, 0.05)
    half = load_figures(shots_of((0, 0.01, A, 0)), 1, 0.05)
    rounds = [compared_with_best([half, full])] * 3
    assert [load.share_of_best for load in load_medians(rounds)] == [0.5, 1]
    assert [load.failed for load in load_medians(rounds)] == [0, 3]


def test_a_swap_lasts_from_its_first_byte_to_a_second_after_the_new_versions_first_answer() -> None:
    swap = Swap(began_at=100.0, moved_at=100.5, version=2)
    shots = shots_of(
        (100 - CALM_S - 0.1, 1, A, 1),  # before the calm
        (97, 0.010, A, 1), (98, 0.010, A, 1), (99, 0.010, A, 1),
        (99.99, 0.300, A, 1),  # sent in the calm, and answered in the swap
        (100.2, 0.020, A, 1),
        (101.0, 0.020, A, 2),  # the new version's first, done at 101.02
        (101.01, 0.040, A, 1),  # the old one's last, done at 101.05
        (101.02 + SETTLE_S + 0.1, 5, A, 2),  # after it is over
        (100.3, 4, F, 0),
    )  # fmt: skip
    (figures,), before, during = swap_figures(shots, [swap])
    assert figures.published_s == 0.5
    assert figures.live_s == pytest.approx(0.52)
    assert figures.worst_during_ms == pytest.approx(300)
    assert before == pytest.approx(10)
    assert during == pytest.approx(np.percentile([300, 20, 20, 40], 99))
    assert figures.mixed_s == pytest.approx(0.03)


def test_a_version_that_never_answered_is_told_so() -> None:
    figures, _, _ = swap_figures(shots_of((100.1, 0.1, A, 1)), [Swap(100.0, 100.1, 2)])
    assert math.isnan(figures[0].live_s)


def test_a_slow_moment_in_one_swap_leaves_the_median_and_shows_in_all_together() -> None:
    shots = shots_of(
        (9.0, 0.010, A, 1), (10.5, 0.012, A, 2),
        (29.0, 0.020, A, 2), (30.5, 0.024, A, 3),
        (49.0, 0.010, A, 3), (50.5, 0.900, A, 4),
    )  # fmt: skip
    swaps = [Swap(10.0, 10.1, 2), Swap(30.0, 30.1, 3), Swap(50.0, 50.1, 4)]
    found, before, during = swap_figures(shots, swaps)
    told = ModelSwaps(
        model="m", form="f", capacity_per_second=1, offered_per_second=1, answered=6, failed=0,
        p99_before_ms=before, p99_during_ms=during, client_lag_p99_ms=0, swaps=found,
    ).verdicts()  # fmt: skip
    median, together = told[-2:]
    assert median.value == pytest.approx(1.2)
    assert median.reached
    assert together.value > 40
    assert not together.reached


@pytest.mark.parametrize(
    ("body", "version"),
    [
        (b'{"model_name":"m","model_version":"12","outputs":[]}', 12),
        (b'{"model_name":"m"}', 0),
    ],
)
def test_the_version_is_read_out_of_an_answer(body: bytes, version: int) -> None:
    assert version_of(body) == version


def test_memory_is_judged_by_its_largest_minute_after_the_settling() -> None:
    settling = [(float(s), 50.0 + s) for s in range(0, 300, 5)]
    minutes = (400, 404, 402)
    memory: list[tuple[float, float]] = [
        (300.0 + 60 * n + s, size) for n, size in enumerate(minutes) for s in range(0, 60, 5)
    ]
    memory[3] = (315.0, 4000.0)  # one spike is no growth
    assert growth_after([*settling, *memory], 300, 60) == pytest.approx(0.01)


def test_memory_that_was_looked_at_for_too_short_has_no_growth() -> None:
    assert math.isnan(growth_after([(0, 100), (301, 100), (355, 200)], 300, 60))


def test_a_shrinking_memory_has_grown_by_less_than_nothing() -> None:
    assert growth_after([(0, 100), (60, 90)], 0, 60) == pytest.approx(-0.1)


def test_texts_are_batched_within_buckets_and_lose_nothing() -> None:
    padding = Padding(inputs={"tokens": 1}, mask="mask", buckets=(16, 64, 128))
    texts = random_texts(100, seed=1)
    batches = bucketed(texts, padding, size=8)
    rows = [
        batch["tokens"][row][batch["mask"][row]]
        for batch in batches
        for row in range(len(batch["tokens"]))
    ]
    assert sorted(row.tolist() for row in rows) == sorted(text[0].tolist() for text in texts)
    for batch in batches:
        lengths = batch["mask"].sum(axis=1)
        assert batch["tokens"].shape == batch["mask"].shape
        assert len(lengths) <= 8
        assert batch["tokens"].shape[1] == lengths.max()
        assert len({padding.bucket_of(int(length)) for length in lengths}) == 1


def test_random_texts_cover_their_lengths() -> None:
    lengths = {text.shape[1] for text in random_texts(5000, seed=2)}
    assert lengths == set(range(8, 129))


def page(batches: int, rows: int, quick_looks: int, looks: int) -> str:
    return f"""\
# TYPE flambeau_batch_size histogram
flambeau_batch_size_bucket{{le="+Inf",model="a",version="1"}} {batches}
flambeau_batch_size_count{{model="a",version="1"}} {batches}
flambeau_batch_size_sum{{model="a",version="1"}} {rows}
# TYPE flambeau_event_loop_lag_seconds histogram
flambeau_event_loop_lag_seconds_bucket{{le="0.001"}} {quick_looks}
flambeau_event_loop_lag_seconds_bucket{{le="+Inf"}} {looks}
flambeau_event_loop_lag_seconds_count {looks}
flambeau_event_loop_lag_seconds_sum 0.1
"""


def test_a_page_of_metrics_is_compared_with_an_earlier_one() -> None:
    earlier, later = (parse_metrics(page(*n)) for n in ((4, 10, 90, 100), (6, 40, 105, 120)))
    grown = later.since(earlier)
    assert grown.mean_batch_rows("a") == 15
    assert math.isnan(grown.mean_batch_rows("b"))
    assert earlier.lag_share_within(0.001) == 0.9
    assert grown.lag_share_within(0.001) == 0.75


def test_rounds_of_a_load_become_their_medians() -> None:
    def figure(value: float) -> ServedFigure:
        return ServedFigure(
            form="gRPC", clients=32, generator="h2load", requests_per_second=value,
            ratio_to_raw=value, p50_ms=value, p99_ms=value, server_cpu_us=value,
            batch_rows=value, lag_within_bound=value, failures=1,
        )  # fmt: skip

    found = served_medians([figure(value) for value in (9, 1, 2)])
    assert (found.requests_per_second, found.p99_ms, found.failures) == (2, 2, 3)
    assert found.clients == 32


@pytest.mark.parametrize("batches", [12, 13, 20])
@pytest.mark.parametrize("cut_off_s", [0.0, 0.05, 0.29])
def test_a_steady_rate_is_that_of_whole_batches_wherever_the_load_was_cut_off(
    batches: int, cut_off_s: float
) -> None:
    clients, batch_s, apart_s = 32, 0.3, 0.0001
    first = [0.01]  # alone, for nobody else was there yet
    whole = [0.2 + n * batch_s + i * apart_s for n in range(batches) for i in range(clients)]
    seen = [at for at in first + whole if at <= whole[-1] + cut_off_s]
    assert steady_rate(seen, clients) == pytest.approx(clients / batch_s, rel=1e-6)


def test_a_load_of_few_answers_has_no_steady_rate() -> None:
    assert math.isnan(steady_rate([0.1 * i for i in range(5 * 4)], clients=4))
