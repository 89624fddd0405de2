"""The models that every server serves, as files that need only torch and safetensors.

In: a model of the bench store. Out: a folder with its weights, the code of the networks, and
`model.json`; and rows to send, with torch's outputs for them.
"""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.measured import networks
from bench.peers.services import peer_network
from model_store.golden import parse_golden
from model_store.store import ModelStore

CHECKED_ROWS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """One model with one input and one output."""

    name: str
    """Name in the store and in every server."""
    network: str
    """Class in `bench/measured/networks.py`."""
    input: str
    output: str
    datatype: str
    """Datatype of the input, as named by the Open Inference Protocol."""
    row_shape: tuple[int, ...]
    clients: tuple[int, ...]
    """Numbers of concurrent clients, one figure each."""
    store: str
    """URL of the bench store."""
    rows: NDArray[Any]
    """[CHECKED_ROWS, *row_shape]: rows of the requests."""
    expected: NDArray[np.float32]
    """[CHECKED_ROWS, classes]: outputs of torch."""
    weights: bytes
    """Weights in safetensors format."""

    def write_to(self, folder: Path) -> None:
        """Writes all files that a peer needs to load it, see `services/peer_network.py`."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "weights.safetensors").write_bytes(self.weights)
        description = {
            "network": self.network,
            "input": self.input,
            "output": self.output,
            "dtype": self.rows.dtype.name,
            "row_shape": self.row_shape,
        }
        (folder / "model.json").write_text(json.dumps(description))
        for module in (networks, peer_network):
            assert module.__file__
            shutil.copy(module.__file__, folder)


CLIENTS: dict[str, tuple[int, ...]] = {"tiny-mlp": (1, 32, 64), "cnn": (32,), "encoder": (32,)}
"""The measured models, and their numbers of concurrent clients."""


def served_model(url: str, name: str, clients: tuple[int, ...] | None = None) -> ServedModel:
    """Loads a model's weights from the bench store and computes outputs of golden rows with torch.

    Args:
        url: URL of the bench store.
        name: one of `CLIENTS`.
        clients: replacement for the default numbers of clients.

    Raises:
        StoreError: the store does not hold the model.
    """
    import torch
    from safetensors.torch import save

    from bench.measured.models import load_network

    store = ModelStore(url)
    manifest = store.manifest(name, store.versions(name)[-1])
    signature = manifest.signature
    golden = parse_golden(store.read_file(manifest, manifest.golden.file), manifest)
    rows = _as_written_in_json(golden.inputs[signature.inputs[0].name][:CHECKED_ROWS])
    network = load_network(url, name)
    with torch.inference_mode():
        expected = network(torch.from_numpy(rows)).numpy()
    return ServedModel(
        name=name,
        network=type(network).__name__,
        input=signature.inputs[0].name,
        output=signature.outputs[0].name,
        datatype=signature.inputs[0].datatype,
        row_shape=rows.shape[1:],
        clients=clients or CLIENTS[name],
        store=url,
        rows=rows,
        expected=expected,
        weights=save({k: v.contiguous() for k, v in network.state_dict().items()}),
    )


def _as_written_in_json(rows: NDArray[Any]) -> NDArray[Any]:
    """Rounds to four decimals, so that JSON bodies have the length of typical clients' bodies."""
    return rows.astype(np.float64).round(4).astype(rows.dtype) if rows.dtype.kind == "f" else rows
