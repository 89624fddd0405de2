"""Checkpoints: what a killed run needs to go on as if nothing had happened.

    checkpoints/epoch-000007.safetensors   weights after 7 epochs
               /epoch-000005.safetensors   weights of the best epoch
               /state.pt                   everything else; names those two with their sha256

Rules kept here: weights are safetensors and the state loads with `weights_only=True`, so a
checkpoint is data and never code; every file appears whole or not at all; `state.pt` is replaced
last, so whatever it names is there; files it no longer names are removed after that.
"""

import hashlib
import io
import random
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_model, save_model
from torch import nn

from training.errors import CheckpointError
from training.run_folder import write_atomically
from training.train_state import TrainState

FORMAT = 1
"""The only layout of `state.pt` so far."""


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

    def weights_path(self, epoch: int) -> Path:
        """Where the weights of one epoch lie, if they were saved."""
        return self.path / f"epoch-{epoch:06d}.safetensors"

    def save_weights(self, model: nn.Module, epoch: int) -> None:
        """Writes the weights of an epoch; they count once a state names them."""
        self.path.mkdir(parents=True, exist_ok=True)
        temporary = self.path / "weights.tmp"
        save_model(model, str(temporary))  # copes with weights that two layers share
        temporary.replace(self.weights_path(epoch))

    def save_state(
        self,
        state: TrainState,
        optimizer: torch.optim.Optimizer,
        beside: Mapping[str, Any] | None = None,
    ) -> None:
        """Commits a checkpoint whose weights, and those of the best epoch, are saved already.

        Args:
            state: how far the run is.
            optimizer: its memory.
            beside: tensors and plain numbers that the run needs too; `load` gives them back.
        """
        kept = {self.weights_path(epoch) for epoch in (state.epoch, state.best_epoch)}
        document = {
            "format": FORMAT,
            "state": asdict(state),
            "weights_sha256": {path.name: _sha256(path) for path in kept},
            "optimizer": optimizer.state_dict(),
            "random": _random_state(),
            "beside": dict(beside or {}),
        }
        buffer = io.BytesIO()
        torch.save(document, buffer)
        write_atomically(self._state_path, buffer.getvalue())
        for path in set(self.path.glob("epoch-*.safetensors")) - kept:
            path.unlink()

    def load(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
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
            document: dict[str, Any] = torch.load(self._state_path, weights_only=True)
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
            load_model(model, str(self.weights_path(state.epoch)))
            optimizer.load_state_dict(document["optimizer"])
            if restore is not None:
                restore(document["beside"])
        except (RuntimeError, ValueError) as error:
            raise CheckpointError(
                f"{self.path} does not fit the model, whose code has changed since: {error}; "
                "train without --resume to start anew"
            ) from error
        _restore_random_state(document["random"])
        return state

    def _check_weights(self, digests: dict[str, str]) -> None:
        for name, expected in digests.items():
            path = self.path / name
            found = _sha256(path) if path.is_file() else "no file"
            if found != expected:
                raise CheckpointError(
                    f"{path}: sha256 is not the one in state.pt (expected {expected[:12]}…, found "
                    f"{found[:12]}…); train without --resume to start anew"
                )


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _random_state() -> dict[str, Any]:
    """The states of the three global generators, as tensors and plain numbers."""
    legacy = np.random.get_state(legacy=False)
    key = torch.from_numpy(legacy["state"]["key"].astype(np.int64))
    return {
        "python": random.getstate(),
        "numpy": {**legacy, "state": {**legacy["state"], "key": key}},
        "torch": torch.get_rng_state(),
    }


def _restore_random_state(saved: dict[str, Any]) -> None:
    random.setstate(saved["python"])
    legacy = saved["numpy"]
    key = legacy["state"]["key"].numpy().astype(np.uint32)
    np.random.set_state({**legacy, "state": {**legacy["state"], "key": key}})
    torch.set_rng_state(saved["torch"])
