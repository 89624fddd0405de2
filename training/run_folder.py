"""The folder of one run: its layout, and the lock that excludes a second process.

    <runs>/<name>-<digest>/lock
                          /checkpoints/    see `checkpoint`
                          /metrics.jsonl   one line an epoch
                          /tensorboard/
                          /profile.json    a trace of some steps, if the recipe has `profile`
                          /prune/, /qat/   the same files of each later phase, if there is one
                          /transfer.json   the weights of `model.from` that were loaded, if given
                          /version/        the files to publish, laid out as in the store

The digest covers the data and the parts of the recipe that decide the weights, so a run finds its
folder again, and a recipe that differs only in its exports finds the trained weights.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from training.errors import RunBusyError
from training.recipe.recipe import Recipe


class PhaseFolder:
    """Paths of one phase of a run.

    Args:
        path: the folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.metrics = path / "metrics.jsonl"
        self.tensorboard = path / "tensorboard"
        self.profile = path / "profile.json"


class RunFolder(PhaseFolder):
    """Paths of one run, which are also those of its first phase.

    Args:
        runs_dir: the folder of all runs; made if absent.
        recipe: decides the name, with the data.
        data_sha256: digest of the splits; the recipe holds no data, and a file may have changed.
    """

    def __init__(self, runs_dir: Path, recipe: Recipe, data_sha256: str) -> None:
        digest = hashlib.sha256(f"{recipe.training_digest()} {data_sha256}".encode()).hexdigest()
        super().__init__(runs_dir / f"{recipe.name}-{digest[:12]}")
        self.version = self.path / "version"
        self.transfer = self.path / "transfer.json"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Locks the folder; the system unlocks it when the process dies, for whatever reason.

        Raises:
            RunBusyError: another process holds the lock.
        """
        with locked_folder(self.path):
            yield

    def forget_phases(self) -> None:
        """Removes the files of later phases, for a run that starts anew."""
        for name in ("prune", "qat"):
            shutil.rmtree(self.path / name, ignore_errors=True)

    def phase(self, name: Literal["prune", "qat"]) -> PhaseFolder:
        """Returns the checkpoint and metrics folder of a phase after training; made if absent."""
        path = self.path / name
        path.mkdir(parents=True, exist_ok=True)
        return PhaseFolder(path)

    def empty_version(self) -> Path:
        """Returns the folder for exported files, without those of an earlier export."""
        shutil.rmtree(self.version, ignore_errors=True)
        self.version.mkdir(parents=True)
        return self.version


@contextlib.contextmanager
def locked_folder(path: Path) -> Iterator[None]:
    """Locks a folder, made if absent; the system unlocks it when the process dies.

    Raises:
        RunBusyError: another process holds the lock.
    """
    path.mkdir(parents=True, exist_ok=True)
    with (path / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunBusyError(
                f"another process trains in {path}; wait for it, or give this run "
                "another folder (--runs-dir, --sweeps-dir)"
            ) from None
        yield


def write_atomically(path: Path, data: bytes | memoryview) -> None:
    """Writes a file so that readers see the old or the new one, even after a crash."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
