"""Trackers for MLflow and Weights & Biases, which log the metrics of every epoch.

In: an epoch's metrics by name. Out: calls of their libraries, which are extras: `mlflow`, `wandb`.

Rule: a resumed run stays the same run on their servers, and logs no epoch twice: its folder stores
the run's id there and the newest logged epoch. (A kill in the instant between logging and storing
repeats one epoch, with the same metrics.)
"""

import json
import logging
import os
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from training.recipe.recipe import Recipe
from training.run_folder import PhaseFolder, write_atomically

PARAMS_AT_ONCE, PARAM_CHARACTERS = 100, 6000
"""MLflow's limits: parameters per call, and characters per value."""


class ToldRun:
    """Stored state of a run on a tracker's server: its id there, and the newest logged epoch.

    Args:
        path: file of the state.
        epochs_done: completed epochs; 0 starts a new run there.
    """

    def __init__(self, path: Path, epochs_done: int) -> None:
        self._path = path
        self.id: str | None = None
        self.epoch = 0
        if epochs_done and path.is_file():
            known = json.loads(path.read_text("utf-8"))
            self.id, self.epoch = known["id"], known["epoch"]

    def note(self, id_: str, epoch: int) -> None:
        """Stores the id and the newest logged epoch."""
        self.id, self.epoch = id_, epoch
        write_atomically(self._path, json.dumps({"id": id_, "epoch": epoch}).encode())


class MlflowTracker:
    """A run of MLflow, with the recipe as its parameters.

    Args:
        recipe: recipe with the tracking settings.
        folder: folder of the run.
        epochs_done: epochs that a resumed run continues from.
    """

    def __init__(self, recipe: Recipe, folder: PhaseFolder, epochs_done: int) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        for name in ("mlflow", "alembic"):
            logging.getLogger(name).setLevel(logging.WARNING)
        from mlflow import MlflowClient
        from mlflow.entities import Param

        uri = recipe.tracking.mlflow_uri or f"sqlite:///{folder.path.absolute() / 'mlflow.db'}"
        self._client: Any = MlflowClient(tracking_uri=uri)
        self._told = ToldRun(folder.path / "mlflow.json", epochs_done)
        if self._told.id is None:
            name = recipe.tracking.experiment or recipe.publish.model
            experiment = self._client.get_experiment_by_name(name)
            place = self._client.create_experiment(name) if experiment is None else None
            run = self._client.create_run(
                place or experiment.experiment_id, run_name=recipe.name, tags={"flambeau": "train"}
            )
            self._told.note(run.info.run_id, 0)
            params = [Param(key, value[:PARAM_CHARACTERS]) for key, value in _flat(recipe)]
            for start in range(0, len(params), PARAMS_AT_ONCE):
                some = params[start : start + PARAMS_AT_ONCE]
                self._client.log_batch(self._told.id, params=some)

    def log(self, epoch: int, metrics: Mapping[str, float]) -> None:
        """See `training.tracking.trackers.Tracker.log`."""
        from mlflow.entities import Metric

        if epoch <= self._told.epoch or self._told.id is None:
            return
        now_ms = int(time.time() * 1000)
        found = [Metric(name, value, now_ms, epoch) for name, value in metrics.items()]
        self._client.log_batch(self._told.id, metrics=found)
        self._told.note(self._told.id, epoch)

    def close(self) -> None:
        """See `training.tracking.trackers.Tracker.close`."""
        self._client.set_terminated(self._told.id)


class WandbTracker:
    """A run of Weights & Biases, with the recipe as its config.

    Args:
        recipe: recipe with the tracking settings.
        folder: folder of the run, which also stores W&B's files.
        epochs_done: epochs that a resumed run continues from.
    """

    def __init__(self, recipe: Recipe, folder: PhaseFolder, epochs_done: int) -> None:
        import wandb

        self._told = ToldRun(folder.path / "wandb.json", epochs_done)
        if self._told.id is None:
            self._told.note(uuid.uuid4().hex[:12], 0)
        self._run: Any = wandb.init(
            project=recipe.tracking.experiment or recipe.publish.model,
            name=recipe.name,
            id=self._told.id,
            resume="allow" if recipe.tracking.wandb_mode == "online" else None,
            dir=str(folder.path),
            mode=recipe.tracking.wandb_mode,
            config=recipe.document(),
            settings=wandb.Settings(console="off", silent=True),
        )

    def log(self, epoch: int, metrics: Mapping[str, float]) -> None:
        """See `training.tracking.trackers.Tracker.log`."""
        if epoch <= self._told.epoch or self._told.id is None:
            return
        self._run.log({"epoch": epoch, **metrics}, step=epoch)
        self._told.note(self._told.id, epoch)

    def close(self) -> None:
        """See `training.tracking.trackers.Tracker.close`."""
        self._run.finish()


def _flat(recipe: Recipe) -> list[tuple[str, str]]:
    """Flattens the recipe to `a.b` keys and text values; lists are one value."""

    def parts(document: Mapping[str, Any], before: str) -> Iterator[tuple[str, str]]:
        for key, value in document.items():
            if isinstance(value, dict) and value:
                yield from parts(value, f"{before}{key}.")
            else:
                yield f"{before}{key}", value if isinstance(value, str) else json.dumps(value)

    return list(parts(recipe.document(), ""))
