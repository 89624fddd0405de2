"""Makes the artifacts of a recipe, one file each, out of a trained model.

In: the model with its best weights. Out: for every entry of `export` a file, or the reason why
there is none; one that fails does not stop the others.
"""

import re
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from rich.console import Console

from training.datasets import Splits
from training.errors import ExportError
from training.export_entries import Export, OnnxExport, OnnxInt8Export, TorchScriptExport
from training.loop import Trained
from training.model import for_export
from training.onnx_export import export_onnx
from training.onnx_int8_export import export_onnx_dynamic_int8, export_onnx_static_int8
from training.padded_rows import shortened
from training.progress import say
from training.recipe import Recipe
from training.torchscript_export import DEPRECATION_NOTE, export_torchscript

EXAMPLE_ROWS = 2
"""Exporters make 0 and 1 rows special cases, so the example has more."""

_TERMINAL_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True, slots=True)
class Exported:
    """One entry of the recipe after the attempt to make it."""

    entry: Export
    path: Path
    failure: str | None
    """Why there is no file at `path`; None if there is one."""


def export_all(
    recipe: Recipe, trained: Trained, splits: Splits, folder: Path, console: Console
) -> list[Exported]:
    """Makes every artifact the recipe lists.

    Args:
        recipe: the entries.
        trained: the model.
        splits: the train split gives examples and calibration rows.
        folder: where the files go.
        console: shows what is being made.
    """
    exported: list[Exported] = []
    if any(isinstance(entry, TorchScriptExport) for entry in recipe.export):
        say(console, DEPRECATION_NOTE)
    for entry in recipe.export:
        failure = None
        with console.status(f"exporting {entry.name}"):
            try:
                _export(entry, trained, splits, folder)
            except ExportError as error:
                failure = str(error)
        exported.append(Exported(entry, folder / entry.file, failure))
    return exported


def _export(entry: Export, trained: Trained, splits: Splits, folder: Path) -> None:
    path = folder / entry.file
    arrays = splits.train.inputs
    short = shortened(arrays, trained.signature)
    example = tuple(torch.from_numpy(array[:EXAMPLE_ROWS]) for array in short.values())
    try:
        trained = replace(trained, model=for_export(trained.model))
        if isinstance(entry, TorchScriptExport):
            export_torchscript(trained.model, example, path)
        elif isinstance(entry, OnnxInt8Export):
            source = folder / OnnxExport.file
            if not source.exists():
                export_onnx(trained.model, example, trained.signature, source)
            if entry.method == "dynamic":
                export_onnx_dynamic_int8(source, entry.op_types, path)
            else:
                rows = {name: array[: entry.calibration_rows] for name, array in arrays.items()}
                export_onnx_static_int8(source, rows, entry.op_types, path)
        elif not path.exists():  # an int8 entry may have come first and made it
            export_onnx(trained.model, example, trained.signature, path)
    except Exception as error:  # exporters raise anything for a model they cannot take
        raise ExportError(f"export failed: {root_cause(error)}") from error


def root_cause(error: BaseException) -> str:
    """The first line of the innermost error; exporters wrap theirs in pages of advice."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = _TERMINAL_COLOUR.sub("", str(error)).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"
