"""The latency model: estimates, and updates from measured runs."""

import random
from collections.abc import Callable
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.inference.scheduling.latency import (
    CROSS_SIZE_WEIGHT,
    MAX_CURVES,
    MAX_DOUBTS,
    PROBE_EVERY,
    LatencyCurve,
    LatencyModel,
)

CNN_S = {1: 0.014, 4: 0.044, 16: 0.161, 64: 0.864}
"""Measured once on a small machine: most rows a second, 99, at batch 16; 74 at 64."""
CNN_32_S = 0.395

sizes = st.integers(1, 64)
seconds = st.floats(1e-6, 10.0)
seeds = st.dictionaries(sizes, seconds, min_size=1, max_size=6)


def taught(curve: LatencyCurve, truth: Callable[[int], float], rows: int, runs: int) -> None:
    for _ in range(runs):
        curve.observe(rows, truth(rows))


def test_nothing_is_expected_before_anything_is_known() -> None:
    curve = LatencyCurve(64, {})
    assert (curve.expected_s(1), curve.cautious_s(64), curve.best_s) == (0.0, 0.0, 0.0)
    assert curve.best_rows == 64
    assert curve.rows_within(0.0) == 64
    curve.decay_estimate(8)
    assert curve.expected_s(8) == 0.0


def test_seeds_without_meaning_are_left_out() -> None:
    assert LatencyCurve(8, {0: 1.0, -1: 1.0, 4: 0.0}).expected_s(4) == 0.0


@pytest.mark.parametrize(
    ("rows", "expected_s"),
    [(1, 0.014), (4, 0.044), (16, 0.161), (64, 0.864), (2, 0.024), (10, 0.1025), (40, 0.5125)],
)
def test_between_the_seeds_it_is_interpolated(rows: int, expected_s: float) -> None:
    assert LatencyCurve(64, CNN_S).expected_s(rows) == pytest.approx(expected_s, abs=1e-3)


def test_beyond_the_seeds_it_grows_in_proportion_and_below_them_it_stays() -> None:
    curve = LatencyCurve(64, {4: 0.1, 8: 0.16})
    assert curve.expected_s(64) == pytest.approx(8 * 0.16)
    assert curve.expected_s(1) == pytest.approx(0.1)


def test_the_best_size_is_where_the_most_rows_a_second_come_out() -> None:
    curve = LatencyCurve(64, CNN_S)
    assert (curve.best_rows, curve.best_s) == (16, 0.161)


def test_the_largest_batch_counts_though_it_is_no_power_of_two() -> None:
    assert LatencyCurve(48, {1: 1.0, 48: 2.0}).best_rows == 48


HAND_OVER_S = 1e-3
RUN_S = {1: 0.00165, 2: 0.0032, 4: 0.0063, 8: 0.0131, 16: 0.0264}
"""Four rows are the fastest to run, and sixteen the fastest with the way to the thread and back."""


def test_what_a_batch_takes_beside_its_run_favours_large_batches() -> None:
    curve = LatencyCurve(16, RUN_S)
    assert curve.best_rows == 4
    for _ in range(PROBE_EVERY - 1):
        curve.observe(4, RUN_S[4], HAND_OVER_S)
    assert curve.best_rows == 16
    assert curve.best_s == pytest.approx(RUN_S[16] + HAND_OVER_S, rel=0.01)
    for rows, run_s in RUN_S.items():
        assert curve.expected_s(rows) == pytest.approx(run_s + HAND_OVER_S, rel=0.01)
    assert curve.rows_within(RUN_S[8] + HAND_OVER_S * 1.1) == 8
    assert curve.rows_within(RUN_S[8] + HAND_OVER_S * 0.9) == 4
    assert curve.cautious_s(4) == pytest.approx(RUN_S[4] + HAND_OVER_S, rel=0.1)


def test_an_irregular_way_to_the_thread_makes_deadlines_cautious() -> None:
    regular, irregular = LatencyCurve(16, RUN_S), LatencyCurve(16, RUN_S)
    for turn in range(200):
        regular.observe(1, RUN_S[1], HAND_OVER_S)
        irregular.observe(1, RUN_S[1], 2 * HAND_OVER_S * (turn % 2))
    assert irregular.expected_s(1) == pytest.approx(regular.expected_s(1), rel=0.1)
    assert irregular.cautious_s(1) > 1.4 * regular.cautious_s(1)


def test_one_long_way_to_the_thread_counts_little_and_doubts_shorten_it() -> None:
    curve = LatencyCurve(16, RUN_S)
    taught(curve, lambda rows: RUN_S[rows], 4, 10)
    curve.observe(4, RUN_S[4], 10.0)
    assert curve.expected_s(4) < 1.5 * RUN_S[4]
    for _ in range(20):
        curve.observe(4, RUN_S[4], 10.0)
    late = curve.expected_s(4)
    for _ in range(MAX_DOUBTS):
        curve.decay_estimate(4)
    assert curve.expected_s(4) < late / 50


def tried(curve: LatencyCurve, waiting: int, runs: int) -> list[int]:
    """Returns the sizes run other than the best one, while so many rows always wait."""
    found = []
    for _ in range(runs):
        rows = curve.rows_to_run(waiting)
        if rows != curve.best_rows:
            found.append(rows)
        curve.observe(rows, curve.expected_s(rows))
    return found


@pytest.mark.parametrize(
    ("waiting", "beside"), [(32, [32, 8, 32]), (31, [8, 8, 8]), (8, [8, 8, 8]), (7, [])]
)
def test_sizes_beside_the_best_are_tried_now_and_then(waiting: int, beside: list[int]) -> None:
    assert tried(LatencyCurve(64, CNN_S), waiting, 3 * PROBE_EVERY) == beside


def test_nothing_is_tried_beyond_the_sizes_there_are() -> None:
    assert tried(LatencyCurve(32, {1: 1.0, 32: 2.0}), 99, 2 * PROBE_EVERY) == [16, 16]
    assert tried(LatencyCurve(1, {1: 1.0}), 99, 2 * PROBE_EVERY) == []


def test_a_size_that_is_due_is_tried_once_enough_waits() -> None:
    curve = LatencyCurve(64, CNN_S)
    assert tried(curve, 1, 2 * PROBE_EVERY) == []
    assert tried(curve, 32, 2) == [32]


@pytest.mark.parametrize(
    ("limit_s", "rows"), [(1.0, 16), (0.2, 16), (0.19, 8), (0.06, 4), (0.017, 1), (0.001, 1)]
)
def test_as_many_rows_as_a_limit_leaves_room_for(limit_s: float, rows: int) -> None:
    curve = LatencyCurve(64, CNN_S)
    assert curve.rows_within(limit_s) == rows
    if rows > 1:
        assert curve.cautious_s(rows) <= limit_s


def test_the_first_run_teaches_where_nothing_is_known() -> None:
    curve = LatencyCurve(16, {})
    curve.observe(4, 0.1)
    assert curve.expected_s(4) == pytest.approx(0.1)
    assert curve.runs == 1


@pytest.mark.parametrize("first_rows", [1, 3, 32])
def test_the_best_size_is_found_within_ten_full_batches_where_nothing_is_known(
    first_rows: int,
) -> None:
    each_s = {1: 0.017, 2: 0.0165, 4: 0.013, 8: 0.0112, 16: 0.0132, 32: 0.015}
    curve, ran = LatencyCurve(32, {}), list[int]()
    for place in range(30):
        rows = first_rows if place == 0 else curve.rows_to_run(waiting=32)
        ran.append(rows)
        interrupted = 5 if place in (0, 4) else 1
        curve.observe(rows, rows * each_s.get(rows, 0.02) * interrupted)
    assert curve.best_rows == 8
    assert set(ran[11:]) == {8}
    assert curve.expected_s(8) == pytest.approx(8 * 0.0112, rel=0.01)


def test_a_size_that_never_waits_is_not_surveyed() -> None:
    curve = LatencyCurve(32, {})
    for _ in range(20):
        assert curve.rows_to_run(waiting=4) == 32  # four of them run
        curve.observe(4, 0.04)
    assert curve.expected_s(4) == pytest.approx(0.04)


@given(seeds, st.sampled_from([1, 2, 4, 8, 16, 32, 64]), st.floats(1e-3, 1.0))
def test_many_runs_teach_the_truth(given_s: dict[int, float], rows: int, truth_s: float) -> None:
    curve = LatencyCurve(64, given_s)
    taught(curve, lambda _: truth_s, rows, 400)
    assert curve.expected_s(rows) == pytest.approx(truth_s, rel=0.05)
    assert curve.cautious_s(rows) == pytest.approx(truth_s, rel=0.15)


@given(seeds, sizes, st.floats(0.0, 1e6))
def test_one_run_never_unteaches_much(given_s: dict[int, float], rows: int, took_s: float) -> None:
    curve = LatencyCurve(64, given_s)
    before = {size: curve.expected_s(size) for size in (1, 2, 4, 8, 16, 32, 64)}
    curve.observe(rows, took_s)
    for size, was_s in before.items():
        assert 0.9 * was_s * (1 - 1e-9) <= curve.expected_s(size) <= 1.2 * was_s * (1 + 1e-9)


def test_a_run_teaches_its_neighbours_most() -> None:
    curve = LatencyCurve(64, CNN_S)
    before = {size: curve.expected_s(size) for size in (1, 4, 8, 16, 32, 64)}
    curve.observe(6, 10.0)
    grown = {size: curve.expected_s(size) / was_s for size, was_s in before.items()}
    for size, share in {1: 0.0, 4: 0.5, 8: 0.5, 16: 0.0, 32: 0.0, 64: 0.0}.items():
        assert grown[size] == pytest.approx(
            1.2 ** (CROSS_SIZE_WEIGHT + (1 - CROSS_SIZE_WEIGHT) * share)
        )


def test_the_best_size_follows_what_is_learned() -> None:
    curve = LatencyCurve(64, {1: 0.02, 64: 0.64})
    assert curve.best_rows == 64
    taught(curve, lambda rows: 0.02 * rows, 64, 20)
    assert curve.best_rows == 32


@pytest.mark.parametrize("speed", [0.7, 1.4])
def test_a_machine_that_has_become_faster_makes_no_other_size_the_best(speed: float) -> None:
    curve = LatencyCurve(64, CNN_S)
    taught(curve, lambda rows: CNN_32_S / speed, 32, 200)
    assert curve.expected_s(32) == pytest.approx(CNN_32_S / speed)
    assert curve.best_rows == 16


def test_noise_moves_no_size_that_does_not_run() -> None:
    curve = LatencyCurve(64, CNN_S)
    for turn in range(20_000):
        curve.observe(1, CNN_S[1] * (1.5 if turn % 10 == 0 else 0.95))
    drift = curve.expected_s(1) / CNN_S[1]
    assert curve.expected_s(64) == pytest.approx(CNN_S[64] * drift**CROSS_SIZE_WEIGHT)
    assert curve.best_rows == 16


NOISY_RATES = {1: 150, 2: 172, 4: 189, 8: 195, 16: 199, 32: 185, 64: 180}
"""Rows a second of a transformer encoder, by rows in a batch."""


EVEN_S = {rows: rows / 445 for rows in (1, 2, 4, 8, 16, 32)}
"""A small CNN in INT8, with the same rows a second at any size."""
BESIDE_S = 4.4e-4
"""Cost of each of its batches beside the run."""


def noise(chance: random.Random) -> float:
    """Runs differ as they do on a machine that others use: by 3 %, one in ten by up to a half."""
    interrupted = 1 + 0.5 * chance.random() * (chance.random() < 0.1)
    return chance.lognormvariate(0, 0.03) * interrupted


def rate_found_on_a_noisy_machine(
    seed: int, curve: LatencyCurve, truth_s: dict[int, float], waiting: int
) -> float:
    """On average, of the best rate: what comes of the sizes chosen in one minute.

    Beside each run's own noise, all runs differ by 8 % for some seconds.
    """
    chance = random.Random(seed)
    now = until = rows_run = 0.0
    speed = 1.0
    while now < 60.0:
        if now >= until:
            speed, until = chance.lognormvariate(0, 0.08), now + chance.expovariate(1 / 3)
        rows = min(curve.rows_to_run(waiting), waiting)
        took_s = truth_s[rows] * noise(chance)
        curve.observe(rows, took_s * speed)
        now += took_s
        rows_run += took_s * rows / truth_s[rows]
    return rows_run / now / max(rows / s for rows, s in truth_s.items() if rows <= waiting)


def test_noise_costs_next_to_nothing() -> None:
    truth_s = {rows: rows / rate for rows, rate in NOISY_RATES.items()}
    found = (
        rate_found_on_a_noisy_machine(seed, LatencyCurve(64, truth_s), truth_s, 32)
        for seed in range(20)
    )
    assert mean(found) > 0.994


def test_noise_of_the_warm_up_does_not_choose_small_batches() -> None:
    truth_s = {rows: s + BESIDE_S for rows, s in EVEN_S.items()}

    def found(seed: int) -> float:
        chance = random.Random(1_000 + seed)
        seeds_s = {rows: s * noise(chance) for rows, s in EVEN_S.items()}
        return rate_found_on_a_noisy_machine(seed, LatencyCurve(64, seeds_s), truth_s, 16)

    assert mean(found(seed) for seed in range(20)) > 0.997


def test_unsteady_runs_make_it_cautious() -> None:
    steady, unsteady = LatencyCurve(1, {1: 0.1}), LatencyCurve(1, {1: 0.1})
    for turn in range(200):
        steady.observe(1, 0.1)
        unsteady.observe(1, 0.05 if turn % 2 else 0.15)
    assert steady.cautious_s(1) == pytest.approx(steady.expected_s(1), rel=0.01)
    assert unsteady.cautious_s(1) >= 1.5 * unsteady.expected_s(1)


def test_no_batch_takes_longer_than_the_longest() -> None:
    assert LatencyCurve(8, {}).longest_s() == 0.0
    curve = LatencyCurve(8, {1: 0.1, 4: 0.9, 8: 0.2})
    assert curve.longest_s() == curve.cautious_s(4)
    assert all(curve.cautious_s(rows) <= curve.longest_s() for rows in range(1, 9))


def test_doubt_lowers_what_is_expected_and_comes_to_an_end() -> None:
    curve = LatencyCurve(8, {1: 1.0, 8: 8.0})
    curve.decay_estimate(8)
    assert curve.expected_s(8) == pytest.approx(7.2)
    assert curve.expected_s(1) == 1.0
    for _ in range(2 * MAX_DOUBTS):
        curve.decay_estimate(8)
    assert 0.07 < curve.expected_s(8) < 0.08


def test_the_first_run_after_a_doubt_counts_in_full() -> None:
    curve = LatencyCurve(8, {1: 1.0, 8: 8.0})
    for _ in range(30):
        curve.decay_estimate(8)
    curve.observe(8, 8.0)
    assert curve.expected_s(8) == pytest.approx(8.0)
    curve.observe(8, 4.0)  # and the next one as any other
    assert curve.expected_s(8) == pytest.approx(8.0 * 0.9)


def test_each_shape_has_a_curve_of_its_own_scaled_from_the_seeds() -> None:
    model = LatencyModel(8, {1: 0.1, 8: 0.45}, seed_elements=10)  # half of a row's time is fixed
    short, long = model.curve("short", 10), model.curve("long", 30)
    assert short.expected_s(1) == pytest.approx(0.1)
    assert [long.expected_s(rows) for rows in (1, 8)] == pytest.approx([0.2, 1.25])
    taught(short, lambda _: 0.2, 1, 100)
    assert model.curve("long", 30).expected_s(1) == pytest.approx(0.2)
    assert model.curve("short", 10) is short


def test_what_every_batch_costs_is_no_larger_for_large_rows() -> None:
    model = LatencyModel(8, {1: 1e-3, 8: 1e-3}, seed_elements=4)
    assert model.curve("large", 400).expected_s(1) == pytest.approx(1e-3)


def test_nothing_is_known_of_rows_much_larger_than_any_measured() -> None:
    model = LatencyModel(8, {1: 1e-3, 8: 8e-3}, seed_elements=4)
    assert model.curve("large", 400).expected_s(1) == pytest.approx(0.1)
    assert model.curve("huge", 4_000_000).expected_s(1) == 0


def test_shapes_that_do_not_come_any_more_are_forgotten() -> None:
    model = LatencyModel(8)
    kept, forgotten = model.curve("kept", 1), model.curve("forgotten", 1)
    for number in range(MAX_CURVES - 1):
        model.curve(number, 1)
        assert model.curve("kept", 1) is kept
    assert model.curve("forgotten", 1) is not forgotten
