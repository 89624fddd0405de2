"""Verdicts over repeated measurements of an attack."""

from collections import Counter

from tests.adversarial.neighbour import Seen
from tests.adversarial.verdict import Row, combined

MIB = 2**20


def row(stall_s: float, grown_mib: int = 1, failed: tuple[str, ...] = (), **rest: bool) -> Row:
    seen = Seen({"REST": stall_s}, 0.0, 10, list(failed), [])
    return Row("attack", 1, seen, grown_mib * MIB, 0, Counter(), (), rest.get("has_ended", False))


def test_median_stall_of_three_measurements_counts() -> None:
    assert combined([row(0.3), row(0.02), row(0.05)]).complaints(0) == []
    assert combined([row(0.3), row(0.02), row(0.2)]).complaints(0) == [
        "attack: a stall of 200 ms; 100 ms is the limit"
    ]


def test_worst_of_everything_else_counts() -> None:
    found = combined([row(0.3, 200), row(0.02, failed=("REST: refused",)), row(0.05)])
    assert found.complaints(0) == [
        "attack: 1 requests beside it failed, the first: REST: refused",
        "attack: 200 MiB of memory; 100 MiB is the limit",
    ]
    assert combined([row(0.3), row(0.0, has_ended=True)]).has_ended


def test_callers_of_the_attacked_model_have_a_limit_of_their_own() -> None:
    def attacked(stall_s: float) -> Row:
        seen = Seen({"REST": 0.01}, 0.0, 10, [], [], stall_s)
        return Row("attack", 1, seen, 0, 0, Counter(), (), has_ended=False)

    assert attacked(0.9).complaints(0) == []
    assert "attacked model 900.0 ms" in attacked(0.9).line()
    assert combined([attacked(3.0), attacked(0.1), attacked(0.2)]).complaints(0) == []
    assert combined([attacked(3.0), attacked(0.1), attacked(1.2)]).complaints(0) == [
        "attack: a stall of 1200 ms of the attacked model; 1000 ms is the limit"
    ]
