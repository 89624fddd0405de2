"""BentoML: Starlette on uvicorn, adaptive batching inside the worker."""

import json

from bench.peers.installed_peer import InstalledPeer
from bench.peers.peer import MAX_BATCH, Array, Ask, Form, Launch
from bench.peers.plain_json import JSON_HEADERS, nested, read_row
from bench.peers.running_server import free_addresses
from bench.peers.served_model import ServedModel


class BentoMl(InstalledPeer):
    """One worker. Its only body for arrays besides JSON is a pickle, unsafe to send for clients."""

    name = "bentoml"
    service = "bentoml_service.py"
    asked = (
        f"`@bentoml.api(batchable=True, max_batch_size={MAX_BATCH})`, one worker, metrics off; "
        "it has no fixed wait and learns one"
    )
    forms = {Form.JSON: "JSON"}  # noqa: RUF012

    def __init__(self) -> None:
        # No exact pin: 1.4.40 asks for a certifi that not every index has.
        super().__init__(["bentoml>=1.4.39,<1.5"])

    def start(self, model: ServedModel) -> Launch:
        folder = self.folder_of(model)
        (address,) = free_addresses(1)
        host, port = address.split(":")
        return Launch(
            argv=(self._environment.script("bentoml"), "serve", "bentoml_service:Network",
                  "--host", host, "--port", port),
            folder=folder,
            http=address,
            environment={
                "PEER_MODEL": str(folder),
                "PEER_MAX_BATCH": str(MAX_BATCH),
                "BENTOML_DO_NOT_TRACK": "True",
            },
        )  # fmt: skip

    def request(self, model: ServedModel, form: Form, rows: Array) -> Ask:
        body = json.dumps({"rows": nested(rows[:1])}).encode()
        return Ask(path="/predict", body=body, headers=JSON_HEADERS, read=read_row)
