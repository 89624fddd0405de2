"""Rates that edges share through the model process."""

import pytest

from services.access.link_rates import LinkRates, SpentRates, Tokens


class Edge:
    """The rates of one edge, and what it has told."""

    def __init__(self) -> None:
        self.told: list[Tokens] = []
        self.rates = LinkRates(self.told.append)


def exchange(spent: SpentRates, *edges: Edge) -> None:
    """Has each edge tell what it has spent, and learn what is left."""
    for edge in edges:
        edge.rates.tell()
        while edge.told:
            told = edge.told.pop()
            edge.rates.learn([(name, rate, spent.spend(name, rate, n)) for name, rate, n in told])


def test_tokens_spent_at_one_edge_are_gone_at_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    spent, one, other = SpentRates(), Edge(), Edge()
    buckets = [edge.rates.open_bucket("ci", 10.0) for edge in (one, other)]
    taken = sum(buckets[0].take(1, now) == 0 for _ in range(30))
    assert taken == 20, "the burst is two seconds' worth"
    exchange(spent, one, other)
    assert buckets[1].take(1, now) == 0, "an edge that has spent nothing has heard of nothing"
    exchange(spent, one, other)
    assert buckets[1].tokens == -1
    assert buckets[1].take(1, now) > 0
    now += 1.0
    taken = 0
    for _ in range(30):
        for bucket in buckets:
            taken += bucket.take(1, now) == 0
        exchange(spent, one, other)
    assert taken <= 11


def test_nothing_is_told_of_buckets_that_spend_nothing() -> None:
    edge = Edge()
    edge.rates.open_bucket("ci", 10.0)
    edge.rates.tell()
    assert edge.told == []
