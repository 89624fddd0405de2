"""Findings about guards in words, for status, history and reports. Pure.

In: a finding as plain values, as `Verdict.as_plain` gives it; any figure may be missing. Out: text.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

OF_BOTH = {"requests": " of both versions"}
"""The versions whose observations count, by their unit; pairs are of both by their name."""
_UNKNOWN = "?"
_LARGEST_LOG = 700.0


def finding_text(finding: Mapping[str, Any]) -> str:
    """Describes a finding: the estimate with its interval, the e-value, the missing traffic."""
    figures = figures_text(finding["guard"], finding["figures"])
    return "; ".join(filter(None, [figures, _evidence(finding)]))


def figures_text(guard: str, figures: Mapping[str, Any], labels: Sequence[str] = ()) -> str:
    """Describes the estimates of a guard, and their intervals; empty without any.

    Args:
        guard: its name.
        figures: its figures.
        labels: names of the classes, as far as they are known.
    """
    if guard == "outputs":
        return _outputs(figures, labels)
    return "; ".join(_FIGURES[guard](figures)) if guard in _FIGURES else ""


def named_figures_text(guard: str, figures: Mapping[str, Any], labels: Sequence[str] = ()) -> str:
    """Describes the estimates of a guard behind its name, as `figures_text` does."""
    text = figures_text(guard, figures, labels)
    return f"{_NAMES.get(guard, guard)}: {text}" if text else ""


def _evidence(finding: Mapping[str, Any]) -> str:
    seen, of_both = f"{finding['observed']:,} {finding['unit']}", OF_BOTH.get(finding["unit"], "")
    if finding["state"] == "broken":
        against = _e_value(finding["log_e_against"])
        return f"broken: e-value {against}, {_e_value(finding['log_e_to_roll_back'])} is enough"
    supporting = _e_value(finding["log_e_for"])
    needed = _e_value(finding["log_e_to_promote"])
    if finding["state"] == "kept":
        return f"kept, by {seen}: e-value {supporting}, {needed} is enough"
    if not finding["observed"]:
        more = finding["more"]
        least = "" if more is None else f"; at least {more:,}{of_both} are needed"
        return f"no {finding['unit']} yet{least}"
    text = f"not proven by {seen}: e-value {supporting} of {needed}"
    if finding["more"] is None:
        return f"{text}; with these figures no number would be enough"
    return f"{text}; about {finding['more']:,} more{of_both} are expected to be needed"


def _rates(figures: Mapping[str, Any]) -> list[str]:
    rates = ", ".join(
        f"{who} {_share(figures.get(f'{name}_rate'))} "
        f"({_share(figures.get(f'{name}_rate_low'))} to {_share(figures.get(f'{name}_rate_high'))})"
        for name, who in (("candidate", "candidate"), ("live", "live"))
        if figures.get(f"{name}_rate") is not None
    )
    return [rates] if rates else []


def _disagreement(figures: Mapping[str, Any]) -> list[str]:
    if figures.get("mean") is None:
        return []
    low, high = _share(figures.get("mean_low")), _share(figures.get("mean_high"))
    return [f"{_share(figures['mean'])} ({low} to {high})"]


def _latency(figures: Mapping[str, Any]) -> list[str]:
    texts = []
    for key in figures:
        if not key.startswith("candidate_p") or not key.endswith("_s"):
            continue
        name = key.removeprefix("candidate_").removesuffix("_s")
        text = f"{name} candidate {_ms(figures[key])}, live {_ms(figures.get(f'live_{name}_s'))}"
        low, high = figures.get(f"{name}_ratio_low"), figures.get(f"{name}_ratio_high")
        if low is not None and high is not None:
            text += f" (ratio {low:.2f} to {high:.2f})"
        texts.append(text)
    return texts


def _outputs(figures: Mapping[str, Any], labels: Sequence[str]) -> str:
    if figures.get("difference") is None:
        return ""
    place = figures.get("class")
    what = "mean score" if place is None else f"share of {_class_text(int(place), labels)}"
    low, high = _points(figures.get("difference_low")), _points(figures.get("difference_high"))
    most = "" if place is None else ", the largest difference of all classes"
    return f"{what} {_points(figures['difference'])} points ({low} to {high}){most}"


def _class_text(place: int, labels: Sequence[str]) -> str:
    return f"class '{labels[place]}'" if 0 <= place < len(labels) else f"class {place}"


_FIGURES = {
    "errors": _rates,
    "nan": _rates,
    "disagreement": _disagreement,
    "latency": _latency,
}
_NAMES = {"nan": "NaN"}


def _e_value(logarithm: float | None) -> str:
    if logarithm is None:
        return _UNKNOWN
    return f"{math.exp(max(min(logarithm, _LARGEST_LOG), -_LARGEST_LOG)):,.3g}"


def _share(value: float | None) -> str:
    return _UNKNOWN if value is None else f"{100 * value:.3g}%"


def _points(value: float | None) -> str:
    return _UNKNOWN if value is None else f"{100 * value:+.2f}"


def _ms(value: float | None) -> str:
    return _UNKNOWN if value is None else f"{1000 * value:.3g} ms"
