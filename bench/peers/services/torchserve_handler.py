"""TorchServe's handler. A body is either parsed JSON or a row's bytes."""

from pathlib import Path
from typing import Any

import numpy as np
from peer_network import PeerNetwork  # type: ignore[import-not-found]


class Handler:
    """Handler class of TorchServe, which calls `initialize` once and `handle` with a batch."""

    def initialize(self, context: Any) -> None:
        self.network = PeerNetwork(Path(context.system_properties["model_dir"]))

    def handle(self, data: list[dict[str, Any]], context: Any) -> list[Any]:
        rows = [self._row(item.get("body", item.get("data"))) for item in data]
        answer: list[Any] = self.network.run(np.stack(rows)).tolist()
        return answer

    def _row(self, body: Any) -> Any:
        if isinstance(body, dict):
            return self.network.row_from_list(body[self.network.input])
        return self.network.row_from_bytes(body)
