"""The course of a run by epoch, read from its `metrics.jsonl`.

In: the files of its phases. Out: a curve for each metric, of bounded length. Lines that are not
whole or not JSON are left out, as are numbers that are none: the report of a run that is done must
not fail because of its diary.
"""

import json
import math
from collections.abc import Iterator
from pathlib import Path

from pydantic import Field

from model_store.strict import StrictModel
from training.recipe.recipe import Recipe
from training.run_folder import RunFolder

MAX_POINTS = 200
"""Epochs of a curve; of more some are left out, evenly, and never the first or the last."""
MAX_CURVES = 12
TRAIN_CURVES = ("train/loss", "train/learning_rate", "train/gradient_norm")


class Curve(StrictModel):
    """One metric by epoch."""

    metric: str
    """Such as `val/loss`."""
    points: tuple[tuple[int, float], ...] = Field(max_length=MAX_POINTS)
    """(epoch, value) each, in order; epochs count from 1."""


class PhaseCurves(StrictModel):
    """How one phase of a run went."""

    phase: str
    """`train`, `prune` or `qat`."""
    epochs: int
    """How many are in the file."""
    curves: tuple[Curve, ...] = Field(max_length=MAX_CURVES)


def read_curves(recipe: Recipe, folder: RunFolder) -> tuple[PhaseCurves, ...]:
    """The curves of every phase; none where the recipe has no tracker `jsonl`.

    Args:
        recipe: the run.
        folder: where it was.
    """
    if "jsonl" not in recipe.track:  # a file would be another run's, with the same weights
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
    """The curves of one file: losses, learning rate, gradient norm, and all of `val/`.

    Args:
        phase: its name.
        path: of `metrics.jsonl`; nothing is drawn where it is missing.
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
    """(epoch, its finite numbers by name) of each line."""
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
