"""Horizontal bars as SVG, several panels on one sheet. Pure: figures in, text out.

A panel has one scale: linear, or logarithmic if its values lie far apart. Its groups are sorted,
the longest bar first, and each bar shows its value.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

PANEL_WIDTH = 540
LABEL_WIDTH = 118
VALUE_WIDTH = 62
BAR, BAR_GAP, GROUP_GAP = 11, 2, 9
HEAD, FOOT, MARGIN = 62, 34, 20
SHEET_HEAD = 84
FAR_APART = 30
"""Ratio of largest to smallest value from which a linear scale would hide the small ones."""
INK, FAINT, GRID, BAND = "#1f2933", "#616e7c", "#e4e7eb", "#fff3d6"


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The bars of one server."""

    label: str
    highlighted: bool
    bars: Mapping[str, float]
    """Bar lengths by series; positive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """Bars that share a scale."""

    title: str
    note: str
    """The unit, and the better direction."""
    groups: Sequence[Group]


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps values to pixels from the left end of the bars."""

    low: float
    high: float
    logarithmic: bool

    def pixels(self, value: float) -> float:
        """Returns the position of a value."""
        room = PANEL_WIDTH - LABEL_WIDTH - VALUE_WIDTH - MARGIN
        if self.logarithmic:
            return room * math.log(value / self.low) / math.log(self.high / self.low)
        return room * value / self.high

    def ticks(self) -> list[float]:
        """Returns round values for grid lines."""
        if self.logarithmic:
            first, last = round(math.log10(self.low)), math.floor(math.log10(self.high))
            return [10.0**power for power in range(first, last + 1)]
        magnitude: float = 10.0 ** math.floor(math.log10(self.high))
        step = next(s * magnitude for s in (0.2, 0.5, 1, 2) if self.high / (s * magnitude) <= 5.5)
        return [step * number for number in range(math.floor(self.high / step) + 1)]


def draw(title: str, subtitle: str, colours: Mapping[str, str], panels: Sequence[Panel]) -> str:
    """Draws the sheet: panels two by two under a title and a legend.

    Args:
        title: title of the sheet.
        subtitle: one line under the title.
        colours: colour of each series, in the order of the bars in a group.
        panels: at least one, each with at least one bar.
    """
    pairs = [panels[i : i + 2] for i in range(0, len(panels), 2)]
    width = MARGIN * 2 + PANEL_WIDTH * min(2, len(panels))
    parts, top = [_head(title, subtitle, colours)], SHEET_HEAD
    for pair in pairs:
        for column, panel in enumerate(pair):
            moved = f'<g transform="translate({MARGIN + column * PANEL_WIDTH},{top})">'
            parts += [moved, _panel(panel, list(colours.items())), "</g>"]
        top += max(_height(panel) for panel in pair)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {top}" width="{width}" '
        f'height="{top}" font-family="Helvetica, Arial, sans-serif" font-size="12" fill="{INK}">\n'
        f'<rect width="{width}" height="{top}" rx="8" fill="#ffffff"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def scale_for(values: Sequence[float]) -> Scale:
    """Returns a scale on which the smallest value is still a visible bar."""
    least, most = min(values), max(values)
    if most / least < FAR_APART:
        return Scale(0, most, False)
    return Scale(10.0 ** math.floor(math.log10(least * 0.7)), most, True)


def short(value: float) -> str:
    """Formats a small number with three digits, a large one as its whole part."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _head(title: str, subtitle: str, colours: Mapping[str, str]) -> str:
    parts = [
        _text(MARGIN, 32, title, "font-size='18' font-weight='bold'"),
        _text(MARGIN, 52, subtitle, f"fill='{FAINT}'"),
    ]
    left = MARGIN
    for series, colour in colours.items():
        parts.append(f"<rect x='{left}' y='64' width='11' height='11' rx='2' fill='{colour}'/>")
        parts.append(_text(left + 16, 74, series))
        left += 36 + 7 * len(series)
    return "\n".join(parts)


def _height(panel: Panel) -> int:
    return HEAD + FOOT + sum(_group_height(group) for group in panel.groups)


def _group_height(group: Group) -> int:
    return len(group.bars) * (BAR + BAR_GAP) + GROUP_GAP


def _panel(panel: Panel, colours: Sequence[tuple[str, str]]) -> str:
    scale = scale_for([value for group in panel.groups for value in group.bars.values()])
    bottom = _height(panel) - FOOT
    note = panel.note + (", logarithmic scale" if scale.logarithmic else "")
    parts = [
        _text(0, 26, panel.title, "font-size='14' font-weight='bold'"),
        _text(0, 43, note, f"fill='{FAINT}'"),
    ]
    for tick in scale.ticks():
        x = LABEL_WIDTH + scale.pixels(tick)
        parts.append(f"<path d='M{x:.1f} {HEAD - 8}V{bottom}' stroke='{GRID}'/>")
        label = f"font-size='10' fill='{FAINT}' text-anchor='middle'"
        parts.append(_text(x, bottom + 13, f"{tick:,g}" if tick < 1e6 else f"{tick:.0e}", label))
    top = HEAD
    for group in sorted(panel.groups, key=lambda g: -max(g.bars.values())):
        parts.append(_group(group, top, scale, colours))
        top += _group_height(group)
    return "\n".join(parts)


def _group(group: Group, top: int, scale: Scale, colours: Sequence[tuple[str, str]]) -> str:
    height = _group_height(group)
    middle = top + (height - GROUP_GAP) / 2 + 3
    weight = " font-weight='bold'" if group.highlighted else ""
    parts = []
    if group.highlighted:
        band = f"y='{top - GROUP_GAP / 2:g}' width='{PANEL_WIDTH - MARGIN}' height='{height}'"
        parts.append(f"<rect x='-4' {band} rx='4' fill='{BAND}' fill-opacity='0.7'/>")
    parts.append(_text(LABEL_WIDTH - 8, middle, group.label, f"text-anchor='end'{weight}"))
    for series, colour in colours:
        if series in group.bars:
            value = group.bars[series]
            width = max(scale.pixels(value), 1)
            shape = f"width='{width:.1f}' height='{BAR}' rx='2' fill='{colour}'"
            parts.append(f"<rect x='{LABEL_WIDTH}' y='{top}' {shape}/>")
            at = LABEL_WIDTH + width + 5
            parts.append(_text(at, top + 9, short(value), f"font-size='10'{weight}"))
            top += BAR + BAR_GAP
    return "\n".join(parts)


def _text(x: float, y: float, text: str, style: str = "") -> str:
    return f"<text x='{x:g}' y='{y:g}' {style}>{escape(text)}</text>"
