"""flambeau with TorchServe's API, from this checkout: the archive and settings of `TorchServe`."""

import sys

import flambeau
from bench.peers.environment import FOLDER
from bench.peers.peer import MAX_BATCH, Launch
from bench.peers.served_model import ServedModel
from bench.peers.servers.flambeau_peer import ROOT
from bench.peers.servers.torchserve_peer import TorchServe


class TorchServeDoor(TorchServe):
    """`flambeau serve --torchserve`."""

    name = "flambeau-torchserve"
    asked = f"`flambeau serve --torchserve` with TorchServe's settings, batches of {MAX_BATCH}"

    def install(self) -> str:
        super().install()  # its archiver writes the archives
        return flambeau.__version__

    def start(self, model: ServedModel) -> Launch:
        folder = FOLDER / self.name / model.name
        argv = (sys.executable, "-m", "flambeau", "serve", "--torchserve",
                "--set", "access_log=false", "--set", "log_level=warning")  # fmt: skip
        return self._launch(model, folder, argv, {"PYTHONPATH": str(ROOT)})
