"""LitServe's service. A body is JSON, or a form whose one file is a row's bytes."""

import os
from pathlib import Path
from typing import Any

import litserve  # type: ignore[import-not-found]
import numpy as np
from fastapi import Request  # type: ignore[import-not-found]
from peer_network import PeerNetwork  # type: ignore[import-not-found]


class Network(litserve.LitAPI):  # type: ignore[misc]
    """One row a request, a batch a call of `predict`."""

    def setup(self, device: str) -> None:
        self.network = PeerNetwork(Path(os.environ["PEER_MODEL"]))

    def decode_request(self, request: Request) -> Any:
        sent = request[self.network.input]
        if isinstance(sent, list):
            return self.network.row_from_list(sent)
        return self.network.row_from_bytes(sent.file.read())

    def batch(self, inputs: list[Any]) -> Any:
        return np.stack(inputs)

    def predict(self, batch: Any) -> Any:
        return self.network.run(batch)

    def unbatch(self, output: Any) -> Any:
        return list(output)

    def encode_response(self, output: Any) -> dict[str, Any]:
        return {self.network.output: output.tolist()}


if __name__ == "__main__":
    api = Network(
        max_batch_size=int(os.environ["PEER_MAX_BATCH"]),
        batch_timeout=int(os.environ["PEER_WAIT_MS"]) / 1000,
    )
    server = litserve.LitServer(
        api, accelerator="cpu", workers_per_device=1, fast_queue=os.environ.get("FAST") == "1"
    )
    server.run(
        host="127.0.0.1",
        port=int(os.environ["PEER_PORT"]),
        num_api_servers=1,
        generate_client_file=False,
        access_log=False,
        log_level="warning",
    )
