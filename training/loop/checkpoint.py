"""Checkpoints: the state that a killed run needs to resume as if it had not been interrupted.

    checkpoints/epoch-000007.safetensors                 weights after 7 epochs
               /epoch-000007-step-00000123.safetensors   weights 123 steps later
               /epoch-000005.safetensors                 weights of the best epoch
               /state.pt      everything else; names the last and the best with their sha256

Rules: weights are safetensors and the state loads with `weights_only=True`, so a checkpoint is data
and never code; every file is written whole or not at all; `state.pt` is replaced last, so all files
that it names exist, on a full disk too; of the weights that it does not name, the last few stay if
the recipe asks for them, and the others are removed after that.
"""

import contextlib
import os
import random
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_model, save_model
from torch import nn

from training.errors import CheckpointError
from training.loop.train_state import TrainState
from training.process.file_digest import file_sha256

FORMAT = 1
"""The only layout of `state.pt` so far."""


class Memory(Protocol):
    """The part of an optimizer that checkpoints use."""

    def state_dict(self) -> dict[str, Any]:
        """Returns the whole state."""

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None:
        """Resumes from that state."""


class CheckpointFolder:
    """The checkpoints of one run.

    Args:
        path: the folder; made at the first save.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._state_path = path / "state.pt"

    @property
    def exists(self) -> bool:
        """True if there is a checkpoint to resume from."""
        return self._state_path.is_file()

    def clear(self) -> None:
        """Removes all checkpoints, for a run that starts anew."""
        shutil.rmtree(self.path, ignore_errors=True)

    def weights_path(self, epoch: int, in_epoch: int = 0) -> Path:
        """Returns the path of the weights at a moment, saved or not.

        Args:
            epoch: epochs finished.
            in_epoch: finished steps of the next epoch.
        """
        step = f"-step-{in_epoch:08d}" if in_epoch else ""
        return self.path / f"epoch-{epoch:06d}{step}.safetensors"

    def save_weights(self, model: nn.Module, epoch: int, in_epoch: int = 0) -> None:
        """Writes the weights of a moment; they become valid once a state names them.

        Args:
            model: the module whose weights are saved.
            epoch: epochs finished.
            in_epoch: finished steps of the next epoch.

        Raises:
            CheckpointError: the disk is full, or cannot be written.
        """
        temporary = self.path / "weights.tmp"
        with self._writing(temporary):
            self.path.mkdir(parents=True, exist_ok=True)
            save_model(model, str(temporary))  # handles weights that two layers share
            _to_disk(temporary)
            temporary.replace(self.weights_path(epoch, in_epoch))

    def save_state(
        self,
        state: TrainState,
        optimizer: Memory,
        beside: Mapping[str, Any] | None = None,
        keep: int = 1,
    ) -> None:
        """Commits a checkpoint whose weights, and those of the best epoch, are already saved.

        Args:
            state: the progress of the run.
            optimizer: the optimizer whose state is saved.
            beside: further tensors and plain numbers of the run; `load` returns them.
            keep: the number of the last weights that stay.

        Raises:
            CheckpointError: the disk is full, or cannot be written.
        """
        newest = self.weights_path(state.epoch, state.in_epoch)
        kept = {newest} | ({self.weights_path(state.best_epoch)} if state.best_epoch else set())
        document = {
            "format": FORMAT,
            "state": asdict(state),
            "weights_sha256": {path.name: file_sha256(path) for path in kept},
            "optimizer": optimizer.state_dict(),
            "random": random_state(),
            "beside": dict(beside or {}),
        }
        temporary = self._state_path.with_name("state.pt.tmp")
        with self._writing(temporary):
            _save(document, temporary)
            _to_disk(temporary)
            temporary.replace(self._state_path)
        # Later weights are those of an interrupted run that did not yet name them.
        saved = sorted(self.path.glob("epoch-*.safetensors"), key=_moment)
        before = [path for path in saved if _moment(path) <= _moment(newest)]
        for path in set(saved) - {*before[-keep:], *kept}:
            path.unlink()

    @contextlib.contextmanager
    def _writing(self, temporary: Path) -> Iterator[None]:
        """Removes the unfinished file and explains what to do, if a write fails."""
        try:
            yield
        except (OSError, SafetensorError) as error:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise CheckpointError(
                f"cannot write a checkpoint to {self.path}: {error}; free space there, or move the "
                "run's folder, and continue with --resume: the previous checkpoint is intact"
            ) from error

    def load(
        self,
        model: nn.Module,
        optimizer: Memory,
        restore: Callable[[Mapping[str, Any]], None] | None = None,
    ) -> TrainState:
        """Restores the model, the optimizer and the random generators.

        Args:
            model: receives the newest weights.
            optimizer: receives its saved state.
            restore: receives the tensors and numbers that were saved beside them.

        Raises:
            CheckpointError: a file is missing, damaged, of another format or of another model.
        """
        try:
            document: dict[str, Any] = torch.load(
                self._state_path, map_location="cpu", weights_only=True
            )
        except Exception as error:  # torch raises several unrelated types for a damaged file
            raise CheckpointError(
                f"cannot read {self._state_path}: {error}; train without --resume to start over"
            ) from error
        if document.get("format") != FORMAT:
            raise CheckpointError(
                f"{self._state_path} has format {document.get('format')}; this program reads "
                f"{FORMAT}, so train without --resume to start over"
            )
        self._check_weights(document["weights_sha256"])
        state = TrainState(**document["state"])
        try:
            load_model(model, str(self.weights_path(state.epoch, state.in_epoch)))
            optimizer.load_state_dict(document["optimizer"])
            if restore is not None:
                restore(document["beside"])
        except (RuntimeError, ValueError) as error:
            raise CheckpointError(
                f"{self.path} does not fit the model, whose code has changed since: {error}; "
                "train without --resume to start over"
            ) from error
        restore_random_state(document["random"])
        return state

    def _check_weights(self, digests: dict[str, str]) -> None:
        for name, expected in digests.items():
            path = self.path / name
            found = file_sha256(path) if path.is_file() else "no file"
            if found != expected:
                raise CheckpointError(
                    f"{path}: sha256 is not the one in state.pt (expected {expected[:12]}…, found "
                    f"{found[:12]}…); train without --resume to start over"
                )


def _moment(weights: Path) -> tuple[int, ...]:
    """Returns the epochs finished and, in mid-epoch, the steps: the sort key of a file."""
    return tuple(int(part) for part in weights.stem.split("-")[1::2])


def _save(document: Mapping[str, Any], path: Path) -> None:
    """Calls `torch.save`, and raises the reason of a failed write."""
    with path.open("wb") as file:
        try:
            torch.save(document, file)
        except RuntimeError as error:  # closing the archive fails as well
            if isinstance(error.__context__, OSError):
                raise error.__context__ from None
            raise


def _to_disk(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def random_state() -> dict[str, Any]:
    """Returns the states of the three global generators, as tensors and plain numbers."""
    legacy = np.random.get_state(legacy=False)
    key = torch.from_numpy(legacy["state"]["key"].astype(np.int64))
    return {
        "python": random.getstate(),
        "numpy": {**legacy, "state": {**legacy["state"], "key": key}},
        "torch": torch.get_rng_state(),
    }


def restore_random_state(saved: dict[str, Any]) -> None:
    """Restores the generators from a `random_state`."""
    random.setstate(saved["python"])
    legacy = saved["numpy"]
    key = legacy["state"]["key"].numpy().astype(np.uint32)
    np.random.set_state({**legacy, "state": {**legacy["state"], "key": key}})
    torch.set_rng_state(saved["torch"])
