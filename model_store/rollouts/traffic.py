"""How requests that name no version are shared among versions of a model. Plain data, validated.

A rollout sends a growing share of them to a candidate, a split fixed shares to several versions.
A shadow repeats some of them at a candidate, whose answers no caller gets. The pointers of a model
keep all three, so every server follows them and a restart loses nothing.
"""

import re
import secrets
from collections.abc import Collection, Iterable
from datetime import UTC, datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from flambeau.protocol.strict import StrictModel
from flambeau.protocol.tensor_spec import TensorName
from model_store.rollouts.amounts import share_text
from model_store.rollouts.guards import Guards

MAX_STEPS = 32
MAX_EVERY_S = 30 * 86_400
MAX_ARMS = 8
MAX_KEPT_PAIRS = 100
"""Most pairs of different answers that a shadow keeps."""
MAX_SPREADS = 16
"""Outputs with a spread: with the longest names, they fit into the file of the pointers."""
STICKY = re.compile(r"(header|parameter):[A-Za-z0-9_-]{1,64}")
"""Source of a request's key: an HTTP header or gRPC metadata entry, or a request parameter."""

Version = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
Spread = Annotated[float, Field(gt=0, allow_inf_nan=False)]
# Omitted from JSON if empty, so that older servers read such pointers.
Spreads = Annotated[
    dict[TensorName, Spread],
    Field(max_length=MAX_SPREADS, exclude_if=lambda spreads: not spreads),
]
"""Spreads by output; see `golden_spreads.py`."""


def new_id() -> str:
    """Returns an id of a rollout, a shadow or a split: 16 hexadecimal digits."""
    return secrets.token_hex(8)


def _now() -> datetime:
    return datetime.now(UTC)


def _zoned(when: datetime) -> datetime:
    return when if when.tzinfo else when.replace(tzinfo=UTC)


def _texts(shares: Iterable[float]) -> str:
    return ", ".join(map(share_text, shares))


When = Annotated[datetime, AfterValidator(_zoned)]
"""A time; one without a zone is read as UTC."""


class _Routed(StrictModel):
    id: str = Field(default_factory=new_id, pattern="^[0-9a-f]{16}$")
    """Names its evidence, and salts the hash of keys: each one draws anew."""
    sticky: str = ""
    """`header:NAME` or `parameter:NAME`: requests with one value of it get one version. Requests
    without a value, and all of them if this is empty, are drawn one by one."""
    started: When = Field(default_factory=_now)

    @field_validator("sticky")
    @classmethod
    def _known_source(cls, value: str) -> str:
        if value and not STICKY.fullmatch(value):
            raise ValueError(
                "write header:NAME or parameter:NAME, as in header:x-user; a NAME has at most 64 "
                "letters, digits, - and _"
            )
        return value.lower() if value.startswith("header:") else value


class Rollout(_Routed):
    """A rollout of one version, step by step.

    A step below 1 gives the candidate that share of the requests. The step 1 is the promotion: the
    alias `production` moves to the candidate, once every guard is proven to be kept. Without it,
    the last step lasts until somebody promotes or aborts.
    """

    candidate: Version
    baseline: Version
    """The version of `production` when it began, which answers the other requests."""
    steps: tuple[Share, ...] = Field(min_length=1, max_length=MAX_STEPS)
    """Shares of the candidate, ascending."""
    every_s: float = Field(default=300, ge=0, le=MAX_EVERY_S)
    """Seconds of a step, at least."""
    mirrored: float = Field(default=0.1, ge=0, le=1)
    """Share of the baseline's requests that are repeated at the candidate, to compare answers."""
    guards: Guards = Guards()
    spreads: Spreads = Field(default={})
    """Those of the baseline's golden answers: the scale of the disagreement of numbers."""
    step: int = Field(default=0, ge=0)
    """Place in `steps`."""
    step_began: When = Field(default_factory=_now)
    paused: str = Field(default="", max_length=500)
    """Why it stays at its step; empty while it runs. Guards are judged all the same."""

    @property
    def share(self) -> float:
        """The candidate's share of the requests now; below 1."""
        return self.steps[self.step] if self.steps[self.step] < 1 else 0.0

    @model_validator(mode="after")
    def _coherent(self) -> "Rollout":
        if list(self.steps) != sorted(set(self.steps)):
            raise ValueError(f"steps are {_texts(self.steps)}; write ascending shares, as 1%, 10%")
        if self.steps[0] == 1:
            raise ValueError("the first step is 100%, a promotion; promote, or add smaller steps")
        if self.step >= len(self.steps) or self.steps[self.step] == 1:
            raise ValueError(
                f"step {self.step} of {_texts(self.steps)} gives no share of the requests"
            )
        if self.candidate == self.baseline:
            raise ValueError(
                f"version {self.candidate} is already in production; name another version"
            )
        return self


class Shadow(StrictModel):
    """Requests that are repeated at a candidate, to compare its answers with the live ones."""

    id: str = Field(default_factory=new_id, pattern="^[0-9a-f]{16}$")
    candidate: Version
    sample: Share
    """Share of the live version's requests."""
    keep: int = Field(default=20, ge=0, le=MAX_KEPT_PAIRS)
    """Pairs that differ the most, with their inputs, to look at."""
    spreads: Spreads = Field(default={})
    """Those of the golden answers of the version that was live when it began."""
    started: When = Field(default_factory=_now)


class Arm(StrictModel):
    """A version of a split, and its share."""

    version: Version
    share: Share


class Split(_Routed):
    """Fixed shares of the requests for several versions, to compare them (A/B)."""

    name: str = Field(pattern="^[A-Za-z][A-Za-z0-9_.-]{0,63}$")
    arms: tuple[Arm, ...] = Field(min_length=2, max_length=MAX_ARMS)
    """The first is the one that the others are compared with."""

    @model_validator(mode="after")
    def _coherent(self) -> "Split":
        versions = [arm.version for arm in self.arms]
        if len({*versions}) < len(versions):
            listed = ", ".join(map(str, versions))
            raise ValueError(f"the versions are {listed}; name each once")
        total = sum(arm.share for arm in self.arms)
        if abs(total - 1) > 1e-6:
            raise ValueError(f"the shares add up to {share_text(total)}; they must add up to 100%")
        return self


class Traffic(StrictModel):
    """Rollout, shadow and split of a model; at most one of rollout and split."""

    schema_version: Literal[1] = 1
    rollout: Rollout | None = None
    shadow: Shadow | None = None
    split: Split | None = None

    @model_validator(mode="after")
    def _one_route(self) -> "Traffic":
        if self.rollout is not None and self.split is not None:
            raise ValueError("a rollout and a split share the same requests; end one of them first")
        return self

    @property
    def versions(self) -> Collection[int]:
        """Versions that servers must have loaded for it."""
        found: list[int] = []
        if self.rollout is not None:
            found += [self.rollout.candidate, self.rollout.baseline]
        if self.shadow is not None:
            found.append(self.shadow.candidate)
        if self.split is not None:
            found += [arm.version for arm in self.split.arms]
        return list(dict.fromkeys(found))

    @property
    def ids(self) -> Collection[str]:
        """Ids of its rollout, shadow and split."""
        return [one.id for one in (self.rollout, self.shadow, self.split) if one is not None]

    def use_of(self, version: int) -> str:
        """Returns what a version is for, in words; empty if it is for nothing."""
        rollout, shadow, split = self.rollout, self.shadow, self.split
        if rollout is not None and version in (rollout.candidate, rollout.baseline):
            part = "candidate" if version == rollout.candidate else "baseline"
            return f"the {part} of a rollout"
        if shadow is not None and version == shadow.candidate:
            return "the candidate of a shadow"
        if split is not None and any(arm.version == version for arm in split.arms):
            return f"an arm of the split '{split.name}'"
        return ""

    def after_move_to(self, production: int | None) -> "Traffic":
        """Returns what remains of it after a move of `production`: the shadow of another version.

        A rollout and a split end, also if `production` names the same version as before.
        """
        shadow = self.shadow
        if shadow is not None and shadow.candidate == production:
            shadow = None
        return Traffic(shadow=shadow)

    def ended_in(self, following: "Traffic") -> tuple[str, ...]:
        """Returns the parts that the next generation no longer has, such as `split 'ab'`."""
        kept = following.ids
        ended = []
        if (rollout := self.rollout) is not None and rollout.id not in kept:
            ended.append(f"rollout of version {rollout.candidate}")
        if (shadow := self.shadow) is not None and shadow.id not in kept:
            ended.append(f"shadow of version {shadow.candidate}")
        if (split := self.split) is not None and split.id not in kept:
            ended.append(f"split '{split.name}'")
        return tuple(ended)

    @property
    def shares_requests(self) -> bool:
        """True while a rollout or a split has the requests that name no version."""
        return self.rollout is not None or self.split is not None

    def __bool__(self) -> bool:
        return any((self.rollout, self.shadow, self.split))
