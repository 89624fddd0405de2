"""The language of a recipe's `publish.if`, which decides if an alias may move. Pure.

In: text. Out: a rule, whose `str` is the text that was parsed.

    rule       = clause { "and" clause }
    clause     = "first" | "always" | METRIC OPERATOR limit
    limit      = NUMBER [ "%" ] | ( "live" | "guess" ) [ ( "+" | "-" ) NUMBER [ "pp" ] ]

`live` is the version that `production` names; `guess` is the best constant answer
(`training.metrics.guess`).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from flambeau.protocol.strict import nearest_name
from model_store.metric import BETTER, Better, better_of, is_share, metric_texts

FIRST, ALWAYS = "first", "always"
LIVE, GUESS = "live", "guess"
METRICS = tuple(f"test/{name}" for name in sorted(BETTER))
"""Metrics that a condition may compare: of test rows, which selected no version. A recipe with a
metric of its own may compare that too; the recipe checks it."""
EXAMPLE = "test/accuracy >= live - 0.5pp"
FLOOR = "test/accuracy >= 90%"
POINTS = 100
"""Percentage points of a share of 1."""
_NUMBER = r"(?:\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+)"
_CONDITION = re.compile(
    r"(?P<metric>[\w/]+)\s*(?P<operator>[<>=!]+)\s*"
    rf"(?:(?P<number>[+-]?{_NUMBER})\s*(?P<percent>%?)|(?P<against>[A-Za-z_]+)"
    rf"(?:\s*(?P<sign>[+-])\s*(?P<margin>{_NUMBER})\s*(?P<unit>[A-Za-z%]*))?)"
)
_OWN = re.compile(r"test/[A-Za-z_]\w*")
_AND = re.compile(r"\s+and\s+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """Compares a metric of a new version with that of another version, or with a number."""

    metric: str
    """One of `METRICS`, or the recipe's own: `test/NAME`."""
    own_better: Better | None = None
    """Direction of the recipe's own metric, by the operator; None for one of `METRICS`."""
    strict: bool
    """True if an equal value does not meet the condition."""
    against: str | float = LIVE
    """`live`, `guess` or a number in the metric's unit."""
    margin: float = 0.0
    """Number added to the other value, in the metric's unit."""

    @property
    def direction(self) -> Better:
        """Direction of the metric."""
        return self.own_better or better_of(self.metric)

    @property
    def operator(self) -> str:
        """Operator as written in the text."""
        return ("<" if self.direction == "lower" else ">") + ("" if self.strict else "=")

    @property
    def of_live(self) -> bool:
        """True if the live version must be evaluated for the condition."""
        return self.against == LIVE

    def met(self, new: float, other: float, rounding: float = 0.0) -> bool:
        """Checks that a new version meets the condition.

        Args:
            new: value of the new version.
            other: value it is compared with, on the same rows.
            rounding: largest difference that counts as equal.
        """
        # Shares with equal count differences are not exactly equal as floats.
        sign = -1 if self.direction == "lower" else 1
        ahead = round((new - other - self.margin) * sign, 12)
        return ahead > rounding if self.strict else ahead >= -rounding

    def limit(self, metrics: Mapping[str, float]) -> float | None:
        """Returns the limit of the metric without the margin, or None if it is not known here.

        Args:
            metrics: metrics of the new version, and of the guess as `guess/accuracy`.
        """
        if isinstance(self.against, float):
            return self.against
        return metrics.get(f"{GUESS}/{self.metric.rpartition('/')[2]}")

    def __str__(self) -> str:
        """Returns the text that `parse_condition` reads."""
        share = is_share(self.metric)
        if isinstance(self.against, float):
            limit = f"{self.against * POINTS:g}%" if share else f"{self.against:g}"
            return f"{self.metric} {self.operator} {limit}"
        size = f"{abs(self.margin) * POINTS:g}pp" if share else f"{abs(self.margin):g}"
        margin = f" {'-' if self.margin < 0 else '+'} {size}" if self.margin else ""
        return f"{self.metric} {self.operator} {self.against}{margin}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PromotionRule:
    """All conditions for moving an alias."""

    first: bool = False
    """True if the alias must not name a version yet."""
    conditions: tuple[Condition, ...] = ()

    @property
    def live(self) -> Condition | None:
        """The comparison with the live version, or None."""
        return next((one for one in self.conditions if one.of_live), None)

    @property
    def demands(self) -> tuple[Condition, ...]:
        """The other comparisons, which need only metrics of the new version."""
        return tuple(one for one in self.conditions if not one.of_live)

    def __str__(self) -> str:
        """Returns the text that `parse_rule` reads."""
        words = [FIRST] * self.first + [str(one) for one in self.conditions]
        return " and ".join(words) or ALWAYS


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Result of one demand."""

    condition: Condition
    value: float | None
    limit: float | None

    @property
    def met(self) -> bool:
        """True if the demand is met; false if a value is missing."""
        if self.value is None or self.limit is None:
            return False
        return self.condition.met(self.value, self.limit)

    def text(self) -> str:
        """Returns the result in one line."""
        name, text = self.condition.metric, f"{self.condition} is {'' if self.met else 'not '}met"
        if self.value is None or self.limit is None:
            return f"{text}: this run has no such figure"
        value, limit = metric_texts(name, self.value, self.limit)
        if self.condition.against == GUESS:
            return f"{text}: {value} against {limit}"
        return f"{text}: it is {value}"


def findings(rule: PromotionRule, metrics: Mapping[str, float]) -> list[Finding]:
    """Evaluates the demands of a rule with the metrics of a version.

    Args:
        rule: rule of the recipe.
        metrics: metrics of the version's checkpoint; see `Condition.limit`.
    """
    return [
        Finding(condition=one, value=metrics.get(one.metric), limit=one.limit(metrics))
        for one in rule.demands
    ]


def parse_rule(text: str) -> PromotionRule:
    """Parses the whole of `publish.if`.

    Raises:
        ValueError: a clause is invalid, or two clauses are incompatible.
    """
    clauses = _AND.split(text.strip())
    first = FIRST in clauses
    if ALWAYS in clauses and len(clauses) > 1:
        raise ValueError(f"{ALWAYS} says nothing beside other conditions; drop it")
    conditions = [parse_condition(c) for c in clauses if c not in (FIRST, ALWAYS)]
    live = [condition for condition in conditions if condition.of_live]
    if len(live) > 1 or (live and first):
        other = FIRST if first else str(live[1])
        raise ValueError(f"'{live[0]}' and '{other}' do not go together; keep one")
    return PromotionRule(first=first, conditions=tuple(conditions))


def parse_condition(text: str) -> Condition:
    """Parses one comparison.

    Raises:
        ValueError: the syntax, the metric or the direction of the comparison is wrong.
    """
    found = _CONDITION.fullmatch(text.strip())
    if found is None:
        raise ValueError(
            f"write {FIRST}, {ALWAYS}, or a comparison with the live version, such as {EXAMPLE}, "
            f"or with a number, such as {FLOOR}"
            + (nearest_name(text, (FIRST, ALWAYS)) if text.strip().isalpha() else "")
        )
    metric, operator, against = found["metric"], found["operator"], found["against"]
    own: Better | None = None
    if metric not in METRICS:
        if not _OWN.fullmatch(metric):
            raise ValueError(f"no metric '{metric}'{nearest_name(metric, METRICS)}")
        own = "lower" if operator.startswith("<") else "higher"
    better = own or better_of(metric)
    right = ("<=", "<") if better == "lower" else (">=", ">")
    if operator not in right:
        raise ValueError(f"{metric} is better when {better}; write {' or '.join(right)}")
    strict = "=" not in operator
    if found["number"] is not None:
        number = _number(found)
        return Condition(metric=metric, strict=strict, against=number, own_better=own)
    if against not in (LIVE, GUESS):
        raise ValueError(
            f"compare with live, guess or a number, not with '{against}', as in {EXAMPLE}"
        )
    if against == GUESS and metric == "test/loss":
        raise ValueError("a guess has no loss; compare another metric, or the loss with a number")
    margin = _margin(found)
    return Condition(metric=metric, strict=strict, against=against, margin=margin, own_better=own)


def _number(found: "re.Match[str]") -> float:
    """Returns the number in the metric's unit."""
    value, metric = float(found["number"]), found["metric"]
    share = is_share(metric)
    if found["percent"] and not share:
        raise ValueError(f"'%' is not a unit of {metric}; give a plain number")
    value = value / POINTS if found["percent"] else value
    if share and not 0 <= value <= 1:
        raise ValueError(
            f"{metric} goes from 0 to 1, and never reaches {value:g}; write 0.9 or 90%"
        )
    return value


def _margin(found: "re.Match[str]") -> float:
    """Returns the margin in the metric's unit; 0 without any."""
    if found["margin"] is None:
        return 0.0
    value, unit = float(found["margin"]), found["unit"]
    share = is_share(found["metric"])
    if unit not in ("", "pp") or (unit and not share):
        units = "give percentage points (0.5pp) or a share (0.005)" if share else "give none"
        raise ValueError(f"'{unit}' is not a unit of {found['metric']}; {units}")
    value = value / POINTS if unit else value
    if share and value > 1:
        raise ValueError(f"a margin of {value * POINTS:g}pp is more than everything; {EXAMPLE}")
    return -value if found["sign"] == "-" else value
