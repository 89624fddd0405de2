"""Formats text columns and numbers: the same on a terminal and in a pipe."""

from collections.abc import Sequence

UNKNOWN = "-"
_STEP = 1000


def columns(rows: Sequence[Sequence[str]], indent: str = "") -> list[str]:
    """Aligns cells in columns, two spaces apart.

    Args:
        rows: cells, the same number in every row.
        indent: prefix of every line.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        indent + "  ".join(map(str.ljust, row, widths)).rstrip()  # the last cell needs no padding
        for row in rows
    ]


def size_text(size_bytes: int) -> str:
    """Formats bytes as `44.1 KB`, in steps of 1000."""
    size, units = float(size_bytes), ["bytes", "KB", "MB", "GB", "TB"]
    while size >= _STEP and len(units) > 1:
        size, units = size / _STEP, units[1:]
    return f"{size_bytes} bytes" if units[0] == "bytes" else f"{size:.1f} {units[0]}"


def share_text(share: float | None) -> str:
    """Formats 0.986 as `98.6 %`, None as `-`."""
    return UNKNOWN if share is None else f"{100 * share:.1f} %"


def metric_text(name: str, value: float | None) -> str:
    """Formats a task metric: a share in percent, another in its own unit, None as `-`."""
    from model_store.metric import is_share

    return share_text(value) if value is None or is_share(name) else f"{value:.4g}"


def latency_text(milliseconds: float | None) -> str:
    """Formats `0.31 ms`, two significant digits below ten milliseconds, None as `-`."""
    if milliseconds is None:
        return UNKNOWN
    return f"{milliseconds:.0f} ms" if milliseconds >= 10 else f"{milliseconds:.2g} ms"
