"""The part of a recipe that says which alias moves to a new version, and when. Pure rules.

    publish: {model: digits, alias: canary}
    publish: {model: digits, alias: production, if: test/accuracy >= live - 0.5pp}

In: the keys as they stand in a recipe, or `promote` of older ones. Out: an alias and a condition,
every default written out.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ConfigDict, Field, field_validator, model_validator

from model_store.errors import BadNameError
from model_store.manifest import check_name
from model_store.metric import BETTER, better_of, is_share
from model_store.pointers import PRODUCTION
from model_store.strict import nearest_name
from training.recipe_parts.recipe_part import RecipePart

FIRST, ALWAYS = "first", "always"
METRICS = tuple(f"test/{name}" for name in sorted(BETTER))
"""What a condition may compare: figures of rows that neither version was chosen by."""
EXAMPLE = "test/accuracy >= live - 0.5pp"
POINTS = 100
"""Percentage points of a share of 1."""
_PROMOTE: dict[object, dict[str, str | None]] = {
    "never": {"alias": None},
    "first": {"alias": PRODUCTION, "if": FIRST},
    "always": {"alias": PRODUCTION, "if": ALWAYS},
}
"""What `promote` of older recipes means."""
_CONDITION = re.compile(
    r"(?P<metric>[\w/]+)\s*(?P<operator>[<>=!]+)\s*(?P<live>[A-Za-z_]+)"
    r"(?:\s*(?P<sign>[+-])\s*(?P<margin>\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+)\s*(?P<unit>[A-Za-z%]*))?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """Compares a metric of a new version with that of the live one."""

    metric: str
    """One of `METRICS`."""
    strict: bool
    """Whether the same value is not enough."""
    margin: float = 0.0
    """Added to the live version's value, in the metric's own unit."""

    @property
    def operator(self) -> str:
        """As it is written."""
        return ("<" if better_of(self.metric) == "lower" else ">") + ("" if self.strict else "=")

    def met(self, new: float, live: float) -> bool:
        """Whether a new version may take the live one's place.

        Args:
            new: the new version's value.
            live: the live version's, on the same rows.
        """
        # Differences of equal counts of rows are not exactly equal numbers.
        sign = -1 if better_of(self.metric) == "lower" else 1
        ahead = round((new - live - self.margin) * sign, 12)
        return ahead > 0 if self.strict else ahead >= 0

    def __str__(self) -> str:
        """The text that `parse_condition` reads."""
        share = is_share(self.metric)
        size = f"{abs(self.margin) * POINTS:g}pp" if share else f"{abs(self.margin):g}"
        margin = f" {'-' if self.margin < 0 else '+'} {size}" if self.margin else ""
        return f"{self.metric} {self.operator} live{margin}"


def parse_condition(text: str) -> Condition:
    """Reads `METRIC OPERATOR live`, and perhaps `+` or `-` a margin.

    Raises:
        ValueError: it is none, names no metric of the test split, or points the wrong way.
    """
    found = _CONDITION.fullmatch(text.strip())
    if found is None:
        raise ValueError(
            f"write {FIRST}, {ALWAYS}, or a comparison with the live version, such as {EXAMPLE}"
            + (nearest_name(text, (FIRST, ALWAYS)) if text.strip().isalpha() else "")
        )
    metric, operator, live = found["metric"], found["operator"], found["live"]
    if metric not in METRICS:
        raise ValueError(f"no metric '{metric}'{nearest_name(metric, METRICS)}")
    right = ("<=", "<") if better_of(metric) == "lower" else (">=", ">")
    if operator not in right:
        raise ValueError(f"{metric} is better when {better_of(metric)}; write {' or '.join(right)}")
    if live != "live":
        raise ValueError(f"compare with live, not with '{live}', as in {EXAMPLE}")
    return Condition(metric=metric, strict="=" not in operator, margin=_margin(found))


def _margin(found: "re.Match[str]") -> float:
    """In the metric's own unit; 0 without any."""
    if found["margin"] is None:
        return 0.0
    value, unit = float(found["margin"]), found["unit"]
    share = is_share(found["metric"])
    if unit not in ("", "pp") or (unit and not share):
        units = "give percentage points (0.5pp) or a share (0.005)" if share else "give none"
        raise ValueError(f"'{unit}' is no unit of {found['metric']}; {units}")
    value = value / POINTS if unit else value
    if share and value > 1:
        raise ValueError(f"a margin of {value * POINTS:g}pp is more than everything; {EXAMPLE}")
    return -value if found["sign"] == "-" else value


class PromotePart(RecipePart):
    """Which alias moves to the new version, and when."""

    model_config = ConfigDict(serialize_by_alias=True)

    alias: str | None = PRODUCTION
    """The alias that moves to the new version; null for none. Take `canary` to try a version on a
    part of the traffic, null where somebody must look first."""
    condition: str | None = Field(default=None, alias="if")
    """When it moves: `first`, only if the alias names no version yet; `always`; or a comparison
    with what `production` names, on the test rows of this run: `test/accuracy >= live`, `>`, and a
    margin as in `test/accuracy >= live - 0.5pp` (`test/loss <= live` where lower is better).
    `production` moves `first` unless told otherwise, other aliases `always`. Give a comparison
    where versions are trained without anybody looking."""

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
            keys["if"] = FIRST if alias == PRODUCTION else ALWAYS
        return keys

    @field_validator("alias")
    @classmethod
    def _alias_name(cls, value: str | None) -> str | None:
        try:
            return None if value is None else check_name(value, "alias")
        except BadNameError as error:
            raise ValueError(str(error)) from error

    @field_validator("condition")
    @classmethod
    def _condition_as_read(cls, value: str | None) -> str | None:
        return value if value in (None, FIRST, ALWAYS) else str(parse_condition(value or ""))

    @model_validator(mode="after")
    def _condition_has_an_alias(self) -> "PromotePart":
        if self.alias is None and self.condition is not None:
            raise ValueError(f"if is {self.condition!r} and alias null; name an alias to move")
        return self

    def comparison(self) -> Condition | None:
        """What is compared with the live version, if anything is."""
        if self.condition in (None, FIRST, ALWAYS):
            return None
        return parse_condition(self.condition or "")


def _without_promote(keys: dict[str, Any]) -> dict[str, Any]:
    """The keys of a recipe that is older than `alias` and `if`."""
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
