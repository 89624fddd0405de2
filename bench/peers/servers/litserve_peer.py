"""LitServe: FastAPI on uvicorn, a worker process behind a queue."""

from bench.peers.installed_peer import InstalledPeer
from bench.peers.peer import MAX_BATCH, WAIT_MS, Array, Ask, Form, Launch
from bench.peers.plain_json import JSON_HEADERS, body_of_row, read_row
from bench.peers.running_server import free_addresses
from bench.peers.served_model import ServedModel

BOUNDARY = "flambeau-bench-row"


class LitServe(InstalledPeer):
    """One worker. Its only body besides JSON is a form, as browsers use for file uploads."""

    name = "litserve"
    service = "litserve_service.py"
    asked = f"`max_batch_size={MAX_BATCH}, batch_timeout={WAIT_MS / 1000}, workers_per_device=1`"
    forms = {  # noqa: RUF012
        Form.JSON: "JSON",
        Form.BINARY: "a form with the row's bytes as its file, answer in JSON",
    }

    def __init__(self) -> None:
        super().__init__(["litserve==0.2.19", "python-multipart"])

    def start(self, model: ServedModel) -> Launch:
        folder = self.folder_of(model)
        (address,) = free_addresses(1)
        return Launch(
            argv=(self._environment.python, self.service),
            folder=folder,
            http=address,
            environment={
                "PEER_MODEL": str(folder),
                "PEER_PORT": address.partition(":")[2],
                "PEER_MAX_BATCH": str(MAX_BATCH),
                "PEER_WAIT_MS": str(WAIT_MS),
            },
        )

    def request(self, model: ServedModel, form: Form, rows: Array) -> Ask:
        if form is Form.JSON:
            body, headers = body_of_row(model, rows[0]), JSON_HEADERS
        else:
            body = _form(model.input, rows[0].tobytes())
            headers = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
        return Ask(path="/predict", body=body, headers=headers, read=read_row)


def _form(name: str, data: bytes) -> bytes:
    head = (
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"; filename="row"\r\n'
        "Content-Type: application/octet-stream\r\n\r\n"
    )
    return head.encode() + data + f"\r\n--{BOUNDARY}--\r\n".encode()
