"""mosec's service. A body as long as a row's bytes is one; anything else is JSON."""

import os
from pathlib import Path
from typing import Any

import numpy as np
from mosec import Server, Worker  # type: ignore[import-not-found]
from peer_network import PeerNetwork  # type: ignore[import-not-found]


class Network(Worker):  # type: ignore[misc]
    """One row a request, a batch a call of `forward`."""

    def __init__(self) -> None:
        super().__init__()
        self.network = PeerNetwork(Path(os.environ["PEER_MODEL"]))

    def deserialize(self, data: bytes) -> Any:
        if len(data) == self.network.row_bytes:
            return self.network.row_from_bytes(data)
        return self.network.row_from_list(super().deserialize(data)[self.network.input])

    def forward(self, data: list[Any]) -> list[Any]:
        answers = self.network.run(np.stack(data)).tolist()
        return [{self.network.output: row} for row in answers]


if __name__ == "__main__":
    server = Server()
    server.append_worker(
        Network,
        num=1,
        max_batch_size=int(os.environ["PEER_MAX_BATCH"]),
        max_wait_time=int(os.environ["PEER_WAIT_MS"]),
    )
    server.run()
