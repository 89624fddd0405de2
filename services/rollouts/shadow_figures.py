"""Figures of a shadow: how the candidate's answers differ from the live version's. Plain data.

Each process counts its own; `merged` adds them, in any order. Latencies are those of the runs: a
mirrored request waits for an idle device, which says nothing about a version.
"""

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

from services.rollouts.evidence.errors import InvalidEvidenceError
from services.rollouts.evidence.quantiles import bucket_of, seconds_of

MAX_PAIRS = 100
"""Pairs to look at that are read of one process."""
MAX_REASONS = 32
MAX_BUCKETS = 4096
AGREES_BELOW = 0.0005
"""Disagreement below which two answers agree: it rounds to 0 of 1000 steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptPair:
    """Two answers to the same inputs, to look at."""

    disagreement: float
    """Between 0 and 1."""
    difference: float
    """Largest difference of two numbers; 0 where there are none."""
    request_id: str
    when: float
    """Second since 1970."""
    inputs: list[dict[str, Any]]
    """Name, datatype, shape, and the first values of each tensor."""
    live: list[dict[str, Any]]
    candidate: list[dict[str, Any]]
    error: str = ""
    """The candidate's error in place of an answer."""

    @property
    def rank(self) -> tuple[float, float, str]:
        """Order by which the worst are kept."""
        return self.disagreement, self.difference, self.request_id


@dataclass(slots=True, kw_only=True)
class ShadowFigures:
    """Counts of one process, or of several that were merged. Its owner alone may add to it."""

    keep: int = 0
    """Most pairs in `worst`."""
    pairs: int = 0
    agreed: int = 0
    failed: int = 0
    """Pairs whose candidate gave an error; they disagree."""
    nan: int = 0
    """Pairs whose candidate alone gave a NaN or an infinity."""
    disagreement: float = 0.0
    """Sum over all pairs, each between 0 and 1."""
    difference: float = 0.0
    """Largest difference of two numbers."""
    live_s: dict[int, int] = field(default_factory=dict)
    """Number of runs by bucket of latency, as `quantiles.bucket_of` has them."""
    candidate_s: dict[int, int] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
    """Requests that were sampled and not mirrored, by reason."""
    worst: list[KeptPair] = field(default_factory=list)

    def count_pair(
        self,
        pair: KeptPair,
        *,
        live_s: float,
        candidate_s: float | None,
        nan: bool = False,
    ) -> None:
        """Counts a pair, and keeps it if it is one of the worst.

        Args:
            pair: the answers.
            live_s: seconds of the live version's run.
            candidate_s: seconds of the candidate's; None if it failed.
            nan: the candidate alone gave a NaN or an infinity.
        """
        self.pairs += 1
        self.agreed += pair.disagreement < AGREES_BELOW
        self.nan += nan
        self.disagreement += pair.disagreement
        self.difference = max(self.difference, pair.difference)
        _count(self.live_s, bucket_of(live_s))
        if candidate_s is None:
            self.failed += 1
        else:
            _count(self.candidate_s, bucket_of(candidate_s))
        if pair.disagreement >= AGREES_BELOW and self.is_kept(pair):
            self.worst = heapq.nlargest(self.keep, [*self.worst, pair], key=_rank)

    def is_kept(self, pair: KeptPair) -> bool:
        """Returns True if a pair is one of the worst so far."""
        return len(self.worst) < self.keep or bool(self.keep and pair.rank > self.worst[-1].rank)

    def drop(self, reason: str) -> None:
        """Counts a request that was sampled and not mirrored."""
        self.dropped[reason] = self.dropped.get(reason, 0) + 1

    def latency_s(self, version: str, quantile: float) -> float | None:
        """Returns a quantile of the runs, `live` or `candidate`; None without any."""
        counts = self.live_s if version == "live" else self.candidate_s
        left = quantile * sum(counts.values())
        for bucket, count in sorted(counts.items()):
            left -= count
            if left <= 0:
                return seconds_of(bucket)
        return None

    def copied(self) -> Self:
        """Returns a copy; pairs never change, so it takes some microseconds."""
        return replace(
            self,
            live_s=dict(self.live_s),
            candidate_s=dict(self.candidate_s),
            dropped=dict(self.dropped),
            worst=list(self.worst),
        )

    def as_plain(self) -> dict[str, Any]:
        """Returns what `json.dumps` takes, and `from_plain` restores."""
        plain = asdict(self)
        for name in ("live_s", "candidate_s"):
            plain[name] = {str(bucket): count for bucket, count in plain[name].items()}
        return plain

    @classmethod
    def from_plain(cls, plain: Any) -> Self:
        """Restores figures.

        Raises:
            InvalidEvidenceError: they have another form, or too many parts.
        """
        try:
            if len(plain["worst"]) > MAX_PAIRS:
                raise ValueError(f"{len(plain['worst'])} pairs, over {MAX_PAIRS}")
            worst = [KeptPair(**pair) for pair in plain["worst"]]
            buckets = {
                name: {int(bucket): int(count) for bucket, count in plain[name].items()}
                for name in ("live_s", "candidate_s")
            }
            if len(plain["dropped"]) > MAX_REASONS or max(map(len, buckets.values())) > MAX_BUCKETS:
                raise ValueError("too many reasons or latencies")
            return cls(**{**plain, **buckets, "worst": worst})
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            raise InvalidEvidenceError(f"figures of a shadow cannot be read: {error}") from error


def merged(parts: Iterable[ShadowFigures]) -> ShadowFigures:
    """Adds the figures of several processes, and keeps the worst pairs of all."""
    total = ShadowFigures()
    for part in parts:
        for name in ("pairs", "agreed", "failed", "nan", "disagreement"):
            setattr(total, name, getattr(total, name) + getattr(part, name))
        total.difference = max(total.difference, part.difference)
        _add(total.live_s, part.live_s)
        _add(total.candidate_s, part.candidate_s)
        _add(total.dropped, part.dropped)
        total.keep = max(total.keep, part.keep)
        total.worst = heapq.nlargest(total.keep, [*total.worst, *part.worst], key=_rank)
    return total


def _rank(pair: KeptPair) -> tuple[float, float, str]:
    return pair.rank


def _count(counts: dict[int, int], bucket: int) -> None:
    counts[bucket] = counts.get(bucket, 0) + 1


def _add(total: dict[Any, int], part: Mapping[Any, int]) -> None:
    for name, count in part.items():
        total[name] = total.get(name, 0) + count
