"""Metrics: their direction, comparisons of values, and their text form. Pure.

The only definition of a metric's direction, for training, servers and the command line.
"""

from typing import Literal

from pydantic import Field

from flambeau.protocol.strict import StrictModel

Better = Literal["higher", "lower"]

BETTER: dict[str, Better] = {
    "accuracy": "higher",
    "exact_match": "higher",
    "f1": "higher",
    "macro_f1": "higher",
    "r2": "higher",
    "loss": "lower",
    "mae": "lower",
    "rmse": "lower",
}
"""Direction by the metric's name without its split: for `val/rmse` the name is `rmse`."""
SHARES = frozenset({"accuracy", "exact_match", "f1", "macro_f1"})
"""Metrics from 0 to 1, written in percent."""
MORE_DIGITS = range(14)
"""Additional digits, up to the 17 in total that distinguish any two floats."""


class MeasuredMetric(StrictModel):
    """A metric over the test split, with its confidence interval."""

    name: str
    """Name, such as `accuracy` or `rmse`."""
    value: float
    interval: tuple[float, float] | None = Field(default=None)
    """The 95 % confidence interval of the true value; None if it was not computed."""
    better: Better
    """Direction of the metric."""

    def text(self) -> str:
        """Returns the value in readable form: `98.6 %`, `53.27`."""
        return metric_text(self.name, self.value)


def better_of(name: str) -> Better:
    """Returns the direction of a metric, with or without its split: `rmse`, `val/rmse`.

    The direction of an unknown metric is `higher`.
    """
    return BETTER.get(name.rpartition("/")[2], "higher")


def is_share(name: str) -> bool:
    """Returns True if a metric, with or without its split, ranges from 0 to 1."""
    return name.rpartition("/")[2] in SHARES


def is_better(better: Better, value: float, than: float) -> bool:
    """Returns True if one value of a metric is better than another; equal values are not.

    Args:
        better: direction of the metric.
        value: the first value.
        than: the second value.
    """
    return value < than if better == "lower" else value > than


def how_much_worse(better: Better, before: float, after: float) -> float:
    """Returns the decrease of a metric, or the increase of an error; negative if it improved.

    For `higher` it is the difference: 0.01 is a percentage point. For `lower` it is the relative
    increase: 0.01 is 1 % more; infinite for an increase from 0.
    """
    if better == "higher":
        return before - after
    if before > 0:
        return after / before - 1
    return 0.0 if after <= before else float("inf")


def metric_text(name: str, value: float | None, more_digits: int = 0) -> str:
    """Formats a value in readable form: shares in percent; `-` for None.

    Args:
        name: name of the metric, with or without its split.
        value: the value; None if it was not measured.
        more_digits: digits in addition to the usual ones.
    """
    if value is None:
        return "-"
    if not is_share(name):
        return f"{value:.{4 + more_digits}g}"
    return "100 %" if value == 1 else f"{100 * value:.{1 + more_digits}f} %"


def metric_texts(name: str, one: float, other: float) -> tuple[str, str]:
    """Formats two values as `metric_text`, with enough digits to show a difference."""
    texts = [(metric_text(name, one, more), metric_text(name, other, more)) for more in MORE_DIGITS]
    return _first_that_differ(texts)


def figure_texts(name: str, one: float, other: float) -> tuple[str, str]:
    """Formats two values likewise, as plain numbers: `0.9722`, not `97.2 %`."""
    style = "f" if is_share(name) else "g"
    texts = [(f"{one:.{4 + more}{style}}", f"{other:.{4 + more}{style}}") for more in MORE_DIGITS]
    return _first_that_differ(texts)


def _first_that_differ(texts: list[tuple[str, str]]) -> tuple[str, str]:
    """Returns the first pair of texts that differ; the first pair if none do."""
    return next((pair for pair in texts if pair[0] != pair[1]), texts[0])
