"""TorchServe 0.12: a Java front end, a Python worker behind a Unix socket."""

import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.peers.environment import Environment
from bench.peers.peer import MAX_BATCH, WAIT_MS, Array, Ask, Floats, Form, Launch, Peer, PeerError
from bench.peers.plain_json import BYTES_HEADERS, JSON_HEADERS, body_of_row, read_row
from bench.peers.protobuf_wire import field, first_field
from bench.peers.running_server import free_addresses
from bench.peers.served_model import ServedModel
from bench.peers.services import FOLDER as SERVICES

HANDLER = "torchserve_handler.py"
ARCHIVED = ("weights.safetensors", "model.json", "networks.py", "peer_network.py")
PREDICTIONS = "/org.pytorch.serve.grpc.inference.InferenceAPIsService/Predictions"
QUIET = """<Configuration><Appenders><Console name="console"/></Appenders><Loggers>
<Root level="error"><AppenderRef ref="console"/></Root></Loggers></Configuration>
"""


class TorchServe(Peer):
    """One worker, no token, no log line for each request."""

    name = "torchserve"
    warm_up_s = 10
    asked = f"`batchSize` {MAX_BATCH}, `maxBatchDelay` {WAIT_MS}, one worker, its request log off"
    forms = {  # noqa: RUF012
        Form.JSON: "JSON",
        Form.BINARY: "the row's bytes, answer in JSON",
        Form.GRPC: "its own `Predictions`: the row's bytes, answer in JSON",
    }

    def __init__(self) -> None:
        needs = ["torchserve==0.12.0", "torch-model-archiver==0.12.0"]
        needs += ["pyyaml", "psutil", "captum", "packaging"]
        self._environment = Environment("torchserve", needs)

    def install(self) -> str:
        if shutil.which("java") is None:
            raise PeerError("it needs Java 17: apt-get install openjdk-17-jre-headless")
        return self._environment.install()

    def start(self, model: ServedModel) -> Launch:
        argv = (self._environment.script("torchserve"), "--foreground", "--start",
                "--log-config", "log4j2.xml")  # fmt: skip
        folder = self._environment.folder / model.name
        return self._launch(model, folder, argv, {"PATH": self._environment.search_path})

    def _launch(
        self, model: ServedModel, folder: Path, argv: Sequence[str], environment: Mapping[str, str]
    ) -> Launch:
        """Writes the archive and the settings, and returns the start of a server that reads them.

        Args:
            model: the model.
            folder: folder for both.
            argv: command of the server; options that name the settings are added.
            environment: variables of the server.
        """
        model.write_to(folder)
        self._archive(model, folder)
        http, management, metrics, grpc, grpc_management = free_addresses(5)
        setting = {
            "minWorkers": 1,
            "maxWorkers": 1,
            "batchSize": MAX_BATCH,
            "maxBatchDelay": WAIT_MS,
            "responseTimeout": 60,
            "marName": f"{model.name}.mar",
            "defaultVersion": True,
        }
        settings = {
            "inference_address": f"http://{http}",
            "management_address": f"http://{management}",
            "metrics_address": f"http://{metrics}",
            "grpc_inference_port": grpc.partition(":")[2],
            "grpc_management_port": grpc_management.partition(":")[2],
            "model_store": str(folder),
            "load_models": f"{model.name}.mar",
            "models": json.dumps({model.name: {"1.0": setting}}),
            "disable_system_metrics": "true",
            "install_py_dep_per_model": "false",
        }
        lines = [f"{name}={value}\n" for name, value in settings.items()]
        (folder / "config.properties").write_text("".join(lines))
        (folder / "log4j2.xml").write_text(QUIET)
        return Launch(
            argv=(*argv, "--disable-token-auth", "--ts-config", "config.properties"),
            folder=folder,
            http=http,
            grpc=grpc,
            environment=environment,
        )

    def request(self, model: ServedModel, form: Form, rows: Array) -> Ask:
        if form is Form.GRPC:
            entry = field(1, b"data") + field(2, rows[0].tobytes())
            message = field(1, model.name.encode()) + field(3, entry)
            return Ask(path=PREDICTIONS, body=message, read=_read_prediction)
        as_json = form is Form.JSON
        return Ask(
            path=f"/predictions/{model.name}",
            body=body_of_row(model, rows[0]) if as_json else rows[0].tobytes(),
            headers=JSON_HEADERS if as_json else BYTES_HEADERS,
            read=read_row,
        )

    def _archive(self, model: ServedModel, folder: Path) -> None:
        command = [self._environment.script("torch-model-archiver"), "--force"]
        command += ["--model-name", model.name, "--version", "1.0", "--export-path", str(folder)]
        command += ["--handler", str(SERVICES / HANDLER)]
        command += ["--extra-files", ",".join(str(folder / name) for name in ARCHIVED)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise PeerError(f"torch-model-archiver failed: {done.stderr.strip()[-300:]}")


def _read_prediction(headers: Mapping[str, str], body: bytes) -> Floats:
    """Parses `PredictionResponse.prediction`, which holds the handler's output."""
    return read_row(headers, first_field(body))
