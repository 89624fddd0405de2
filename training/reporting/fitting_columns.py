"""Selects the table columns that fit a narrow terminal. Pure.

In: the cells, and the optional columns. Out: the indices of the columns to show. The last column,
which holds the verdict of a row, may wrap and is never left out.
"""

from collections.abc import Sequence

from rich.cells import cell_len

GAP = 2
"""Blanks between columns of a table without borders."""
LAST_WIDTH = 17
"""Width that the last column needs to be readable: `verified, fastest`."""


def fitting_columns(
    headings: Sequence[str], rows: Sequence[Sequence[str]], width: int, optional: Sequence[str]
) -> list[int]:
    """Returns the indices of the columns to show, in order.

    Args:
        headings: headings of all columns.
        rows: cells of each row.
        width: width of the terminal.
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
