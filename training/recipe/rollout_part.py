"""The part of a recipe that rolls a new version out step by step. Pure.

    publish: {model: digits, rollout: {steps: [1%, 10%, 50%, 100%], every: 5m, mirror: 10%}}

In: shares and durations as text. Out: the same in one form, and the request of a rollout.
"""

from typing import Annotated

from pydantic import AfterValidator, Field, field_validator

from model_store.rollouts.amounts import duration_text, parse_duration, parse_share, share_text
from model_store.rollouts.requests import RolloutRequest
from model_store.rollouts.traffic import MAX_EVERY_S, MAX_STEPS, STICKY
from training.recipe.parts.recipe_part import RecipePart

ShareText = Annotated[str, AfterValidator(lambda text: share_text(parse_share(text)))]


class RolloutPart(RecipePart):
    """Steps of the rollout that starts in place of moving `production`."""

    steps: tuple[ShareText, ...] = Field(
        default=("1%", "10%", "50%", "100%"), min_length=1, max_length=MAX_STEPS
    )
    """The version's shares of the requests, ascending; 100% is the promotion, which takes evidence.
    Leave 100% out if somebody must promote it."""
    every: str = "5m"
    """Shortest duration of a step, such as `30s`, `5m` or `2h`. Raise it if traffic comes in
    waves."""
    sticky: str = ""
    """`header:NAME` or `parameter:NAME`: requests with one value of it get one version. Give it if
    a user must not see both versions."""
    mirror: ShareText = "10%"
    """Share of the other requests that the version answers too, unseen, to compare its answers.
    Lower it if devices are busy; `0%` compares none."""

    @field_validator("every")
    @classmethod
    def _duration(cls, value: str) -> str:
        seconds = parse_duration(value)
        if seconds > MAX_EVERY_S:
            raise ValueError(f"give at most {duration_text(MAX_EVERY_S)}")
        return duration_text(seconds)

    @field_validator("steps")
    @classmethod
    def _ascending(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        shares = [parse_share(text) for text in value]
        if shares != sorted(set(shares)) or shares[0] in (0, 1):
            raise ValueError("write ascending shares, the first above 0% and below 100%")
        return value

    @field_validator("sticky")
    @classmethod
    def _source(cls, value: str) -> str:
        if value and not STICKY.fullmatch(value):
            raise ValueError("write header:NAME or parameter:NAME")
        return value

    def request(self, version: int, why: str) -> RolloutRequest:
        """Returns the request of the rollout of a version."""
        return RolloutRequest(
            version=version,
            steps=tuple(parse_share(text) for text in self.steps),
            every_s=parse_duration(self.every),
            sticky=self.sticky,
            mirrored=parse_share(self.mirror),
            why=why[:500],
        )
