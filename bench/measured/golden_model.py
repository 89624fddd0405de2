"""A served model built from golden rows: requests to send, and the expected responses.

In: a model of a store. Out: the `ServedModel` that `bench/peers` sends to every server; the
expected outputs are the checkpoint's own, as stored in the golden file.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from bench.measured.models import STORE
from bench.peers.answers import ask_once, check
from bench.peers.open_inference import infer
from bench.peers.peer import Array, Ask, Form, Launch, PeerError
from bench.peers.served_model import CHECKED_ROWS, ServedModel
from bench.peers.servers.flambeau_peer import ROOT, Flambeau
from flambeau.server_process import ServerProcess
from model_store.golden import GoldenRows, parse_golden
from model_store.manifest import Manifest
from model_store.store import ModelStore

BENCH_STORE = STORE
TIMEOUT_HEADER = "X-Request-Timeout-Ms"
"""Header with the timeout of a REST request; a gRPC deadline travels with the call."""


def newest_manifest(store: ModelStore, model: str) -> Manifest:
    """Reads the manifest of a model's newest version."""
    return store.manifest(model, store.versions(model)[-1])


def read_golden(store: ModelStore, manifest: Manifest) -> GoldenRows:
    """Reads the golden rows of a version."""
    return parse_golden(store.read_file(manifest, manifest.golden.file), manifest)


def golden_model(store: ModelStore, manifest: Manifest, first: int = 0) -> ServedModel:
    """Returns the requests for a version with one required input; needs no torch.

    Args:
        store: model store of the version.
        manifest: manifest of the version.
        first: index of the first golden row. A padded input uses only this row, cut to its own
            length.
    """
    golden = read_golden(store, manifest)
    spec, output = manifest.signature.inputs[0], manifest.signature.outputs[0]
    padding = manifest.signature.padding
    chosen = slice(first, first + (CHECKED_ROWS if padding is None else 1))
    rows = golden.inputs[spec.name][chosen]
    if padding is not None and padding.mask is not None:
        rows = rows[:, : int(golden.inputs[padding.mask][first].sum())]
    return ServedModel(
        name=manifest.model,
        network="",
        input=spec.name,
        output=output.name,
        datatype=spec.datatype,
        row_shape=rows.shape[1:],
        clients=(),
        store=store.url,
        rows=rows,
        expected=golden.outputs[output.name][chosen].astype(np.float32),
        weights=b"",
    )


def ask_for(model: ServedModel, form: Form, rows: Array, timeout_ms: int = 0) -> Ask:
    """Builds a request for some rows.

    Args:
        model: target of the request.
        form: protocol and body.
        rows: [rows, ...].
        timeout_ms: timeout that a REST request states; 0 for none.
    """
    ask = infer(model, form, rows)
    if not timeout_ms or form is Form.GRPC:
        return ask
    return replace(ask, headers={**ask.headers, TIMEOUT_HEADER: str(timeout_ms)})


def check_answers(server: ServerProcess, model: ServedModel, artifact: str) -> dict[Form, int]:
    """Sends each golden row in every form, and compares the outputs.

    Returns:
        The size of a correct response in bytes, by form.

    Raises:
        PeerError: a response is wrong or missing.
    """
    return check(Flambeau("flambeau", artifact), _launch(server), model)


def first_answer(server: ServerProcess, model: ServedModel, artifact: str) -> None:
    """Sends one golden row over REST.

    Raises:
        PeerError: the response is wrong or missing.
    """
    if why := ask_once(Flambeau("flambeau", artifact), _launch(server), model):
        raise PeerError(f"the server said it was ready and does not answer: {why}")


def served_artifact(manifest: Manifest, artifact: str) -> str:
    """Returns the artifact that a server selects: the requested one, or else the fastest."""
    return artifact or manifest.artifacts_by_speed()[0].name


def http_request(ask: Ask) -> bytes:
    """Returns the whole HTTP request, head and body."""
    headers: Mapping[str, str] = {"Host": "bench", **ask.headers}
    lines = [f"POST {ask.path} HTTP/1.1", *(f"{name}: {v}" for name, v in headers.items())]
    head = "\r\n".join([*lines, f"Content-Length: {len(ask.body)}", "", ""])
    return head.encode() + ask.body


def _launch(server: ServerProcess) -> Launch:
    return Launch(argv=(), folder=ROOT, http=server.http, grpc=server.grpc)
