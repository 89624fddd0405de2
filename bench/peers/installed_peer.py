"""Base of peers that consist of a Python package and a small service file of ours."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from bench.peers.environment import Environment
from bench.peers.peer import Peer
from bench.peers.served_model import ServedModel
from bench.peers.services import FOLDER as SERVICES


class InstalledPeer(Peer):
    """A peer that is ready once its environment is installed.

    Args:
        requirements: packages, see `Environment`.
    """

    service: str
    """File in `bench/peers/services` that it runs."""

    def __init__(self, requirements: Sequence[str]) -> None:
        self._environment = Environment(self.name, requirements)

    def install(self) -> str:
        return self._environment.install()

    def folder_of(self, model: ServedModel) -> Path:
        """Creates a working folder with the model and the service."""
        folder = self._environment.folder / model.name
        model.write_to(folder)
        shutil.copy(SERVICES / self.service, folder)
        return folder
