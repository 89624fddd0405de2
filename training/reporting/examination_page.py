"""Renders the test split analysis as page sections. Pure: an examination in, text out.

Class names and values may come from untrusted data: all of them are escaped.
"""

from html import escape

from training.reporting.examination import (
    MAX_LABELS,
    Calibration,
    Confusion,
    Examination,
    LabelFigures,
    Residuals,
    WorstRow,
)
from training.reporting.plot import Mark, draw_plot, table_cells

EXAMINATION_STYLE = (
    "h2{margin:1.6em 0 .3em}p{max-width:60em}.scroll{overflow-x:auto}"
    ".matrix td,.matrix th{text-align:center;padding:.25em .5em;border:1px solid #fff;"
    "min-width:1.6em;font-variant-numeric:tabular-nums}.matrix th{font-weight:normal}"
    ".matrix tr:first-child th{vertical-align:bottom}"
    ".matrix th.long span{writing-mode:vertical-rl;max-height:12em}"
    ".matrix td.of,.matrix th.of{text-align:right;color:#616e7c}"
    ".rows{display:flex;flex-wrap:wrap;gap:1em}figure{margin:0;width:165px}"
    "figure img{width:128px;height:128px;object-fit:contain;image-rendering:pixelated;"
    "background:#f5f7fa;border:1px solid #e4e7eb}figcaption{font-size:13px;line-height:1.4}"
    ".values td{overflow-wrap:anywhere;max-width:34em}"
    ".values td:nth-child(-n+3),.values th:nth-child(-n+3){text-align:left}"
    ".bins{align-self:center;font-variant-numeric:tabular-nums}.bins td{padding:.1em .8em}"
)
PLOT_WIDTH = 420
SCATTER_DOT = 2.5
LARGEST_DOT, SMALLEST_DOT = 12.0, 3.0
LONGEST_FLAT_NAME = 4
"""Longest column name in characters that is written horizontally."""
RIGHT_COLOUR, WRONG_COLOUR = "58,110,165", "192,86,33"


def examination_section(found: Examination | None) -> str:
    """Renders all sections; empty for None, as in older reports.

    Args:
        found: examination of the checkpoint's answers.
    """
    if found is None:
        return ""
    parts = [
        "" if found.confusion is None else _confusion(found.confusion),
        _labels(found.label_figures, found.left_out),
        _residuals(found.residuals, found.left_out),
        "" if found.calibration is None else _calibration(found.calibration),
        _worst(found.worst, found.rows),
    ]
    return "".join(parts)


def _table(headings: list[str], rows: list[list[str]], kind: str = "") -> str:
    lines = "".join(f"<tr>{table_cells('td', row)}</tr>" for row in rows)
    return f"<table class='{kind}'><tr>{table_cells('th', headings)}</tr>{lines}</table>"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def _confusion(found: Confusion) -> str:
    if found.classes:
        return f"<h2>Confusion matrix</h2>{_matrix(found)}"
    if not found.pairs:
        return "<h2>Most confused classes</h2><p>Every answer is right.</p>"
    rows = [
        [
            one.truth,
            f"{one.count:,} of {one.labels:,}",
            _percent(one.count / one.labels),
            one.answer,
        ]
        for one in found.pairs
    ]
    headings = ["class", "confused", "share", "with"]
    return f"<h2>Most confused classes</h2>{_table(headings, rows)}"


def _matrix(found: Confusion) -> str:
    long = any(len(name) > LONGEST_FLAT_NAME for name in found.classes)
    upright = "<th class='long'>" if long else "<th>"
    names = "".join(f"{upright}<span>{escape(name)}</span></th>" for name in found.classes)
    head = f"<tr><th></th>{names}<th class='of'>right</th><th class='of'>of</th></tr>"
    lines = []
    for place, (name, counts) in enumerate(zip(found.classes, found.counts, strict=True)):
        of = sum(counts)
        cells = "".join(_cell(count, of, place == other) for other, count in enumerate(counts))
        share = _percent(counts[place] / of if of else None)
        end = f"<td class='of'>{share}</td><td class='of'>{of:,}</td>"
        lines.append(f"<tr><th>{escape(name)}</th>{cells}{end}</tr>")
    return (
        "<p>A row for each true class, a column for each answer: blue is right, orange is wrong, "
        "darker is a larger share of the row.</p>"
        f"<div class='scroll'><table class='matrix'>{head}{''.join(lines)}</table></div>"
    )


def _cell(count: int, of: int, right: bool) -> str:
    if not count:
        return "<td></td>"
    # Even one error in a thousand must be visible.
    shade = 0.15 + 0.75 * count / of
    ink = "#fff" if shade > 0.6 else "#1f2933"
    colour = RIGHT_COLOUR if right else WRONG_COLOUR
    return f"<td style='background:rgba({colour},{shade:.2f});color:{ink}'>{count:,}</td>"


def _labels(figures: tuple[LabelFigures, ...], left_out: int) -> str:
    if not figures:
        return ""
    rows = [
        [one.name, f"{one.rows:,}", _percent(one.precision), _percent(one.recall), _percent(one.f1)]
        for one in figures
    ]
    more = f" These are the worst {MAX_LABELS}; {left_out:,} are not shown." if left_out else ""
    return (
        f"<h2>Precision and recall of each label</h2><p>The worst first.{more}</p>"
        f"{_table(['label', 'rows that have it', 'precision', 'recall', 'F1'], rows)}"
    )


def _residuals(columns: tuple[Residuals, ...], left_out: int) -> str:
    if not columns:
        return ""
    more = f" {left_out:,} more columns are not shown." if left_out else ""
    return (
        "<h2>Residuals</h2>"
        f"<p>On the dashed line an answer is right; a pattern around it is something that the "
        f"model did not learn.{more}</p>{''.join(map(_column, columns))}"
    )


def _column(found: Residuals) -> str:
    """Renders answers by labels and errors by answers, side by side."""
    if not found.points:
        return ""
    ends = [value for point in found.points for value in point]
    low, high = min(ends), max(ends)
    answers = [answer for _, answer in found.points]
    before = f"{found.column}: " if found.column else ""
    level = [(min(answers), 0.0), (max(answers), 0.0)]
    errors = tuple((answer, answer - told) for told, answer in found.points)
    plots = [
        (f"{before}answer, by the true value", found.points, [(low, low), (high, high)]),
        (f"{before}error (answer less truth), by answer", errors, level),
    ]
    drawn = "".join(
        draw_plot(
            title,
            [Mark("test rows", points, False, (SCATTER_DOT,) * len(points))],
            joined=line,
            width=PLOT_WIDTH,
        )
        for title, points, line in plots
    )
    shown = len(found.points)
    some = f" {shown:,} of {found.labels:,} are drawn." if shown < found.labels else ""
    where = "too high" if found.mean_error > 0 else "too low"
    mean = f"On the mean, answers are {abs(found.mean_error):.3g} {where}."
    return f"<p>{escape(before)}{mean}{some}</p>{drawn}"


def _calibration(found: Calibration) -> str:
    """Renders the reliability diagram."""
    answers = sum(one.count for one in found.bins)
    points = tuple((100 * one.confidence, 100 * one.accuracy) for one in found.bins)
    # The area of a dot is proportional to its number of answers.
    radii = tuple(
        max(SMALLEST_DOT, round(LARGEST_DOT * (one.count / answers) ** 0.5, 1))
        for one in found.bins
    )
    tips = tuple(
        f"{one.count:,} answers: confidence {_percent(one.confidence)}, "
        f"{_percent(one.accuracy)} right"
        for one in found.bins
    )
    plot = draw_plot(
        "Percent right, by confidence in percent",
        [Mark("answers", points, radii=radii, tips=tips)],
        lines=True,
        joined=[(0.0, 0.0), (100.0, 100.0)],
        width=PLOT_WIDTH,
    )
    rows = [
        [
            f"{100 * one.low:.0f} to {100 * one.high:.0f} %",
            f"{one.count:,}",
            _percent(one.confidence),
            _percent(one.accuracy),
        ]
        for one in found.bins
    ]
    return (
        "<h2>Calibration of the confidence</h2>"
        f"<p>Expected calibration error: {_percent(found.expected_error)}. On the dashed line, "
        "answers with a confidence of 80 % are right four times in five; below it the model is too "
        f"sure. A larger dot is more answers.</p><div class='rows'>{plot}"
        f"{_table(['confidence', 'answers', 'mean', 'right'], rows, 'bins')}</div>"
    )


def _worst(rows: tuple[WorstRow, ...], of: int) -> str:
    if not rows:
        return ""
    text = f"<h2>Worst answers</h2><p>Of {of:,} test rows, those with the largest loss.</p>"
    if all(one.picture for one in rows):
        return f"{text}<div class='rows'>{''.join(map(_figure, rows))}</div>"
    names = list(dict.fromkeys(name for one in rows for name in one.values))
    confident = any(one.confidence is not None for one in rows)
    headings = ["row", "truth", "answer", *(["confidence"] if confident else []), "loss", *names]
    lines = [
        [
            str(one.row),
            one.truth,
            one.answer,
            *([_percent(one.confidence)] if confident else []),
            f"{one.loss:.3g}",
            *(one.values.get(name, "-") for name in names),
        ]
        for one in rows
    ]
    return f"{text}<div class='scroll'>{_table(headings, lines, 'values')}</div>"


def _figure(one: WorstRow) -> str:
    right = one.truth == one.answer
    lines = [
        f"{one.truth}, right" if right else f"{one.truth}, taken for {one.answer}",
        *([] if one.confidence is None else [f"confidence {_percent(one.confidence)}"]),
        f"row {one.row}, loss {one.loss:.3g}",
        *(f"{name}: {text}" for name, text in one.values.items()),
    ]
    picture = f"<img alt='row {one.row}' src='data:image/png;base64,{escape(one.picture or '')}'>"
    caption = "<br>".join(map(escape, lines))
    return f"<figure>{picture}<figcaption>{caption}</figcaption></figure>"
