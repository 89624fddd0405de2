"""Small recipes, splits and untrained models for tests that need some."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_model

from training.datasets import Split, Splits
from training.exporters.export import EXAMPLE_ROWS, Exported, export_one
from training.exporters.exporter import ExportJob
from training.loop.loop import Trained
from training.loop.train_state import TrainState
from training.network.model import build_model, try_model
from training.recipe.recipe import Recipe

CLASSES = 3
DATA = "0" * 64
"""Stands for the digest of the data."""


def recipe(**changes: Any) -> Recipe:
    """A recipe for SmallCnn on `splits`."""
    document: dict[str, Any] = {
        "name": "small",
        "model": {
            "target": "training.networks:SmallCnn",
            "args": {"width": 4, "classes": CLASSES},
        },
        "data": {"target": "unused:unused", "batch_size": 16},
        "publish": {"model": "small"},
        **changes,
    }
    return Recipe.model_validate(document)


def splits(rows: int = 80) -> Splits:
    """Images whose class is written into one of their corners."""

    def split(seed: int) -> Split:
        random = np.random.default_rng(seed)
        labels = random.integers(0, CLASSES, rows)
        images = random.random((rows, 1, 8, 8), np.float32)
        images[np.arange(rows), 0, 0, labels] += 2
        return Split({"image": images}, labels)

    return Splits(split(1), split(2), split(3))


def untrained(wanted: Recipe, data: Splits, folder: Path) -> Trained:
    """The recipe's model with the weights it begins with, always the same."""
    torch.manual_seed(0)
    model = build_model(wanted).eval()
    signature = try_model(model, data, wanted)
    folder.mkdir(exist_ok=True)
    weights = folder / "weights.safetensors"
    save_model(model, str(weights))
    return Trained(model=model, weights=weights, signature=signature, state=TrainState())


def export_here(wanted: Recipe, trained: Trained, data: Splits, folder: Path) -> list[Exported]:
    """Exports in this process: what takes long is importing the exporters, once for each process.

    Raises:
        Exception: whatever an exporter raises.
    """
    found = []
    for entry in wanted.listed_exports():
        rows = max(EXAMPLE_ROWS, getattr(entry, "calibration_rows", 0))
        inputs = {name: array[:rows] for name, array in data.train.inputs.items()}
        graph = folder / "model.onnx"
        job = ExportJob(wanted, trained.weights, trained.signature, entry, inputs, folder, graph)
        found.append(Exported(entry, folder / entry.file, None, export_one(job)))
    return found
