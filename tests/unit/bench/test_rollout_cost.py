"""Ratios of the benchmark of rollouts: within a round, then over the rounds."""

from bench.rollouts.cost import Figures, Spread, ratios, verdicts


def figures(way: str, p99_ms: float, answered: float = 1.0, pairs: float = 0.0) -> Figures:
    return Figures(
        way=way, p50_ms=1.0, p99_ms=p99_ms, answered=answered, saturated_per_second=1000.0,
        mirrored=pairs / 1000, pairs_per_second=pairs, dropped=0.0, client_lag_p99_ms=0.1,
    )  # fmt: skip


ROUNDS = [
    [figures("none", 10.0), figures("shadow", 10.2, pairs=90.0)],
    [figures("shadow", 21.2, answered=0.99, pairs=80.0), figures("none", 20.0)],
    [figures("none", 1.0), figures("shadow", 1.03, pairs=100.0)],
]


def test_each_way_is_compared_within_its_round() -> None:
    found = ratios(ROUNDS, "shadow", "p99_ms")
    assert found == Spread(1.03, 1.02, 1.06)
    assert str(found) == "1.03 (1.02 to 1.06)"
    assert ratios(ROUNDS, "none", "p99_ms") == Spread(1.0, 1.0, 1.0)


def test_verdicts_name_the_shadows_cost() -> None:
    p99, answered, pairs = verdicts(ROUNDS)
    assert (p99.value, answered.value, pairs.value) == (1.03, 1.0, 90.0)
    assert p99.reached
    assert answered.reached
    assert pairs.reached
