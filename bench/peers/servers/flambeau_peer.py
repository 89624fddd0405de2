"""flambeau itself, from this checkout; it forms batches without waiting."""

import sys
from pathlib import Path

import flambeau
from bench.peers import open_inference
from bench.peers.environment import FOLDER
from bench.peers.peer import MAX_BATCH, Array, Ask, Form, Launch, Peer
from bench.peers.running_server import free_addresses
from bench.peers.served_model import ServedModel

ROOT = Path(__file__).parents[3]


class Flambeau(Peer):
    """`flambeau serve`.

    Args:
        name: name in the tables.
        artifact: name of the served artifact; empty for the fastest verified one.
    """

    forms = open_inference.FORMS

    def __init__(self, name: str, artifact: str) -> None:
        self.name = name
        self.exact = artifact == "onnx"
        self._artifact = artifact
        what = f"artifact `{artifact}` (FP32)" if artifact else "the fastest verified artifact"
        self.asked = f"`flambeau serve`, {what}, batches of at most {MAX_BATCH}, no wait"

    def install(self) -> str:
        return flambeau.__version__

    def start(self, model: ServedModel) -> Launch:
        folder = FOLDER / self.name.replace(" ", "-") / model.name
        folder.mkdir(parents=True, exist_ok=True)
        http, grpc, metrics = free_addresses(3)
        addresses = (("--http-port", http), ("--grpc-port", grpc), ("--metrics-port", metrics))
        ports = [part for name, at in addresses for part in (name, at.partition(":")[2])]
        store = str(Path(model.store).resolve()) if "://" not in model.store else model.store
        options = ["--store", store, "--model", model.name, *ports]
        options += ["--artifact", self._artifact] if self._artifact else []
        options += ["--set", "choose_artifact_budget_s=0"]
        options += ["--set", "access_log=false", "--set", "log_level=warning"]
        return Launch(
            argv=(sys.executable, "-m", "flambeau", "serve", *options),
            folder=folder,
            http=http,
            grpc=grpc,
            environment={"PYTHONPATH": str(ROOT)},
        )

    def request(self, model: ServedModel, form: Form, rows: Array) -> Ask:
        return open_inference.infer(model, form, rows)
