"""Runs one trial in its own process: it trains, reports each epoch, and obeys the search.

    trial                       search
      epoch (number, metrics) ->
                              <- whether to continue
      Finished | Pruned | TrialFailed ->

Rules: a trial only trains, and neither exports nor publishes; its metric is measured with the
weights that would be published; it ends, with all its child processes, when the search ends. A
trial that is run again resumes from its checkpoint.
"""

import os
import queue
import signal
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from model_store.host.memory_limit import GIB, explained
from training.errors import StoppedError
from training.process.isolated_run import (
    LEAVING_S,
    describe_exit,
    end_process,
    enter_isolation,
    process_context,
    start_process,
)
from training.process.root_cause import root_cause
from training.recipe.recipe import Recipe


@dataclass(frozen=True, slots=True)
class Epoch:
    """A completed epoch."""

    number: int
    metrics: dict[str, float]


@dataclass(frozen=True, slots=True)
class Finished:
    """A completed training."""

    metrics: dict[str, float]
    """Metrics of the validation rows, with the weights that would be published."""
    epochs: int
    folder: str
    """Name of the run's folder."""


@dataclass(frozen=True, slots=True)
class Pruned:
    """A trial that ended on request of the search."""


@dataclass(frozen=True, slots=True)
class TrialFailed:
    """A failed trial."""

    reason: str


Told = Epoch | Finished | Pruned | TrialFailed


class TrialProcess:
    """A running trial.

    Args:
        recipe: recipe of the trial.
        runs_dir: parent folder of its run.
        log: file of its output, truncated at the start.
        threads: CPU threads, if the recipe does not set them.
        memory_gib: memory limit.
        weights_store: URL of the store with the version of `model.from`; None for none.
    """

    def __init__(
        self,
        recipe: Recipe,
        runs_dir: Path,
        log: Path,
        *,
        threads: int,
        memory_gib: float,
        weights_store: str | None = None,
    ) -> None:
        self._log = log
        log.parent.mkdir(exist_ok=True)
        log.write_bytes(b"")
        context = process_context()
        self.connection, theirs = context.Pipe()
        self.started_at = time.monotonic()
        self._process = context.Process(
            target=_work,
            args=(theirs, str(log), recipe, runs_dir, threads, int(memory_gib * GIB)),
            kwargs={"weights_store": weights_store if recipe.model.from_ else None},
        )
        start_process(self._process)
        theirs.close()

    @property
    def took_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started_at

    def hear(self) -> Told:
        """Waits for the next message; returns `Failed` if the process died."""
        try:
            told: Told = self.connection.recv()
        except (EOFError, ConnectionResetError):
            self._process.join()
            return TrialFailed(describe_exit(self._process.exitcode, self._log))
        if not isinstance(told, Epoch):
            self._process.join(LEAVING_S)
        return told

    def answer(self, go_on: bool) -> None:
        """Answers an epoch: continue or stop; a dead process is ignored."""
        try:
            self.connection.send(go_on)
        except OSError:
            return

    def end(self) -> None:
        """Terminates the trial and its child processes; its checkpoints stay."""
        self.connection.close()
        end_process(self._process)


class _Answers:
    """Receives the search's answers in a thread; kills the trial when the search is gone."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._answers: queue.SimpleQueue[bool] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True, name="answers").start()

    def _listen(self) -> None:
        try:
            while True:
                self._answers.put(self._connection.recv())
        except (EOFError, OSError):
            os.killpg(0, signal.SIGKILL)

    def next(self) -> bool:
        """Waits for the next answer."""
        return self._answers.get()


class _Teller:
    """The run's watcher: reports to the search, and stops if requested."""

    stop_asked = False

    def __init__(self, connection: Connection) -> None:
        self._connection, self._answers = connection, _Answers(connection)

    def begin(self, folder: Path) -> None:
        """See `training.watcher.Watcher.begin`."""

    def started(self) -> None:
        """See `training.watcher.Watcher.started`."""

    def end_epoch(self, epoch: int, metrics: Mapping[str, float]) -> None:
        """See `training.watcher.Watcher.end_epoch`."""
        self._connection.send(Epoch(epoch, dict(metrics)))
        if not self._answers.next():
            raise StoppedError(f"pruned after epoch {epoch}")

    def promoted(self, text: str) -> None:
        """See `training.watcher.Watcher.promoted`: a trial publishes nothing."""


def _work(
    connection: Connection,
    log: str,
    recipe: Recipe,
    runs_dir: Path,
    threads: int,
    memory: int,
    weights_store: str | None,
) -> None:
    """Runs the trial in the child process."""
    enter_isolation(log, memory)
    told: Told
    try:
        told = _train(recipe, runs_dir, threads, _Teller(connection), weights_store)
    except StoppedError:
        told = Pruned()
    except Exception as error:  # user code may raise anything
        told = TrialFailed(explained(error, root_cause(error), memory))
    connection.send(told)


def _train(
    recipe: Recipe, runs_dir: Path, threads: int, teller: _Teller, weights_store: str | None
) -> Finished:
    import torch
    from rich.console import Console

    from model_store.store import ModelStore
    from training.loop.evaluation import evaluate
    from training.loop.loop import train
    from training.preparation import prepare
    from training.run_folder import RunFolder

    if not recipe.train.threads:
        torch.set_num_threads(threads)
    prepared = prepare(recipe, None if weights_store is None else ModelStore(weights_store))
    recipe, splits = prepared.recipe, prepared.splits
    folder = RunFolder(runs_dir, recipe, prepared.raw.sha256())
    with folder.locked():
        console, first = Console(), prepared.first
        trained = train(recipe, splits, folder, console, resume=True, watcher=teller, first=first)
    metrics = evaluate(trained.model, splits.validation, recipe, "val", trained.loss)
    return Finished(dict(metrics), trained.state.epoch, folder.path.name)


def facts_of(told: Any, took_s: float) -> dict[str, Any]:
    """Returns the attributes to record of a finished trial."""
    found: dict[str, Any] = {"took_s": round(took_s, 3)}
    if isinstance(told, Finished):
        found |= {"epochs": told.epochs, "folder": told.folder}
    return found
