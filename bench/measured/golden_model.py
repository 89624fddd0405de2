"""A model to ask for, out of its golden rows: what to send, and what must come back.

In: a model of a store. Out: the `ServedModel` that `bench/peers` asks of every server; right
answers are the checkpoint's own, as the golden file has them.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from bench.measured.models import STORE
from bench.peers.answers import ask_once, check
from bench.peers.flambeau_peer import ROOT, Flambeau
from bench.peers.open_inference import infer
from bench.peers.peer import Array, Ask, Form, Launch, PeerError
from bench.peers.served_model import CHECKED_ROWS, ServedModel
from flambeau.server_process import ServerProcess
from model_store.golden import GoldenRows, parse_golden
from model_store.manifest import Manifest
from model_store.store import ModelStore

BENCH_STORE = STORE
TIMEOUT_HEADER = "X-Request-Timeout-Ms"
"""How long the caller of a REST request waits; a gRPC deadline travels with the call."""


def newest_manifest(store: ModelStore, model: str) -> Manifest:
    """The manifest of a model's newest version."""
    return store.manifest(model, store.versions(model)[-1])


def read_golden(store: ModelStore, manifest: Manifest) -> GoldenRows:
    """The golden rows of a version."""
    return parse_golden(store.read_file(manifest, manifest.golden.file), manifest)


def golden_model(store: ModelStore, manifest: Manifest, first: int = 0) -> ServedModel:
    """What to ask of a version with one input that must be given; no torch is needed for it.

    Args:
        store: where the version lies.
        manifest: of the version.
        first: the golden row to begin with. Where rows are padded there is only this one, cut to
            its own length.
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
    """A request for some rows.

    Args:
        model: what to ask.
        form: how it travels.
        rows: [rows, ...].
        timeout_ms: what a REST caller says it waits; 0 to say nothing.
    """
    ask = infer(model, form, rows)
    if not timeout_ms or form is Form.GRPC:
        return ask
    return replace(ask, headers={**ask.headers, TIMEOUT_HEADER: str(timeout_ms)})


def check_answers(server: ServerProcess, model: ServedModel, artifact: str) -> dict[Form, int]:
    """Asks for each golden row in every form.

    Returns:
        The bytes of a right answer, by form.

    Raises:
        PeerError: a wrong answer, or none.
    """
    return check(Flambeau("flambeau", artifact), _launch(server), model)


def first_answer(server: ServerProcess, model: ServedModel, artifact: str) -> None:
    """Asks for one golden row over REST.

    Raises:
        PeerError: a wrong answer, or none.
    """
    if why := ask_once(Flambeau("flambeau", artifact), _launch(server), model):
        raise PeerError(f"the server said it was ready and does not answer: {why}")


def served_artifact(manifest: Manifest, artifact: str) -> str:
    """The artifact a server takes: the one asked for, or else the fastest."""
    return artifact or manifest.artifacts_by_speed()[0].name


def http_request(ask: Ask) -> bytes:
    """The whole HTTP request, head and body."""
    headers: Mapping[str, str] = {"Host": "bench", **ask.headers}
    lines = [f"POST {ask.path} HTTP/1.1", *(f"{name}: {v}" for name, v in headers.items())]
    head = "\r\n".join([*lines, f"Content-Length: {len(ask.body)}", "", ""])
    return head.encode() + ask.body


def _launch(server: ServerProcess) -> Launch:
    return Launch(argv=(), folder=ROOT, http=server.http, grpc=server.grpc)
