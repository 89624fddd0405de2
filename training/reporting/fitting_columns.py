"""Which columns of a table are shown where the terminal is narrow. Pure.

In: the cells, and which columns may be left out. Out: the places of those that are shown. The last
column, which says what became of a row, may wrap and is never left out.
"""

from collections.abc import Sequence

from rich.cells import cell_len

GAP = 2
"""Blanks between columns of a table without lines."""
LAST_WIDTH = 15
"""What the last column needs to be read: `proven, fastest`."""


def fitting_columns(
    headings: Sequence[str], rows: Sequence[Sequence[str]], width: int, optional: Sequence[str]
) -> list[int]:
    """Places of the columns to show, in their order.

    Args:
        headings: of all columns.
        rows: their cells.
        width: of the terminal.
        optional: headings of columns that may be left out, the least important first.
    """
    table = [headings, *rows]
    shown = list(range(len(headings)))
    widths = [max(cell_len(row[place]) for row in table) for place in shown]
    widths[-1] = min(widths[-1], LAST_WIDTH)
    for heading in optional:
        if sum(widths[place] + GAP for place in shown) - GAP <= width:
            break
        shown.remove(headings.index(heading))
    return shown
