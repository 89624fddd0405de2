"""What to do with a rollout, from the verdict on it, its traffic and the time. Pure.

Rules: a broken guard ends it at any step, paused or not. A step lasts `every_s` at least, and
until the candidate has answered some requests at its share: silence is no evidence. It lasts longer
while a guard speaks against the candidate (`DOUBTFUL`), though it is not broken. The step 1, a
promotion, needs the verdict `promote`.
"""

import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from model_store.rollouts.amounts import share_text
from model_store.rollouts.traffic import Rollout
from services.rollouts.evidence.evidence import PARTS, Evidence
from services.rollouts.evidence.verdict import Verdict

LEAST_REQUESTS = 30
"""Requests of the candidate at a step's share before the next step: a candidate that fails half of
them, where the default guards are set, is rolled back by then."""
DOUBTFUL = 10.0
"""E-value against the candidate, divided by the number of guards, at which it gets no larger share:
one within its limits ever reaches it with a probability of a tenth at most, and goes on once it has
fallen."""

Move = Literal["rolled_back", "advanced", "promoted"]


@dataclass(frozen=True, slots=True)
class Decision:
    """The next move of a rollout, or why there is none."""

    move: Move | None
    why: str


def decide(rollout: Rollout, verdict: Verdict, evidence: Evidence, now: datetime) -> Decision:
    """Decides about a rollout.

    Args:
        rollout: as the newest pointers have it.
        verdict: the one on the evidence.
        evidence: the counts of all processes.
        now: time, with a time zone.
    """
    if verdict.decision == "roll_back":
        return Decision("rolled_back", verdict.reason)
    if rollout.paused:
        return Decision(None, f"paused: {rollout.paused}")
    following = rollout.step + 1
    if following >= len(rollout.steps):
        return Decision(None, "at its last step; promote or abort it")
    ends = rollout.step_began + timedelta(seconds=rollout.every_s)
    if now < ends:
        return Decision(None, f"the step lasts until {ends.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC")
    requests = requests_at(evidence, rollout.share)
    if requests < LEAST_REQUESTS:
        return Decision(
            None,
            f"too little traffic: the candidate has answered {requests} requests at its share of "
            f"{share_text(rollout.share)}, and the next step needs {LEAST_REQUESTS}",
        )
    enough = DOUBTFUL * len(verdict.findings)
    for finding in verdict.findings:
        if finding.log_e_now >= math.log(enough):
            e_value = f"{math.exp(min(finding.log_e_now, 700)):,.4g}"
            return Decision(
                None,
                f"the guard '{finding.guard}' speaks against the candidate: e-value {e_value}, and "
                f"the next step needs one below {enough:g}",
            )
    if rollout.steps[following] < 1:
        return Decision("advanced", "no guard is broken")
    if verdict.decision == "promote":
        return Decision("promoted", verdict.reason)
    return Decision(None, f"not promoted yet: {verdict.reason}")


def requests_at(evidence: Evidence, share: float) -> int:
    """Returns the requests that the candidate had at a share of the traffic."""
    return evidence.counts.get(f"share/{round(share * PARTS)}/candidate/requests", 0)


def counts_by_share(evidence: Evidence) -> dict[str, Any]:
    """Returns requests, errors and NaN by share and version, and mirrored pairs, for people.

    Returns:
        `shares` by share, such as `0.1`, then version; `pairs` and the number of them that differ.
    """
    shares: dict[float, dict[str, dict[str, int]]] = {}
    pairs = differing = 0
    for name, count in evidence.counts.items():
        match name.split("/"):
            case ["share", parts, version, ("requests" | "errors" | "nan") as kind]:
                at = shares.setdefault(int(parts) / PARTS, {})
                at.setdefault(version, {})[kind] = count
            case ["pairs", step]:
                pairs += count
                differing += count if step != "0" else 0
    by_share = {f"{share:.6g}": shares[share] for share in sorted(shares)}
    return {"shares": by_share, "pairs": pairs, "differing_pairs": differing}
