"""One training in a process of its own, which may kill itself at a step: for `bench.train_table`.

In: a recipe's file and a folder for the run. Out: one line of JSON (`Figures`), unless it dies.
"""

import argparse
import math
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from flambeau.protocol.strict import StrictModel
from model_store.arrays.golden_replay import run_in_batches
from model_store.metric import MeasuredMetric
from training.loop.checkpoint import CheckpointFolder
from training.loop.loop import Trained, train
from training.metrics.task_metric import TaskMetric
from training.network.runner import module_runner
from training.preparation import Prepared, prepare
from training.process.file_digest import file_sha256
from training.recipe.file import load_recipe
from training.recipe.recipe import Recipe
from training.run_folder import RunFolder
from training.watcher import NullWatcher


class Figures(StrictModel):
    """Results of a completed training."""

    metric: MeasuredMetric
    """Metric that judges the model, on the test split, with the weights of the best epoch."""
    epochs: int
    steps: int
    own_steps: int
    """Steps made by this process: fewer if it resumed from a checkpoint."""
    wall_s: float
    """Wall time from the untrained model to the end, validation and checkpoints included."""
    cpu_s: float
    """CPU time of the process for the same: excludes other work on the machine."""
    last_sha256: str
    """Digest of the weights after the last step."""
    best_sha256: str
    """Digest of the weights of the best epoch."""


class StepCounter(NullWatcher):
    """Counts the steps of this process."""

    def __init__(self) -> None:
        self._asked = self._epochs_ended = 0

    @property
    def steps(self) -> int:
        """Number of steps, valid right after an epoch has ended."""
        return self._asked - self._epochs_ended

    def end_epoch(self, epoch: int, metrics: Mapping[str, float]) -> None:
        """See `training.watcher.Watcher.end_epoch`."""
        self._epochs_ended += 1

    @property
    def stop_asked(self) -> bool:  # type: ignore[override]
        """See `training.watcher.Watcher.stop_asked`; called after each step and each epoch."""
        self._asked += 1
        return False


class Killer(StepCounter):
    """Kills the process at a step with SIGKILL: nothing is flushed or written afterwards.

    Args:
        epoch: epochs that are finished at that step.
        in_epoch: steps of the next epoch that are finished at that step.
    """

    def __init__(self, epoch: int, in_epoch: int) -> None:
        super().__init__()
        self._epoch, self._in_epoch = epoch, in_epoch
        self._epochs = self._before = 0

    def end_epoch(self, epoch: int, metrics: Mapping[str, float]) -> None:
        """See `training.watcher.Watcher.end_epoch`."""
        super().end_epoch(epoch, metrics)
        self._epochs, self._before = epoch, self.steps

    @property
    def stop_asked(self) -> bool:  # type: ignore[override]
        """See `StepCounter.stop_asked`."""
        found = super().stop_asked
        if (self._epochs, self.steps - self._before) == (self._epoch, self._in_epoch):
            os.kill(os.getpid(), signal.SIGKILL)
        return found


def main() -> None:
    """Trains, and prints."""
    given = _arguments()
    prepared = prepare(load_recipe(given.recipe))
    recipe, watcher = prepared.recipe, StepCounter()
    if given.kill:
        recipe, watcher = _to_be_killed(prepared)
    folder = RunFolder(given.folder, prepared.recipe, prepared.raw.sha256())
    quiet = Console(quiet=True)
    begun_s, begun_cpu_s = time.perf_counter(), time.process_time()
    with folder.locked():
        trained = train(recipe, prepared.splits, folder, quiet, given.resume, watcher)
    wall_s, cpu_s = time.perf_counter() - begun_s, time.process_time() - begun_cpu_s
    print(_figures(prepared, trained, folder, watcher.steps, wall_s, cpu_s).model_dump_json())


def _to_be_killed(prepared: Prepared) -> tuple[Recipe, Killer]:
    """Returns the recipe with additional checkpoints in mid-epoch, and the killer.

    The process dies after a third of the steps, some steps after a checkpoint: those are lost.
    """
    recipe = prepared.recipe
    rows = recipe.data.batch_size * recipe.optim.accumulate
    steps = recipe.train.steps_per_epoch or math.ceil(prepared.splits.train.rows / rows)
    every = max(1, steps // 3)
    part = recipe.checkpoint.model_copy(update={"every_steps": every})
    epochs, in_epoch = recipe.train.epochs // 3, steps - max(1, every // 2)
    print(f"dies behind step {in_epoch} of {steps} of epoch {epochs + 1}", flush=True)
    return recipe.model_copy(update={"checkpoint": part}), Killer(epochs, in_epoch)


def _figures(
    prepared: Prepared,
    trained: Trained,
    folder: RunFolder,
    own_steps: int,
    wall_s: float,
    cpu_s: float,
) -> Figures:
    recipe, test, signature = prepared.recipe, prepared.splits.test, trained.signature
    run = module_runner(trained.model, signature)
    outputs = run_in_batches(run, test.inputs, signature.max_batch_size)
    metric = TaskMetric.of(recipe).measured(outputs[signature.outputs[0].name], test.labels)
    if metric is None:
        raise SystemExit(f"{recipe.name}: the answers of the trained model are no numbers")
    last = CheckpointFolder(folder.checkpoints).weights_path(trained.state.epoch)
    return Figures(
        metric=metric,
        epochs=trained.state.epoch,
        steps=trained.state.step,
        own_steps=own_steps,
        wall_s=wall_s,
        cpu_s=cpu_s,
        last_sha256=file_sha256(last),
        best_sha256=file_sha256(trained.weights),
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.training.one_training", description=__doc__
    )
    parser.add_argument("recipe", help="a YAML file")
    parser.add_argument("folder", type=Path, help="of the run's checkpoints")
    parser.add_argument("--kill", action="store_true", help="die in mid-epoch")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint")
    return parser.parse_args()


if __name__ == "__main__":
    main()
