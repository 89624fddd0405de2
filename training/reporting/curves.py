"""Reads the metrics of a run by epoch from its `metrics.jsonl`.

In: the files of its phases. Out: a curve for each metric, of bounded length. Incomplete or invalid
JSON lines are skipped, as are non-finite numbers: the report of a finished run must not fail
because of its log.
"""

import json
import math
from collections.abc import Iterator
from pathlib import Path

from pydantic import Field

from flambeau.protocol.strict import StrictModel
from training.recipe.recipe import Recipe
from training.run_folder import RunFolder

MAX_POINTS = 200
"""Most epochs of a curve; longer ones are thinned evenly, keeping the first and the last."""
MAX_CURVES = 12
TRAIN_CURVES = ("train/loss", "train/learning_rate", "train/gradient_norm")


class Curve(StrictModel):
    """One metric over the epochs."""

    metric: str
    """Name of the metric, such as `val/loss`."""
    points: tuple[tuple[int, float], ...] = Field(max_length=MAX_POINTS)
    """(epoch, value) pairs in order; epochs count from 1."""


class PhaseCurves(StrictModel):
    """Curves of one phase of a run."""

    phase: str
    """`train`, `prune` or `qat`."""
    epochs: int
    """Number of epochs in the file."""
    curves: tuple[Curve, ...] = Field(max_length=MAX_CURVES)


def read_curves(recipe: Recipe, folder: RunFolder) -> tuple[PhaseCurves, ...]:
    """Reads the curves of every phase; none if the recipe has no tracker `jsonl`.

    Args:
        recipe: recipe of the run.
        folder: folder of the run.
    """
    if "jsonl" not in recipe.track:  # any file is from another run with the same weights
        return ()
    tuned = recipe.prune is not None and recipe.prune.at is None
    phases = {
        "train": folder.metrics,
        **({"prune": folder.phase("prune").metrics} if tuned else {}),
        **({} if recipe.qat is None else {"qat": folder.phase("qat").metrics}),
    }
    found = (phase_curves(name, path) for name, path in phases.items())
    return tuple(one for one in found if one.curves)


def phase_curves(phase: str, path: Path) -> PhaseCurves:
    """Reads the curves of one file: losses, learning rate, gradient norm, and all `val/` metrics.

    Args:
        phase: name of the phase.
        path: path of `metrics.jsonl`; a missing file gives no curves.
    """
    epochs: dict[int, dict[str, float]] = dict(_epochs(path))
    names = {name: None for figures in epochs.values() for name in figures}
    wanted = [name for name in TRAIN_CURVES if name in names]
    wanted += [name for name in names if name.startswith("val/")]
    curves = []
    for name in wanted[:MAX_CURVES]:
        points = [(n, figures[name]) for n, figures in sorted(epochs.items()) if name in figures]
        curves.append(Curve(metric=name, points=tuple(_thinned(points))))
    return PhaseCurves(phase=phase, epochs=len(epochs), curves=tuple(curves))


def _epochs(path: Path) -> Iterator[tuple[int, dict[str, float]]]:
    """Yields (epoch, finite numbers by name) for each valid line."""
    text = path.read_text("utf-8", errors="replace") if path.is_file() else ""
    for line in text.splitlines():
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if not isinstance(found, dict) or not isinstance(found.get("epoch"), int):
            continue
        epoch = found.pop("epoch")
        yield epoch, {k: float(v) for k, v in found.items() if _is_finite(v)}


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _thinned(points: list[tuple[int, float]]) -> list[tuple[int, float]]:
    if len(points) <= MAX_POINTS:
        return points
    last = len(points) - 1
    return [points[round(place * last / (MAX_POINTS - 1))] for place in range(MAX_POINTS)]
