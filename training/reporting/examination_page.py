"""Renders the test split analysis as sections of the report page (`examination.html`).

Pure: an examination in, markup out. Names and values may come from untrusted data.
"""

from typing import TYPE_CHECKING

from training.reporting.examination import Calibration, Examination, Residuals, WorstRow
from training.reporting.plot import Mark, draw_plot
from training.reporting.templates import render

if TYPE_CHECKING:
    from markupsafe import Markup

PLOT_WIDTH = 420
SCATTER_DOT = 2.5
LARGEST_DOT, SMALLEST_DOT = 12.0, 3.0
LONGEST_FLAT_NAME = 4
"""Longest column name in characters that is written horizontally."""


def examination_section(found: Examination | None) -> str:
    """Renders all sections; empty for None, as in older reports.

    Args:
        found: examination of the checkpoint's answers.
    """
    if found is None:
        return ""
    headings, rows = _worst_table(found.worst)
    values = {
        "found": found,
        "longest_flat_name": LONGEST_FLAT_NAME,
        "residual_plots": _residual_plots,
        "calibration_plot": _calibration_plot,
        "worst_headings": headings,
        "worst_rows": rows,
    }
    return render("reporting/examination.html", values)


def _residual_plots(found: Residuals) -> "list[Markup]":
    """Plots answers by labels, and errors by answers."""
    ends = [value for point in found.points for value in point]
    low, high = min(ends), max(ends)
    answers = [answer for _, answer in found.points]
    before = f"{found.column}: " if found.column else ""
    level = [(min(answers), 0.0), (max(answers), 0.0)]
    errors = tuple((answer, answer - told) for told, answer in found.points)
    return [
        draw_plot(
            before + title,
            [Mark("test rows", points, False, (SCATTER_DOT,) * len(points))],
            joined=line,
            width=PLOT_WIDTH,
        )
        for title, points, line in (
            ("answer, by the true value", found.points, [(low, low), (high, high)]),
            ("error (answer less truth), by answer", errors, level),
        )
    ]


def _calibration_plot(found: Calibration) -> "Markup":
    """Plots the reliability diagram."""
    answers = sum(one.count for one in found.bins)
    # The area of a dot is proportional to its number of answers.
    radii = (LARGEST_DOT * (one.count / answers) ** 0.5 for one in found.bins)
    mark = Mark(
        "answers",
        tuple((100 * one.confidence, 100 * one.accuracy) for one in found.bins),
        radii=tuple(max(SMALLEST_DOT, round(radius, 1)) for radius in radii),
        tips=tuple(
            f"{one.count:,} answers: confidence {100 * one.confidence:.1f} %, "
            f"{100 * one.accuracy:.1f} % right"
            for one in found.bins
        ),
    )
    ideal = [(0.0, 0.0), (100.0, 100.0)]
    title = "Percent right, by confidence in percent"
    return draw_plot(title, [mark], lines=True, joined=ideal, width=PLOT_WIDTH)


def _worst_table(rows: tuple[WorstRow, ...]) -> tuple[list[str], list[list[str]]]:
    """Returns the headings and rows of a table of worst answers, for rows without pictures."""
    names = list(dict.fromkeys(name for one in rows for name in one.values))
    confident = any(one.confidence is not None for one in rows)
    lines = [
        [
            str(one.row),
            one.truth,
            one.answer,
            *(["-" if one.confidence is None else f"{100 * one.confidence:.1f} %"] * confident),
            f"{one.loss:.3g}",
            *(one.values.get(name, "-") for name in names),
        ]
        for one in rows
    ]
    return ["row", "truth", "answer", *["confidence"] * confident, "loss", *names], lines
