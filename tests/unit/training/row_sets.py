"""Data sets that are read row by row, a network with dropout, and a run of theirs to be killed.

As a program, `python -m tests.unit.training.row_sets` reads lines of JSON, each a folder for runs
and a recipe, and trains each in a process of its own, whose id it prints, and a line after each
step.
"""

import io
import itertools
import json
import os
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from torch import Tensor, nn

from tests.unit.training.recipes import CLASSES, DATA
from training.datasets import load_splits
from training.loop.loop import Trained, train
from training.recipe.recipe import Recipe
from training.run_folder import RunFolder
from training.watcher import NullWatcher

ROWS = 42
Row = tuple[dict[str, Any], Any]


class Dropping(nn.Module):
    """Four numbers to three classes, some of them dropped on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.3))
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.body(x))
        return found


def row(number: int) -> Row:
    x = np.random.default_rng(number).random(4, np.float32)
    x[number % CLASSES] += 2
    return {"x": x}, number % CLASSES


class Places:
    """Rows by place, each shaken by whatever random numbers the process has."""

    def __init__(self, first: int, rows: int) -> None:
        self.first, self.rows = first, rows
        self.read: list[int] = []

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, place: int) -> Row:
        self.read.append(place)
        inputs, label = row(self.first + place)
        shaken = inputs["x"] + np.float32(random.random() + np.random.random())
        return {"x": shaken}, label


class Stream:
    """Endless rows, others in each epoch."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Row | Callable[[], Row]]:
        for number in itertools.count(1000 * self.epoch):
            yield row(number) if number % 2 else partial(row, number)


def places(seed: int) -> dict[str, Any]:
    return {"train": Places(0, ROWS), "validation": Places(500, 12), "test": Places(600, 12)}


def stream(seed: int) -> dict[str, Any]:
    return {**places(seed), "train": Stream()}


def lazy_document(data: str = "places", **changes: Any) -> dict[str, Any]:
    """A recipe with everything that has a state."""
    document: dict[str, Any] = {
        "name": "rows",
        "model": {"target": "tests.unit.training.row_sets:Dropping"},
        "data": {
            "target": f"tests.unit.training.row_sets:{data}",
            "batch_size": 4,
            "augment": [{"noise": {"deviation": 0.1}}, {"random_scale": {}}],
        },
        "optim": {"accumulate": 2, "adamw": {"lr": 0.01}},
        "train": {"epochs": 3, "threads": 1, "ema": 0.9},
        "debug": {"gradients": ["head.*"]},
        "checkpoint": {"every_steps": 2, "every_epochs": 5},
        "track": ["jsonl"],
        "publish": {"model": "rows"},
    }
    for key, value in changes.items():
        old = document.get(key)
        document[key] = {**old, **value} if isinstance(old, dict) else value
    return document


def run(runs: Path, recipe: Recipe, watcher: Any = None, resume: bool = False) -> Trained:
    folder = RunFolder(runs, recipe, DATA)
    silent = Console(file=io.StringIO())
    with folder.locked():
        return train(recipe, load_splits(recipe), folder, silent, resume, watcher)


def losses(runs: Path, recipe: Recipe) -> list[dict[str, float]]:
    """The metrics of every epoch, but for those that are of time."""
    lines = RunFolder(runs, recipe, DATA).metrics.read_text().splitlines()
    found: list[dict[str, float]] = [json.loads(line) for line in lines]
    return [{k: v for k, v in each.items() if k != "train/wait_share"} for each in found]


def weights(runs: Path, recipe: Recipe) -> Mapping[str, bytes]:
    """Returns the checkpoints' weights at the end."""
    folder = RunFolder(runs, recipe, DATA).checkpoints
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.safetensors"))}


class Telling(NullWatcher):
    """Prints a line after every step, before its checkpoint is written."""

    @property
    def stop_asked(self) -> bool:  # type: ignore[override]
        print("step", flush=True)
        return False


def main() -> None:
    for line in sys.stdin:
        runs, document = json.loads(line)
        if (child := os.fork()) == 0:
            print(os.getpid(), flush=True)
            run(Path(runs), Recipe.model_validate(document), Telling())
            os._exit(0)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
