"""mosec: a Rust front end, Python workers behind a Unix socket."""

from bench.peers.installed_peer import InstalledPeer
from bench.peers.peer import MAX_BATCH, WAIT_MS, Array, Ask, Form, Launch
from bench.peers.plain_json import BYTES_HEADERS, JSON_HEADERS, body_of_row, read_row
from bench.peers.running_server import free_addresses
from bench.peers.served_model import ServedModel


class Mosec(InstalledPeer):
    """One worker; the user's `deserialize` reads a body of bytes."""

    name = "mosec"
    service = "mosec_service.py"
    asked = f"`append_worker(num=1, max_batch_size={MAX_BATCH}, max_wait_time={WAIT_MS})`"
    forms = {Form.JSON: "JSON", Form.BINARY: "the row's bytes, answer in JSON"}  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__(["mosec==0.9.8"])

    def start(self, model: ServedModel) -> Launch:
        folder = self.folder_of(model)
        (address,) = free_addresses(1)
        host, port = address.split(":")
        return Launch(
            argv=(self._environment.python, self.service, "--address", host, "--port", port,
                  "--log-level", "warning", "--timeout", "30000"),
            folder=folder,
            http=address,
            environment={
                "PEER_MODEL": str(folder),
                "PEER_MAX_BATCH": str(MAX_BATCH),
                "PEER_WAIT_MS": str(WAIT_MS),
            },
        )  # fmt: skip

    def request(self, model: ServedModel, form: Form, rows: Array) -> Ask:
        as_json = form is Form.JSON
        return Ask(
            path="/inference",
            body=body_of_row(model, rows[0]) if as_json else rows[0].tobytes(),
            headers=JSON_HEADERS if as_json else BYTES_HEADERS,
            read=read_row,
        )
