"""Formats the gates of artifacts: the limits of single outputs, and the values measured."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from flambeau.commands.text.tables import UNKNOWN, columns, share_text

if TYPE_CHECKING:
    from model_store.gate_figures import GateValues
    from model_store.tolerance import Tolerance

BY_GATES = "by gates"
"""Stands for the limits of a version whose outputs have gates."""


def limits_cells(tolerance: "Tolerance", agreement: float | None) -> list[str]:
    """Returns the largest difference, the agreement and the smallest agreement of a table's row."""
    if tolerance.gates:
        return [BY_GATES, share_text(agreement), BY_GATES]
    return [
        f"{tolerance.max_abs_difference:.2g}",
        share_text(agreement if tolerance.min_agreement else None),
        share_text(tolerance.min_agreement or None),
    ]


def gate_lines(
    artifacts: Sequence[tuple[str, "Tolerance", "GateValues"]], indent: str = ""
) -> list[str]:
    """Returns a table of all gates, after an empty line; nothing if there are none.

    Args:
        artifacts: name, limits and measured values of each artifact.
        indent: prefix of every line.
    """
    rows = [
        [name, output, gate.text(), _measured(values.get(output, {}))]
        for name, tolerance, values in artifacts
        for output, gate in tolerance.gates.items()
    ]
    header = ["ARTIFACT", "OUTPUT", "GATE", "MEASURED"]
    return ["", *columns([header, *rows], indent)] if rows else []


def _measured(values: dict[str, float | None]) -> str:
    return ", ".join(
        f"{name} {UNKNOWN if value is None else f'{value:.4g}'}" for name, value in values.items()
    )
