"""The records that a judge returns. Plain data."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

from services.rollouts.evidence.effects import Figures

Decision = Literal["roll_back", "promote", "undecided"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Evidence about one guard."""

    guard: str
    state: Literal["broken", "kept", "open"]
    """Broken, proven to be kept, or neither yet."""
    log_e_against: float
    """Logarithm of the e-value against the candidate, the highest at any look."""
    log_e_now: float
    """The same at this look alone."""
    log_e_to_roll_back: float
    """`log_e_against` that breaks the guard."""
    log_e_for: float
    log_e_to_promote: float
    observed: int
    """Observations so far, in `unit`."""
    unit: str
    more: int | None
    """Expected number of further observations until the guard is proven to be kept, if they go on
    as they are; None if they would not prove it."""
    figures: Figures
    """Estimates, and the bounds of intervals as `…_low` and `…_high`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Decision about a rollout."""

    decision: Decision
    reason: str
    guard: str | None
    """The broken guard, or the one that needs the most further traffic."""
    more_requests: int | None
    """Expected number of further requests until a promotion, if they go on as they are. None if it
    cannot be told, or if nothing is missing."""
    findings: tuple[Finding, ...]

    def as_plain(self) -> dict[str, Any]:
        """Returns what `json.dumps` takes."""
        return asdict(self) | {"findings": [asdict(finding) for finding in self.findings]}

    @property
    def peaks(self) -> dict[str, float]:
        """Returns the highest logarithms of e-values, which `Evidence` keeps."""
        return {finding.guard: finding.log_e_against for finding in self.findings}
