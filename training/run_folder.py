"""The folder of one run: what lies where, and the lock that keeps a second process out.

    <runs>/<name>-<digest>/lock
                          /checkpoints/    see `checkpoint`
                          /metrics.jsonl   one line an epoch
                          /tensorboard/
                          /profile.json    a trace of some steps, where the recipe has `profile`
                          /prune/, /qat/   the same of each later phase, where there is one
                          /transfer.json   which weights of `model.from` were taken, if it is given
                          /version/        what is published, as it will lie in the store

The digest covers the data and the parts of the recipe that decide the weights, so a run finds its
own folder again, and a recipe that only exports differently finds the trained weights.
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
    """Paths of one run, which are those of its first phase too.

    Args:
        runs_dir: the folder of all runs; made if absent.
        recipe: decides the name, with the data.
        data_sha256: of the splits, which the recipe does not hold: a file may have changed.
    """

    def __init__(self, runs_dir: Path, recipe: Recipe, data_sha256: str) -> None:
        digest = hashlib.sha256(f"{recipe.training_digest()} {data_sha256}".encode()).hexdigest()
        super().__init__(runs_dir / f"{recipe.name}-{digest[:12]}")
        self.version = self.path / "version"
        self.transfer = self.path / "transfer.json"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the folder; the system lets go when the process dies, however it dies.

        Raises:
            RunBusyError: another process holds it.
        """
        with locked_folder(self.path):
            yield

    def forget_phases(self) -> None:
        """Removes what later phases left behind, for a run that starts anew."""
        for name in ("prune", "qat"):
            shutil.rmtree(self.path / name, ignore_errors=True)

    def phase(self, name: Literal["prune", "qat"]) -> PhaseFolder:
        """Where a phase behind the training keeps its checkpoints and metrics; made if absent."""
        path = self.path / name
        path.mkdir(parents=True, exist_ok=True)
        return PhaseFolder(path)

    def empty_version(self) -> Path:
        """The folder for exported files, without those of an earlier export."""
        shutil.rmtree(self.version, ignore_errors=True)
        self.version.mkdir(parents=True)
        return self.version


@contextlib.contextmanager
def locked_folder(path: Path) -> Iterator[None]:
    """Holds a folder, made if absent; the system lets go when the process dies, however it dies.

    Raises:
        RunBusyError: another process holds it.
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
    """Writes a file so that readers, and a crash at any moment, see the old one or the new one."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
