"""BentoML: Starlette on uvicorn, adaptive batching inside the worker."""

import json
import shutil

from bench.peers.environment import Environment
from bench.peers.peer import MAX_BATCH, Array, Ask, Form, Launch, Peer
from bench.peers.plain_json import JSON_HEADERS, nested, read_row
from bench.peers.running_server import free_addresses
from bench.peers.served_model import ServedModel
from bench.peers.services import FOLDER as SERVICES

SERVICE = "bentoml_service.py"


class BentoMl(Peer):
    """One worker. Its only body for arrays beside JSON is a pickle, which no client should send."""

    name = "bentoml"
    asked = (
        f"`@bentoml.api(batchable=True, max_batch_size={MAX_BATCH})`, one worker, metrics off; "
        "it has no fixed wait and learns one"
    )
    forms = {Form.JSON: "JSON"}  # noqa: RUF012

    def __init__(self) -> None:
        # No exact pin: 1.4.40 asks for a certifi that not every index has.
        self._environment = Environment("bentoml", ["bentoml>=1.4.39,<1.5"])

    def install(self) -> str:
        return self._environment.install()

    def start(self, model: ServedModel) -> Launch:
        folder = self._environment.folder / model.name
        model.write_to(folder)
        shutil.copy(SERVICES / SERVICE, folder)
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
