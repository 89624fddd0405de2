"""Counts results, and keeps latencies and the first differences, for a report."""

import heapq
from array import array
from collections import Counter
from typing import Any

from flambeau.replay.records import Result

MAX_KEPT = 1000
"""Results with differences that a report holds: those of the first requests."""
PERCENTILES = (50, 90, 99)


class Tally:
    """The results so far.

    Attributes:
        outcomes: number of requests by outcome.
        kinds: number of requests by kind of difference; a request may have several.
        by_rules: number of requests by the rule that made their answers equal.
        largest: largest difference of two numbers.
        statuses: number of requests by the statuses of both answers, `200, 200`.
        done: numbers of the requests that were compared.
    """

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self.kinds: Counter[str] = Counter()
        self.by_rules: Counter[str] = Counter()
        self.statuses: Counter[str] = Counter()
        self.largest = 0.0
        self.done: set[int] = set()
        self._latencies = {"old": array("d"), "new": array("d")}
        self._kept: list[tuple[int, int, Result]] = []

    def add(self, result: Result) -> None:
        """Counts a result."""
        self.outcomes[result.outcome] += 1
        self.kinds += result.kinds
        self.largest = max(self.largest, result.largest)
        if result.outcome != "not compared":
            self.done.add(result.number)
        if result.old_status and result.new_status:
            self.statuses[f"{result.old_status}, {result.new_status}"] += 1
        if result.outcome == "equal by the rules":
            self.by_rules.update(result.by_rules)
        if result.old_status and result.new_status:
            self._latencies["old"].append(result.old_ms)
            self._latencies["new"].append(result.new_ms)
        if result.differences:
            entry = (-result.number, len(self.done), result)
            if len(self._kept) < MAX_KEPT:
                heapq.heappush(self._kept, entry)
            else:
                heapq.heappushpop(self._kept, entry)

    @property
    def only_refusal(self) -> int:
        """The status of all answers of both servers, if it is one of 4xx or 5xx; 0 otherwise.

        Such a replay proves nothing: both servers refuse whatever they are asked.
        """
        if len(self.statuses) != 1:
            return 0
        old, new = map(int, next(iter(self.statuses)).split(", "))
        return old if old == new >= 400 else 0

    @property
    def kept(self) -> list[Result]:
        """The first results with differences, by number."""
        return sorted((result for _, _, result in self._kept), key=lambda result: result.number)

    def latencies(self) -> dict[str, dict[str, float]]:
        """Returns mean, percentiles and maximum in milliseconds, by side; empty without answers."""
        found: dict[str, dict[str, float]] = {}
        for side, values in self._latencies.items():
            if values:
                ordered = sorted(values)
                found[side] = {
                    "mean": sum(ordered) / len(ordered),
                    **{f"p{p}": ordered[-(-len(ordered) * p // 100) - 1] for p in PERCENTILES},
                    "max": ordered[-1],
                }
        return found

    def facts(self) -> dict[str, Any]:
        """Returns all of it, as JSON."""
        return {
            "outcomes": dict(self.outcomes),
            "requests_by_kind_of_difference": dict(self.kinds),
            "requests_by_rule": dict(self.by_rules),
            "requests_by_statuses": dict(self.statuses),
            "only_refusal": self.only_refusal,
            "largest_difference": self.largest,
            "latencies_ms": self.latencies(),
            "differences": [result.model_dump(mode="json") for result in self.kept],
        }
