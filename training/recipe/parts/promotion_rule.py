"""The part of a recipe that moves an alias to a new version under a condition. Pure rules.

    publish: {model: digits, alias: canary}
    publish: {model: digits, alias: production, if: test/accuracy >= live - 0.5pp}
    publish: {model: digits, rollout: {every: 1h}}
    publish: {model: digits, if: first and test/accuracy >= 90% and test/accuracy > guess}

In: the keys as written in a recipe, or `promote` of older ones. Out: an alias and a rule, every
default written out.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import ConfigDict, Field, field_validator, model_validator

from model_store.errors import BadNameError
from model_store.pointers import PRODUCTION, check_alias
from training.recipe.parts.promotion_condition import ALWAYS, FIRST, PromotionRule, parse_rule
from training.recipe.parts.recipe_part import RecipePart
from training.recipe.rollout_part import RolloutPart

_PROMOTE: dict[object, dict[str, str | None]] = {
    "never": {"alias": None},
    "first": {"alias": PRODUCTION, "if": FIRST},
    "always": {"alias": PRODUCTION, "if": ALWAYS},
}
"""Meaning of `promote` in older recipes."""


class PromotePart(RecipePart):
    """The alias that moves to the new version, and its condition."""

    model_config = ConfigDict(serialize_by_alias=True)

    alias: str | None = PRODUCTION
    """Alias that moves to the new version; null for none. Take `canary` to try a version on a part
    of the traffic, null if somebody must approve it first."""
    condition: str | None = Field(default=None, alias="if")
    """Condition of the move: `first`, only if the alias names no version yet; `always`; or
    comparisons on the test rows of this run, joined by `and`: with a number (`test/accuracy >=
    90%`, `test/rmse <= 2.5`), with the best constant answer (`test/accuracy > guess`), or with the
    version of `production` (`test/accuracy >= live`), with a margin as in `live - 0.5pp`. The
    default is `first` for `production` without a `rollout`, and `always` otherwise. Give
    comparisons if versions are trained unattended."""
    # Omitted if null, so that other recipes read and digest as before.
    rollout: RolloutPart | None = Field(default=None, exclude_if=lambda rollout: rollout is None)
    """Rollout that starts, where the condition holds, in place of moving `production` from one
    version to the next; null for none. The first version is promoted at once. Give it if traffic
    shall judge a version."""

    @model_validator(mode="before")
    @classmethod
    def _written_out(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        keys = dict(data)
        if "promote" in keys:
            keys = _without_promote(keys)
        alias = keys.get("alias", PRODUCTION)
        if keys.get("if") is None and alias is not None:
            at_first = alias == PRODUCTION and keys.get("rollout") is None
            keys["if"] = FIRST if at_first else ALWAYS
        return keys

    @field_validator("alias")
    @classmethod
    def _alias_name(cls, value: str | None) -> str | None:
        try:
            return None if value is None else check_alias(value)
        except BadNameError as error:
            raise ValueError(str(error)) from error

    @field_validator("condition")
    @classmethod
    def _condition_as_read(cls, value: str | None) -> str | None:
        return None if value is None else str(parse_rule(value))

    @model_validator(mode="after")
    def _condition_has_an_alias(self) -> "PromotePart":
        if self.alias is None and self.condition is not None:
            raise ValueError(f"if is {self.condition!r} and alias null; name an alias to move")
        return self

    @model_validator(mode="after")
    def _rollout_has_a_way(self) -> "PromotePart":
        if self.rollout is None:
            return self
        if self.alias != PRODUCTION:
            raise ValueError(
                f"rollout is given and alias is {self.alias or 'null'}; a rollout leads to "
                f"{PRODUCTION}, so leave one of them out"
            )
        if self.rule().first:
            raise ValueError(
                f"rollout is given and if has '{FIRST}', which holds before any version is live; "
                "leave one of them out"
            )
        return self

    def rule(self) -> PromotionRule:
        """Returns the rule for moving the alias; `always` if there is no alias."""
        return parse_rule(self.condition or ALWAYS)


def _without_promote(keys: dict[str, Any]) -> dict[str, Any]:
    """Converts the keys of a recipe that is older than `alias` and `if`."""
    promote = keys.pop("promote")
    if promote not in _PROMOTE:
        raise ValueError(
            f"promote is {promote!r}; it was never, first or always, and is now alias: null, "
            f"if: {FIRST} and if: {ALWAYS}"
        )
    newer = [key for key in ("alias", "if") if key in keys]
    if newer:
        raise ValueError(f"promote says the same as {' and '.join(newer)}; drop promote")
    return keys | _PROMOTE[promote]
