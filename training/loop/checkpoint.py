"""Checkpoints: what a killed run needs to go on as if nothing had happened.

    checkpoints/epoch-000007.safetensors                 weights after 7 epochs
               /epoch-000007-step-00000123.safetensors   weights 123 steps later
               /epoch-000005.safetensors                 weights of the best epoch
               /state.pt      everything else; names the last and the best with their sha256

Rules kept here: weights are safetensors and the state loads with `weights_only=True`, so a
checkpoint is data and never code; every file appears whole or not at all; `state.pt` is replaced
last, so whatever it names is there, on a full disk too; of the weights it does not name, the last
few stay if the recipe wants them, and the others are removed after that.
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
    """An optimizer, as far as checkpoints know it."""

    def state_dict(self) -> dict[str, Any]:
        """All it needs to go on."""

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None:
        """Goes on from there."""


class CheckpointFolder:
    """The checkpoints of one run.

    Args:
        path: the folder; made when something is saved.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._state_path = path / "state.pt"

    @property
    def exists(self) -> bool:
        """Whether there is anything to resume."""
        return self._state_path.is_file()

    def clear(self) -> None:
        """Forgets everything, for a run that starts anew."""
        shutil.rmtree(self.path, ignore_errors=True)

    def weights_path(self, epoch: int, in_epoch: int = 0) -> Path:
        """Where the weights of a moment lie, if they were saved.

        Args:
            epoch: epochs finished.
            in_epoch: steps of the next one that are finished.
        """
        step = f"-step-{in_epoch:08d}" if in_epoch else ""
        return self.path / f"epoch-{epoch:06d}{step}.safetensors"

    def save_weights(self, model: nn.Module, epoch: int, in_epoch: int = 0) -> None:
        """Writes the weights of a moment; they count once a state names them.

        Args:
            model: has them.
            epoch: epochs finished.
            in_epoch: steps of the next one that are finished.

        Raises:
            CheckpointError: the disk is full, or cannot be written.
        """
        temporary = self.path / "weights.tmp"
        with self._writing(temporary):
            self.path.mkdir(parents=True, exist_ok=True)
            save_model(model, str(temporary))  # copes with weights that two layers share
            _to_disk(temporary)
            temporary.replace(self.weights_path(epoch, in_epoch))

    def save_state(
        self,
        state: TrainState,
        optimizer: Memory,
        beside: Mapping[str, Any] | None = None,
        keep: int = 1,
    ) -> None:
        """Commits a checkpoint whose weights, and those of the best epoch, are saved already.

        Args:
            state: how far the run is.
            optimizer: its memory.
            beside: tensors and plain numbers that the run needs too; `load` gives them back.
            keep: how many of the last weights stay.

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
        # Weights that count as later are those of a run that was cut off before it named them.
        saved = sorted(self.path.glob("epoch-*.safetensors"), key=_moment)
        before = [path for path in saved if _moment(path) <= _moment(newest)]
        for path in set(saved) - {*before[-keep:], *kept}:
            path.unlink()

    @contextlib.contextmanager
    def _writing(self, temporary: Path) -> Iterator[None]:
        """Says what to do where nothing more can be written, and takes the unfinished file away."""
        try:
            yield
        except (OSError, SafetensorError) as error:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise CheckpointError(
                f"cannot write a checkpoint to {self.path}: {error}; free space there, or move the "
                "run's folder, and go on with --resume: the checkpoint before this one is whole"
            ) from error

    def load(
        self,
        model: nn.Module,
        optimizer: Memory,
        restore: Callable[[Mapping[str, Any]], None] | None = None,
    ) -> TrainState:
        """Puts the model, the optimizer and the random generators back where they were.

        Args:
            model: gets the newest weights.
            optimizer: of what is trained.
            restore: is given what was saved beside them.

        Raises:
            CheckpointError: a file is missing, damaged, of another format or of another model.
        """
        try:
            document: dict[str, Any] = torch.load(
                self._state_path, map_location="cpu", weights_only=True
            )
        except Exception as error:  # torch raises several unrelated types for a damaged file
            raise CheckpointError(
                f"cannot read {self._state_path}: {error}; train without --resume to start anew"
            ) from error
        if document.get("format") != FORMAT:
            raise CheckpointError(
                f"{self._state_path} has format {document.get('format')}; this program reads "
                f"{FORMAT}, so train without --resume to start anew"
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
                "train without --resume to start anew"
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
                    f"{found[:12]}…); train without --resume to start anew"
                )


def _moment(weights: Path) -> tuple[int, ...]:
    """Epochs finished and, in mid-epoch, steps: a file's place among the others."""
    return tuple(int(part) for part in weights.stem.split("-")[1::2])


def _save(document: Mapping[str, Any], path: Path) -> None:
    """`torch.save`, which says why the file cannot be written."""
    with path.open("wb") as file:
        try:
            torch.save(document, file)
        except RuntimeError as error:  # the end of its archive cannot be written either
            if isinstance(error.__context__, OSError):
                raise error.__context__ from None
            raise


def _to_disk(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def random_state() -> dict[str, Any]:
    """The states of the three global generators, as tensors and plain numbers."""
    legacy = np.random.get_state(legacy=False)
    key = torch.from_numpy(legacy["state"]["key"].astype(np.int64))
    return {
        "python": random.getstate(),
        "numpy": {**legacy, "state": {**legacy["state"], "key": key}},
        "torch": torch.get_rng_state(),
    }


def restore_random_state(saved: dict[str, Any]) -> None:
    """Goes on from a `random_state`."""
    random.setstate(saved["python"])
    legacy = saved["numpy"]
    key = legacy["state"]["key"].numpy().astype(np.uint32)
    np.random.set_state({**legacy, "state": {**legacy["state"], "key": key}})
    torch.set_rng_state(saved["torch"])
