"""What a person asks for: a rollout, a shadow or a split. Plain data, validated.

The JSON of the registry's calls; the command line and recipes make it, too.
"""

from typing import Annotated

from pydantic import Field, JsonValue

from flambeau.protocol.strict import StrictModel
from model_store.rollouts.traffic import (
    MAX_ARMS,
    MAX_EVERY_S,
    MAX_KEPT_PAIRS,
    MAX_STEPS,
    Arm,
    Share,
)

MAX_WHY = 500
MAX_GUARDS, MAX_GUARD_FIELDS = 16, 16

Number = Annotated[int, Field(ge=1, le=999_999_999)]
Guard = Annotated[str, Field(max_length=32)]
GuardChanges = Annotated[
    dict[Guard, Annotated[dict[Guard, JsonValue], Field(max_length=MAX_GUARD_FIELDS)] | None],
    Field(max_length=MAX_GUARDS),
]


class Reason(StrictModel):
    """Why something is done, for the history."""

    why: str = Field(default="", max_length=MAX_WHY)


class RolloutReason(Reason):
    """Why something is done with a rollout, and with which one."""

    rollout_id: str = Field(default="", pattern="^([0-9a-f]{16})?$")
    """The rollout that is meant: if another one runs, it is left alone. Empty for any."""


class RolloutRequest(Reason):
    """A rollout to start."""

    version: Number
    """The candidate."""
    steps: tuple[Share, ...] = Field(
        default=(0.01, 0.1, 0.5, 1), min_length=1, max_length=MAX_STEPS
    )
    """The candidate's shares of the requests, ascending; 1 is the promotion."""
    every_s: float = Field(default=300, ge=0, le=MAX_EVERY_S)
    """Seconds of a step, at least."""
    sticky: str = Field(default="", max_length=80)
    """`header:NAME` or `parameter:NAME`, whose values keep a version."""
    mirrored: float = Field(default=0.1, ge=0, le=1)
    """Share of the live version's requests that the candidate answers too, unseen by callers."""
    risk: float = Field(default=0.01, gt=0, lt=0.5)
    """Probability that a version within all limits is rolled back."""
    guards: GuardChanges = Field(default={})
    """Limits in place of the default ones, such as `{"disagreement": {"limit": 0.02}, "latency":
    null}`; null for a guard that is not judged."""
    allow_breaking: bool = False
    """True for a candidate whose signature breaks callers of the live version."""


class ShadowRequest(Reason):
    """A shadow to start."""

    version: Number
    sample: Share = 0.1
    """Share of the live version's requests that the candidate answers too, unseen by callers."""
    keep: int = Field(default=20, ge=0, le=MAX_KEPT_PAIRS)
    """Pairs of the most different answers that are kept."""
    allow_breaking: bool = False


class SplitRequest(Reason):
    """A split to start."""

    name: str = Field(max_length=64)
    arms: tuple[Arm, ...] = Field(min_length=2, max_length=MAX_ARMS)
    """Versions and their shares; the others are compared with the first."""
    sticky: str = Field(default="", max_length=80)
    allow_breaking: bool = False
