"""BentoML's service; its adaptive batching joins the arrays of several requests."""

import os
from pathlib import Path
from typing import Annotated, Any

import bentoml  # type: ignore[import-not-found]
import numpy as np
from bentoml.validators import DType, Shape  # type: ignore[import-not-found]
from peer_network import PeerNetwork  # type: ignore[import-not-found]

NETWORK = PeerNetwork(Path(os.environ["PEER_MODEL"]))
Batch = Annotated[np.ndarray, DType(NETWORK.dtype.name), Shape((-1, *NETWORK.row_shape))]


@bentoml.service(workers=1, http={"host": "127.0.0.1"}, metrics={"enabled": False})
class Network:
    """One row a request, a batch a call of `predict`."""

    @bentoml.api(batchable=True, max_batch_size=int(os.environ["PEER_MAX_BATCH"]))  # type: ignore[untyped-decorator]
    def predict(self, rows: Batch) -> np.ndarray:
        answer: np.ndarray[Any, Any] = NETWORK.run(rows)
        return answer
