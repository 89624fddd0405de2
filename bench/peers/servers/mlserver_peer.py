"""MLServer 1.7: FastAPI and grpc.aio, a pool of worker processes."""

import json

from bench.peers import open_inference
from bench.peers.installed_peer import InstalledPeer
from bench.peers.peer import MAX_BATCH, WAIT_MS, Array, Ask, Form, Launch
from bench.peers.running_server import free_addresses
from bench.peers.served_model import ServedModel


class MlServer(InstalledPeer):
    """One worker process behind adaptive batching; it has no binary REST body."""

    name = "mlserver"
    service = "mlserver_runtime.py"
    asked = (
        f"`max_batch_size` {MAX_BATCH}, `max_batch_time` {WAIT_MS / 1000}, one parallel worker, "
        "debug, gzip and metrics off"
    )
    forms = {  # noqa: RUF012
        form: said for form, said in open_inference.FORMS.items() if form is not Form.BINARY
    }

    def __init__(self) -> None:
        # With a newer uvloop every worker dies at start.
        super().__init__(["mlserver==1.7.1", "uvloop<0.22"])

    def start(self, model: ServedModel) -> Launch:
        folder = self.folder_of(model)
        http, grpc = free_addresses(2)
        settings = {
            "host": "127.0.0.1",
            "http_port": int(http.partition(":")[2]),
            "grpc_port": int(grpc.partition(":")[2]),
            "metrics_endpoint": None,
            "parallel_workers": 1,
            "debug": False,
            "gzip_enabled": False,
        }
        model_settings = {
            "name": model.name,
            "implementation": "mlserver_runtime.Runtime",
            "max_batch_size": MAX_BATCH,
            "max_batch_time": WAIT_MS / 1000,
            "inputs": [_tensor(model.input, model.datatype, model.row_shape)],
            "outputs": [_tensor(model.output, "FP32", model.expected.shape[1:])],
        }
        (folder / "settings.json").write_text(json.dumps(settings))
        (folder / "model-settings.json").write_text(json.dumps(model_settings))
        return Launch(
            argv=(self._environment.script("mlserver"), "start", "."),
            folder=folder,
            http=http,
            grpc=grpc,
            environment={"PYTHONPATH": str(folder)},
        )

    def request(self, model: ServedModel, form: Form, rows: Array) -> Ask:
        return open_inference.infer(model, form, rows)


def _tensor(name: str, datatype: str, row_shape: tuple[int, ...]) -> dict[str, object]:
    return {"name": name, "datatype": datatype, "shape": [-1, *row_shape]}
