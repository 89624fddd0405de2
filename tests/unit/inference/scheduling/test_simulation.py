"""The laws of the core, in simulated time, whatever arrives, is cancelled, fails or dies.

Every round draws its models and its traffic from a seed of its own; `Simulation` checks the laws.
"""

import math
import random
import secrets
from collections import Counter
from collections.abc import Callable, Iterator
from typing import cast

import pytest

from tests.fixtures.simulated_models import Faults, ModelSpec, Sent
from tests.fixtures.simulation import OVERTAKING_S, Simulation, simulation

REQUESTS_A_ROUND = 5_000
BUCKETS = (8, 16, 32, 64)


def latency(dice: random.Random) -> tuple[Callable[[int, int, float], float], dict[int, float]]:
    """Returns a true latency, with a cliff and a change over time, and wrong initial estimates."""
    fixed_s = 10 ** dice.uniform(-4, -2)
    row_s = fixed_s * 10 ** dice.uniform(-2, 0)
    cliff = dice.choice([4, 16, 32, math.inf])
    changes_at, change = 1000 + 10 ** dice.uniform(0, 3), dice.choice([0.3, 1.0, 3.0])

    def truth(rows: int, length: int, now: float) -> float:
        seconds = fixed_s + row_s * rows * max(length, 8) / 8
        seconds *= 1.5 if rows > cliff else 1.0
        return seconds * (change if now > changes_at else 1.0)

    wrong = dice.choice([0.2, 1.0, 5.0])
    seeds = {size: wrong * (fixed_s + row_s * size) for size in (1, 4, 64)}
    return truth, dice.choice([seeds, {}])


def model(dice: random.Random, name: str) -> ModelSpec:
    truth, seeds = latency(dice)
    max_rows = dice.choice([1, 8, 32, 64])
    faulty = dice.random() < 0.5
    fits_loop = dice.random() < 0.5
    return ModelSpec(
        name=name,
        max_rows=max_rows,
        truth=truth,
        seeds=seeds,
        buckets=dice.choice([(), BUCKETS]),
        instances=dice.choice([1, 1, 2, 3]),
        noise=dice.choice([0.0, 0.05, 0.3]),
        preferred_rows=dice.choice([(), (2, 8), (4, 32, 64)]),
        wait_s=dice.choice([0.0, 0.0, 0.01]),
        faults=Faults(
            device=0.002,
            death=0.0 if fits_loop else 0.002,
            block=0.0 if fits_loop else 0.002,
            reopen=0.3,
        )
        if faulty
        else Faults(),
        fits_loop=fits_loop,
    )


def traffic(dice: random.Random, spec: ModelSpec, count: int) -> Iterator[tuple[float, Sent]]:
    """Poisson arrivals, with bursts, at a quarter to twice of what one instance can do."""
    chance = dice.random

    def pick(low: int, high: int) -> int:  # six times as fast as `randint`
        return low + int((high - low + 1) * chance())

    rows_most = min(dice.choice([1, 4, 64]), spec.max_rows)
    longest = spec.buckets[-1] if spec.buckets else 0
    row_s = spec.truth(spec.max_rows, longest // 2, 0.0) / spec.max_rows
    gap_s = row_s * (1 + rows_most) / 2 / dice.uniform(0.25, 2.0)
    short_s = gap_s * dice.choice([3, 30, 300, 3000])
    burst = 0
    for _ in range(count):
        burst = burst - 1 if burst else 100 * (chance() < 0.005)
        yield (
            0.0 if burst else dice.expovariate(1 / gap_s),
            Sent(
                model=spec.name,
                rows=pick(1, rows_most),
                timeout_s=short_s * (0.1 + chance()) if chance() < 0.5 else 60.0,
                priority=pick(1, 10) if chance() < 0.3 else 5,
                length=pick(1, longest) if longest else None,
                poisons=chance() < 0.003,
                gone_after_s=50 * gap_s * chance() if chance() < 0.05 else math.inf,
            ),
        )


def simulated_round(seed: int, requests: int) -> Simulation:
    dice = random.Random(seed)
    models = [model(dice, f"model-{n}") for n in range(dice.randint(1, 4))]
    with simulation(seed, *models, slots=dice.choice([1, 2])) as made:
        for n, spec in enumerate(models):
            share = requests // len(models) + (requests % len(models) if n == 0 else 0)
            made.send(traffic(random.Random(dice.random()), spec, share))
        for _ in range(3):
            made.loop.call_later(10 ** dice.uniform(-1, 2), made.swap, dice.choice(models).name)
        made.run()
    return made


def test_the_laws_hold_whatever_happens(pytestconfig: pytest.Config) -> None:
    requests = cast(int, pytestconfig.getoption("--simulated-requests", 100_000))
    given = cast(int | None, pytestconfig.getoption("--simulation-seed", None))
    rounds = 1 if given is not None else math.ceil(requests / REQUESTS_A_ROUND)
    first = secrets.randbits(32) if given is None else given
    outcomes: Counter[str] = Counter()
    for seed in range(first, first + rounds):
        try:
            made = simulated_round(seed, REQUESTS_A_ROUND)
        except BaseException as error:
            error.add_note(
                "see it again: pytest tests/unit/inference/scheduling/test_simulation.py "
                f"--simulation-seed {seed}"
            )
            raise
        for (_, how), count in made.outcomes.items():
            outcomes[how] += count
    print(sorted(outcomes.items()))
    assert outcomes.total() == rounds * REQUESTS_A_ROUND
    assert outcomes["InferReply"] > 0


def test_a_seed_gives_one_course_of_events() -> None:
    once, again = simulated_round(7, 3000), simulated_round(7, 3000)
    assert once.outcomes == again.outcomes
    assert once.ran == again.ran


def linear_s(fixed_s: float, row_s: float) -> Callable[[int, int, float], float]:
    return lambda rows, length, now: fixed_s + row_s * rows


def steady(gap_s: float, sent: Sent, dice: random.Random) -> Iterator[tuple[float, Sent]]:
    """Poisson arrivals of the same request, without end."""
    while True:
        yield dice.expovariate(1 / gap_s), sent


def test_under_twice_the_load_what_is_let_in_is_done_in_time_and_nothing_is_wasted() -> None:
    best_rows_a_second = 16 / 0.020
    spec = ModelSpec(
        name="m",
        max_rows=16,
        truth=linear_s(0.004, 0.001),
        seeds={1: 0.005, 16: 0.020},
        noise=0.05,
    )
    with simulation(1, spec) as made:
        gap_s = 1 / (2 * best_rows_a_second)
        made.send(steady(gap_s, Sent(model="m", timeout_s=0.050), random.Random(1)))
        made.run(10.0)
        outcomes = made.outcomes.copy()
    answered, late = (outcomes["m", how] for how in ("InferReply", "DeadlineExceededError"))
    assert outcomes["m", "WouldMissDeadlineError"] > 0
    assert answered / (answered + late) >= 0.99
    assert answered >= 0.95 * best_rows_a_second * 10.0


def test_models_share_a_device_by_time_and_not_by_count() -> None:
    slow = ModelSpec(name="slow", max_rows=1, truth=linear_s(0.0, 0.100))
    fast = ModelSpec(name="fast", max_rows=8, truth=linear_s(0.001, 0.0005))
    with simulation(2, slow, fast) as made:
        made.send(steady(0.05, Sent(model="slow"), random.Random(1)))
        made.send(steady(0.0002, Sent(model="fast"), random.Random(2)))
        made.run(10.0)
        ran = list(made.ran)
    slow_s, fast_s = (sum(r.seconds for r in ran if r.model == m) for m in ("slow", "fast"))
    assert slow_s == pytest.approx(fast_s, rel=0.1)
    assert slow_s + fast_s >= 9.5


def test_the_last_priority_is_served_under_a_flood_of_the_first() -> None:
    spec = ModelSpec(name="m", max_rows=4, truth=linear_s(0.01, 0.01))
    with simulation(3, spec) as made:
        # More than fits, and none of it ever gives up.
        made.send(steady(0.005, Sent(model="m", priority=1, timeout_s=1e4), random.Random(1)))
        made.run(1.0)
        last = made.submit(Sent(model="m", priority=10, timeout_s=1e4))
        made.run(OVERTAKING_S + 20.0)
        assert not last.waits


def test_the_best_batch_size_is_found_although_the_seeds_promise_more() -> None:
    def cliff_s(rows: int, length: int, now: float) -> float:
        """99 rows a second at 16, 74 at 64."""
        return 0.005 + 0.00975 * rows if rows <= 16 else 0.0135 * rows

    # The warm-up came as far as 8.
    spec = ModelSpec(name="m", max_rows=64, truth=cliff_s, seeds={1: 0.01475, 8: 0.083})
    with simulation(4, spec) as made:
        made.send(steady(1 / 200, Sent(model="m"), random.Random(1)))
        made.run(150.0)  # 8 rows, which come out 2 % more slowly, are the best known for most of it
        sizes = Counter(run.rows for run in made.ran[-100:])
    assert sizes[16] >= 90


def test_short_batches_run_on_the_loop_and_long_ones_in_a_thread() -> None:
    short = ModelSpec(
        name="short", max_rows=16, truth=linear_s(2e-5, 2e-6), seeds={1: 2e-5}, fits_loop=True
    )
    long = ModelSpec(name="long", max_rows=16, truth=linear_s(2e-3, 1e-5), fits_loop=True)
    with simulation(5, short, long, slots=2) as made:
        made.send(steady(0.001, Sent(model="short"), random.Random(1)))
        made.send(steady(0.005, Sent(model="long"), random.Random(2)))
        made.run(5.0)
        where = Counter((run.model, run.on_loop) for run in made.ran)
    assert where["long", True] == 0
    assert where["short", False] <= 2
    assert where["short", True] > 1000
    assert where["long", False] > 500


def test_a_stall_on_the_loop_sends_the_next_batches_to_the_thread() -> None:
    def slow_later_s(rows: int, length: int, now: float) -> float:
        return 2e-3 if now > 1001 else 2e-5

    spec = ModelSpec(name="m", max_rows=16, truth=slow_later_s, seeds={1: 2e-5}, fits_loop=True)
    with simulation(6, spec) as made:
        made.send(steady(0.01, Sent(model="m"), random.Random(1)))
        made.run(5.0)
        stalls = [run for run in made.ran if run.on_loop and run.seconds > 1e-3]
        after = [run for run in made.ran if run.started_at > 1001.2]
    assert len(stalls) == 1
    assert after
    assert not any(run.on_loop for run in after)


def test_during_a_stall_on_the_loop_no_law_is_broken_that_only_the_loop_could_keep() -> None:
    def slow_later_s(rows: int, length: int, now: float) -> float:
        return 0.02 if now > 1001 else 2e-5

    spec = ModelSpec(name="m", max_rows=16, truth=slow_later_s, seeds={1: 2e-5}, fits_loop=True)
    waits = ModelSpec(name="waits", max_rows=16, truth=linear_s(1e-3, 0.0), wait_s=0.01)
    with simulation(7, spec, waits, slots=2) as made:
        made.submit(Sent(model="m"))
        made.loop.call_at(1002.0, made.submit, Sent(model="waits"))
        made.loop.call_at(1002.0, made.submit, Sent(model="m", timeout_s=0.01))
        made.run()
        assert [(run.model, run.on_loop) for run in made.ran[1:]] == [("m", True), ("waits", False)]
        assert made.ran[1].seconds == 0.02
        assert made.outcomes == {("m", "InferReply"): 2, ("waits", "InferReply"): 1}
