"""What the peers have in common that are a Python package and a small service file of ours."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from bench.peers.environment import Environment
from bench.peers.peer import Peer
from bench.peers.served_model import ServedModel
from bench.peers.services import FOLDER as SERVICES


class InstalledPeer(Peer):
    """A peer that is ready once its environment is.

    Args:
        requirements: as `Environment` takes them.
    """

    service: str
    """The file of `bench/peers/services` that it runs."""

    def __init__(self, requirements: Sequence[str]) -> None:
        self._environment = Environment(self.name, requirements)

    def install(self) -> str:
        return self._environment.install()

    def folder_of(self, model: ServedModel) -> Path:
        """A folder with the model and the service, to start in."""
        folder = self._environment.folder / model.name
        model.write_to(folder)
        shutil.copy(SERVICES / self.service, folder)
        return folder
