"""Figures of merit: which way is better, how much worse one is, and how they are written. Pure.

The one place that knows the direction of a metric; training, servers and the command line ask here.
"""

from typing import Literal

from pydantic import Field

from model_store.strict import StrictModel

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
"""By the metric's name without its split: of `val/rmse` it is `rmse`."""
SHARES = frozenset({"accuracy", "exact_match", "f1", "macro_f1"})
"""From 0 to 1, and written in percent."""
MORE_DIGITS = range(14)
"""Up to the 17 that tell any two numbers apart."""


class MeasuredMetric(StrictModel):
    """A metric over the test split, and how sure it is."""

    name: str
    """Such as `accuracy` or `rmse`."""
    value: float
    interval: tuple[float, float] | None = Field(default=None)
    """Where the true value lies, with 95 % confidence; None where that was not told."""
    better: Better
    """Which of two values is the better one."""

    def text(self) -> str:
        """The value as people read it: `98.6 %`, `53.27`."""
        return metric_text(self.name, self.value)


def better_of(name: str) -> Better:
    """The direction of a metric, with or without its split: `rmse`, `val/rmse`.

    A metric that is not known here counts as one that is better when it is higher.
    """
    return BETTER.get(name.rpartition("/")[2], "higher")


def is_share(name: str) -> bool:
    """Whether a metric, with or without its split, goes from 0 to 1."""
    return name.rpartition("/")[2] in SHARES


def is_better(name: str, value: float, than: float) -> bool:
    """Whether one value of a metric is better than another; equal ones are not.

    Args:
        name: of the metric, with or without its split.
        value: the one.
        than: the other.
    """
    return value < than if better_of(name) == "lower" else value > than


def how_much_worse(better: Better, before: float, after: float) -> float:
    """By how much a metric fell, or an error rose; negative where it became better.

    Of what is better when higher it is the difference: 0.01 is a percentage point. Of what is
    better when lower it is the relative rise: 0.01 is a hundredth more; from 0 it has no end.
    """
    if better == "higher":
        return before - after
    if before > 0:
        return after / before - 1
    return 0.0 if after <= before else float("inf")


def metric_text(name: str, value: float | None, more_digits: int = 0) -> str:
    """A value as people read it: shares in percent; `-` for None.

    Args:
        name: of the metric, with or without its split.
        value: None where it was not measured.
        more_digits: than usual.
    """
    if value is None:
        return "-"
    if not is_share(name):
        return f"{value:.{4 + more_digits}g}"
    return "100 %" if value == 1 else f"{100 * value:.{1 + more_digits}f} %"


def metric_texts(name: str, one: float, other: float) -> tuple[str, str]:
    """Two values as `metric_text` writes them, with as many digits as show that they differ."""
    texts = [(metric_text(name, one, more), metric_text(name, other, more)) for more in MORE_DIGITS]
    return _first_that_differ(texts)


def figure_texts(name: str, one: float, other: float) -> tuple[str, str]:
    """The same as plain numbers: `0.9722`, not `97.2 %`."""
    style = "f" if is_share(name) else "g"
    texts = [(f"{one:.{4 + more}{style}}", f"{other:.{4 + more}{style}}") for more in MORE_DIGITS]
    return _first_that_differ(texts)


def _first_that_differ(texts: list[tuple[str, str]]) -> tuple[str, str]:
    """The shortest pair of two texts; the first pair where none differ."""
    return next((pair for pair in texts if pair[0] != pair[1]), texts[0])
