"""Counts of a rollout's traffic, as each process keeps them: one number for each name.

Names say which share of the traffic the candidate had, which version answered, and what was
counted. Merging adds numbers of one name, so it is exact and knows no order; a hash in Redis does
the same with `HINCRBY`. `peaks` are the highest e-values that a judge has seen.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from services.rollouts.evidence.errors import InvalidEvidenceError
from services.rollouts.evidence.quantiles import bucket_of, buckets_of_ratio, comparison

Version = Literal["candidate", "live"]
VERSIONS: tuple[Version, Version] = ("candidate", "live")
COMPARISONS = ("above", "equal", "below")
PARTS = 1_000_000
"""Shares of traffic are whole parts of a million, so that they are names."""
SCORE_STEPS = 1000
"""Scores and disagreements are counted in steps of 1/1000."""
MAX_NAMES = 100_000
MAX_SHARES = 64
MAX_COUNT = 2**50
MAX_PEAKS = 16
MAX_PLACE = 1000
"""Classes, steps of a score and buckets of latency are not beyond."""
_NAME = re.compile(
    r"share/(?P<share>[1-9]\d{0,5})/(?:candidate|live)/"
    r"(?:requests|errors|nan|output/(?P<output>0|[1-9]\d{0,3}))"
    r"|pairs/(?P<pair>0|[1-9]\d{0,3})"
    r"|latency/(?:above|equal|below)/(?:candidate|live)/(?P<bucket>0|-?[1-9]\d{0,3})"
)


@dataclass(slots=True)
class Evidence:
    """Counts of one process, or of several that were merged. Its owner alone may add to it."""

    counts: dict[str, int] = field(default_factory=dict)
    peaks: dict[str, float] = field(default_factory=dict)
    """The highest logarithm of an e-value against the candidate, by guard."""

    def count_request(
        self,
        share: float,
        version: Version,
        *,
        failed: bool = False,
        nan: bool = False,
        output: int | None = None,
        times: int = 1,
    ) -> None:
        """Counts a request of the split traffic, or several alike, once its outcome is known.

        Args:
            share: the candidate's share of the traffic when the request's version was drawn; at 0
                and 1 there is nothing to compare, and nothing is counted.
            version: the version that was drawn.
            failed: True for an error or a timeout of the version's own.
            nan: True if an output has a NaN or an infinity.
            output: the class, or the score as `score_step` has it.
            times: number of such requests.
        """
        parts = round(share * PARTS)
        if not 0 < parts < PARTS:
            return
        place = f"share/{parts}/{version}"
        self._add(f"{place}/requests", times)
        if failed:
            self._add(f"{place}/errors", times)
            return
        if nan:
            self._add(f"{place}/nan", times)
        if output is not None:
            self._add(f"{place}/output/{output}", times)

    def count_pair(self, disagreement: float) -> None:
        """Counts a mirrored pair: 0 if both answers agree, 1 if not, or between."""
        self._add(f"pairs/{score_step(disagreement)}")

    def count_latencies(self, candidate_s: float, live_s: float, ratio: float) -> None:
        """Counts the latencies of two requests, drawn at random from one short block of time.

        Args:
            candidate_s: seconds.
            live_s: seconds.
            ratio: tolerated ratio of the rollout's guard, by which the candidate's is divided.
        """
        candidate, live = bucket_of(candidate_s) - buckets_of_ratio(ratio), bucket_of(live_s)
        kind = COMPARISONS[comparison(candidate, live)]
        self._add(f"latency/{kind}/candidate/{candidate}")
        self._add(f"latency/{kind}/live/{live}")

    def _add(self, name: str, times: int = 1) -> None:
        self.counts[name] = self.counts.get(name, 0) + times

    def as_plain(self) -> dict[str, Any]:
        """Returns what `json.dumps` takes, and `from_plain` restores."""
        return {"counts": dict(self.counts), "peaks": dict(self.peaks)}

    @classmethod
    def from_plain(cls, plain: Any) -> Self:
        """Restores counts.

        Raises:
            InvalidEvidenceError: a name, a number or how many there are cannot be.
        """
        if not isinstance(plain, Mapping) or set(plain) != {"counts", "peaks"}:
            raise InvalidEvidenceError("evidence is an object with counts and peaks; send both")
        counts, peaks = plain["counts"], plain["peaks"]
        if not isinstance(counts, Mapping) or not isinstance(peaks, Mapping):
            raise InvalidEvidenceError("counts and peaks are objects of numbers by name")
        _check_counts(counts)
        if len(peaks) > MAX_PEAKS:
            raise InvalidEvidenceError(f"{len(peaks)} peaks; at most {MAX_PEAKS} are read")
        for name, peak in peaks.items():
            if type(peak) not in (int, float) or not math.isfinite(peak):
                raise InvalidEvidenceError(f"the peak of {name!s:.40} is not a finite number")
        return cls(dict(counts), {name: float(peak) for name, peak in peaks.items()})


def score_step(score: float) -> int:
    """Returns the step of a number between 0 and 1; others, and NaN, count as the worst, 1.

    A number below 1 is not counted as 1.
    """
    return min(round(score * SCORE_STEPS), SCORE_STEPS - 1) if 0 <= score < 1 else SCORE_STEPS


def merged(parts: Iterable[Evidence]) -> Evidence:
    """Adds the counts of several processes, and keeps the highest peaks."""
    total = Evidence()
    for part in parts:
        for name, count in part.counts.items():
            total.counts[name] = total.counts.get(name, 0) + count
        for name, peak in part.peaks.items():
            total.peaks[name] = max(peak, total.peaks.get(name, peak))
    return total


def _check_counts(counts: Mapping[Any, Any]) -> None:
    if len(counts) > MAX_NAMES:
        raise InvalidEvidenceError(f"{len(counts)} counts; at most {MAX_NAMES} are read")
    shares = set()
    for name, count in counts.items():
        found = _NAME.fullmatch(name) if isinstance(name, str) else None
        if not found:
            raise InvalidEvidenceError(f"no count has the name {name!s:.60}")
        if type(count) is not int or not 0 <= count <= MAX_COUNT:
            raise InvalidEvidenceError(
                f"{name} is {count!s:.40}; a count is a whole number from 0 to {MAX_COUNT}"
            )
        place = found["output"] or found["pair"] or found["bucket"] or 0
        if abs(int(place)) > MAX_PLACE:
            raise InvalidEvidenceError(f"{name}: places end at {MAX_PLACE}")
        shares.add(found["share"])
    if len(shares - {None}) > MAX_SHARES:
        raise InvalidEvidenceError(f"{len(shares)} shares of traffic; at most {MAX_SHARES}")
