"""Plots the test split analysis for `examination.html`. Pure: an examination in, plots out."""

from training.reporting.examination import Calibration, Residuals
from training.reporting.plot import Mark, Plot

PLOT_WIDTH = 420
SCATTER_DOT = 2.5
LARGEST_DOT, SMALLEST_DOT = 12.0, 3.0


def residual_plots(found: Residuals) -> list[Plot]:
    """Plots answers by labels, and errors by answers.

    Args:
        found: one column, with one point at least.
    """
    ends = [value for point in found.points for value in point]
    low, high = min(ends), max(ends)
    answers = [answer for _, answer in found.points]
    before = f"{found.column}: " if found.column else ""
    level = [(min(answers), 0.0), (max(answers), 0.0)]
    errors = tuple((answer, answer - told) for told, answer in found.points)
    return [
        Plot(
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


def calibration_plot(found: Calibration) -> Plot:
    """Plots the reliability diagram.

    Args:
        found: bins of answers.
    """
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
    return Plot(title, [mark], lines=True, joined=ideal, width=PLOT_WIDTH)
