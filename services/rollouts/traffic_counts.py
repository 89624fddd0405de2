"""Counts of the requests that a process's edges split among versions, and of those they mirrored.

In: outcomes of requests, from the edges. Out: `Evidence` by rollout and by arm of a split,
`ShadowFigures` by shadow; each is this process's own part, which others add to theirs.

Rules: one event loop owns them; what is read is copied. A latency is counted with one of the other
version that ended in the same block of time, both drawn at random; the others count for nothing.
"""

import random
import time
from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from model_store.rollouts.guards import LatencyGuard
from services.rollouts.evidence.evidence import Evidence, Version
from services.rollouts.shadow_figures import ShadowFigures

BLOCK_S = 1.0
"""Time within which two requests of different versions may be compared: a candidate with 1 % of a
hundred requests a second has one in it. What slows a machine for longer slows both."""
MOST_LATENCIES_A_BLOCK = 256
"""Latencies of a version that are kept of one block, drawn at random: counting so many pairs takes
the event loop 1 ms."""
FORGOTTEN_AFTER_S = 300.0
"""Time after which counts of what is not seen any more are forgotten: a process that loses sight of
a rollout, because its workers restart, goes on with the same counts."""
PATIENCE = 20.0
"""Ratio to the live version's median latency at which a request without an answer hangs."""
LEAST_PATIENCE_S = 1.0
UNKNOWN_PATIENCE_S = 5.0
"""The same while the live version's latency is not known."""
USUAL_RATIO = LatencyGuard().ratio
"""The ratio by which latencies are counted where no guard says one."""


_Outcome = tuple[float, Version, bool, bool, int | None]
"""Arguments of `Evidence.count_request`."""


class WaitingRequest(Protocol):
    """A request that has no answer yet."""

    def fail_hanging(self) -> None:
        """Counts a failure if it has waited for longer than a version may take."""


class _Sample:
    """Numbers drawn at random from a stream of unknown length, each with the same probability.

    Source: Vitter, "Random sampling with a reservoir", algorithm R.
    """

    __slots__ = ("_most", "_seen", "drawn")

    def __init__(self, most: int) -> None:
        self._most = most
        self._seen = 0
        self.drawn: list[float] = []

    def add(self, number: float) -> None:
        """Adds a number."""
        self._seen += 1
        if len(self.drawn) < self._most:
            self.drawn.append(number)
        elif (place := random.randrange(self._seen)) < self._most:  # noqa: S311
            self.drawn[place] = number


class Comparison:
    """The counts of one candidate beside one live version.

    Args:
        ratio: tolerated ratio of their latencies.
        most_latencies: latencies of a version that are kept of one block.

    Attributes:
        waiting: requests without an answer, and when they began, the oldest first.
        patience_s: seconds without an answer after which a request of either version hangs.
    """

    def __init__(
        self, ratio: float = USUAL_RATIO, most_latencies: int = MOST_LATENCIES_A_BLOCK
    ) -> None:
        self._evidence = Evidence()
        self.waiting: dict[WaitingRequest, float] = {}
        self._outcomes: dict[_Outcome, int] = {}
        """Requests that are not in the evidence yet, by outcome: there are few outcomes."""
        self._most = most_latencies
        self.patience_s = UNKNOWN_PATIENCE_S
        self._ratio = ratio
        self._block_ends = 0.0
        self._latencies: dict[Version, _Sample]
        self._begin_block()

    @property
    def evidence(self) -> Evidence:
        """The counts so far."""
        for outcome, times in self._outcomes.items():
            share, version, failed, nan, output = outcome
            self._evidence.count_request(
                share, version, failed=failed, nan=nan, output=output, times=times
            )
        self._outcomes.clear()
        return self._evidence

    def count(
        self,
        share: float,
        version: Version,
        seconds: float,
        *,
        failed: bool = False,
        nan: bool = False,
        output: int | None = None,
    ) -> None:
        """Counts a request whose outcome is known.

        Args:
            share: as in `Evidence.count_request`, and so are `version` and the last three.
            version: the one that was drawn.
            seconds: latency; that of a failure is not compared.
            failed: it failed.
            nan: its answer has a NaN or an infinity.
            output: its class or score.
        """
        outcome = share, version, failed, nan, output
        self._outcomes[outcome] = self._outcomes.get(outcome, 0) + 1
        if failed:
            return
        now = time.monotonic()
        if now >= self._block_ends:
            self.end_block()
            self._block_ends = now + BLOCK_S
        self._latencies[version].add(seconds)

    def fail_hanging(self) -> None:
        """Counts requests that have waited for longer than a version may take."""
        before = time.monotonic() - self.patience_s
        for request in [x for x, began in self.waiting.items() if began <= before]:
            request.fail_hanging()

    def count_pair(self, disagreement: float) -> None:
        """Counts a mirrored pair, as `Evidence.count_pair` does."""
        self._evidence.count_pair(disagreement)

    def end_block(self) -> None:
        """Counts the latencies of the block that is over, in pairs."""
        candidate, live = (sample.drawn for sample in self._latencies.values())
        if live:
            median = sorted(live)[len(live) // 2]
            self.patience_s = max(LEAST_PATIENCE_S, PATIENCE * median)
        pairs = min(len(candidate), len(live))
        if pairs:
            drawn = zip(random.sample(candidate, pairs), random.sample(live, pairs), strict=True)
            for one, other in drawn:
                self._evidence.count_latencies(one, other, self._ratio)
        self._begin_block()

    def _begin_block(self) -> None:
        self._latencies = {"candidate": _Sample(self._most), "live": _Sample(self._most)}


class TrafficCounts:
    """The counts of one process, by the ids of rollouts, splits and shadows.

    Args:
        clock: returns seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[str, float] = {}
        """When each was last seen."""
        self._rollouts: dict[str, Comparison] = {}
        self._splits: dict[str, dict[int, Comparison]] = {}
        self._shadows: dict[str, ShadowFigures] = {}
        self._forgotten = 0
        """Times that `keep_only` has forgotten some."""
        self._begun: dict[str, int] = {}
        """By id, `_forgotten` when its counts began."""

    def name_of(self, counted_id: str, process: str) -> str:
        """Returns a name for the counts of an id, such as `server-host-1-5f2a`, or that with `.3`.

        Counts that begin anew after they were forgotten have another name than those before, so
        the counts of one name never fall.

        Args:
            counted_id: id of a rollout, a split or a shadow.
            process: name of this process, unique for all time.
        """
        begun = self._begun.get(counted_id, 0)
        return f"{process}.{begun}" if begun else process

    def comparison(self, rollout_id: str, ratio: float = USUAL_RATIO) -> Comparison:
        """Returns the counts of a rollout, new ones if there are none.

        Args:
            rollout_id: id of the rollout.
            ratio: the tolerated ratio of latencies, which never changes.
        """
        found = self._rollouts.get(rollout_id)
        if found is None:
            found = self._rollouts[rollout_id] = Comparison(ratio)
            self._begun[rollout_id] = self._forgotten
        return found

    def of(self, rollout_id: str) -> Evidence:
        """Returns the evidence of a rollout so far."""
        return self.comparison(rollout_id).evidence

    def arm(self, split_id: str, version: int, others: int = 1) -> Comparison:
        """Returns the counts of a split's arm beside the first arm, new ones if there are none.

        Args:
            split_id: id of the split.
            version: the arm's.
            others: arms but the first. Their blocks may end in one callback, and share its time.
        """
        arms = self._splits.get(split_id)
        if arms is None:
            arms = self._splits[split_id] = {}
            self._begun[split_id] = self._forgotten
        found = arms.get(version)
        if found is None:
            most = max(1, MOST_LATENCIES_A_BLOCK // others)
            found = arms[version] = Comparison(most_latencies=most)
        return found

    def shadow(self, shadow_id: str, keep: int = 0) -> ShadowFigures:
        """Returns the figures of a shadow, new ones if there are none.

        Args:
            shadow_id: id of the shadow.
            keep: most pairs that are kept to look at.
        """
        found = self._shadows.get(shadow_id)
        if found is None:
            found = self._shadows[shadow_id] = ShadowFigures(keep=keep)
            self._begun[shadow_id] = self._forgotten
        return found

    def evidence(self, process: str) -> dict[str, tuple[str, Evidence]]:
        """Returns copies of the evidence by id, of rollouts and of arms, with their names.

        The first arm of a split is the live version of each: its requests are counted in all.

        Args:
            process: name of this process, as for `name_of`.
        """
        return {
            counted_id: (self.name_of(owner, process), _copied(comparison))
            for counted_id, (owner, comparison) in self._comparisons().items()
        }

    def evidence_of(self, counted_id: str, process: str) -> tuple[str, Evidence] | None:
        """Returns one entry of `evidence`, without copies of the others; None if there is none."""
        found = self._comparisons().get(counted_id)
        if found is None:
            return None
        owner, comparison = found
        return self.name_of(owner, process), _copied(comparison)

    def _comparisons(self) -> dict[str, tuple[str, Comparison]]:
        """Returns the id that names the counts, and these, by id of a rollout or an arm."""
        found = {one: (one, comparison) for one, comparison in self._rollouts.items()}
        for split_id, arms in self._splits.items():
            found.update((arm_id(split_id, one), (split_id, arms[one])) for one in arms)
        return found

    def figures(self, process: str) -> dict[str, tuple[str, ShadowFigures]]:
        """Returns copies of the figures by shadow, with their names; see `evidence`."""
        return {
            shadow_id: (self.name_of(shadow_id, process), one.copied())
            for shadow_id, one in self._shadows.items()
        }

    def figures_of(self, shadow_id: str, process: str) -> tuple[str, ShadowFigures] | None:
        """Returns one entry of `figures`, without copies of the others; None if there is none."""
        found = self._shadows.get(shadow_id)
        return None if found is None else (self.name_of(shadow_id, process), found.copied())

    def keep_only(self, ids: Collection[str]) -> None:
        """Forgets the others, once they were not seen for `FORGOTTEN_AFTER_S`."""
        now = self._clock()
        self._seen = {name: self._seen.get(name, now) for name in self.ids}
        self._seen.update((name, now) for name in self._seen if name in ids)
        over = {name for name, seen in self._seen.items() if now - seen >= FORGOTTEN_AFTER_S}
        groups: tuple[dict[str, object], ...]
        groups = self._rollouts, self._splits, self._shadows, self._begun, self._seen  # type: ignore[assignment]
        self._forgotten += bool(over)
        for group in groups:
            for name in over & group.keys():
                del group[name]

    @property
    def ids(self) -> Mapping[str, None]:
        """Returns the ids of all that is counted."""
        return dict.fromkeys([*self._rollouts, *self._splits, *self._shadows])


def arm_id(split_id: str, version: int) -> str:
    """Returns the id of the counts of a split's arm."""
    return f"{split_id}:{version}"


def _copied(comparison: Comparison) -> Evidence:
    comparison.fail_hanging()
    found = comparison.evidence
    return Evidence(dict(found.counts), dict(found.peaks))
