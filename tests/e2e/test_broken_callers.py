"""The refusal of a breaking version names the callers that it breaks, at a real server."""

import json
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest

from model_store.store import ModelStore
from services.access.api_keys import ApiKey, add_key, digest_of, new_key
from tests.e2e.grpc_calls import MODEL_INFER, error_of, linear_request
from tests.e2e.rest_calls import call
from tests.e2e.test_registry_grpc import Stub
from tests.fixtures import onnx_models
from tests.fixtures.command_forker import run_flambeau
from tests.fixtures.servers import ServerProcess, running_server

GRANTS = {
    "boss": ("read:linear", "promote:linear"),
    "big": ("infer:linear",),
    "grpc": ("infer:linear",),
    "small": ("infer:linear",),
    "pinned": ("infer:linear",),
}


@pytest.fixture
def keys(tmp_path: Path) -> dict[str, str]:
    """Writes a file of keys; returns the keys by name."""
    made = {name: new_key() for name in GRANTS}
    for name, key in made.items():
        document = {"name": name, "sha256": digest_of(key).hex(), "grants": GRANTS[name]}
        add_key(tmp_path / "keys.yaml", ApiKey.model_validate(document))
    return made


@pytest.fixture
def server(tmp_path: Path, keys: dict[str, str]) -> Iterator[ServerProcess]:
    """Runs a server with linear 1 in production, and 2, which takes 4 rows at most."""
    store = ModelStore(str(tmp_path / "store"))
    onnx_models.publish(store.url, "linear", onnx_models.linear(2.0))
    store.promote("linear", 1)
    onnx_models.publish(store.url, "linear", onnx_models.linear(3.0), max_batch_size=4)
    with running_server(Path(store.url), api_keys_file=str(tmp_path / "keys.yaml")) as found:
        yield found


def infer(server: ServerProcess, key: str, rows: int, path: str = "") -> None:
    data = np.ones((rows, 4), np.float32).tolist()
    given = {"name": "x", "datatype": "FP32", "shape": [rows, 4], "data": data}
    body = json.dumps({"inputs": [given]}).encode()
    reply = call(server, "POST", f"/v2/models/linear{path}/infer", body, {"x-api-key": key})
    assert reply.status == 200, reply.body


def infer_grpc(channel: grpc.Channel, key: str, rows: int) -> None:
    data = linear_request(*[[1.0] * 4] * rows).SerializeToString()
    channel.unary_unary(MODEL_INFER, None, None)(data, metadata=(("x-api-key", key),))


def test_a_refusal_names_the_callers_that_break(
    server: ServerProcess, keys: dict[str, str], tmp_path: Path
) -> None:
    for _ in range(3):
        infer(server, keys["big"], 8)
    infer(server, keys["small"], 2)
    infer(server, keys["pinned"], 9, "/versions/1")
    with grpc.insecure_channel(server.grpc) as channel:
        infer_grpc(channel, keys["grpc"], 7)
        promotion = error_of(lambda: Stub(channel, keys["boss"]).Promote(
            model="linear", alias="production", version=2
        ))  # fmt: skip
    said = [promotion[1]]
    headers = {"x-api-key": keys["boss"], "content-type": "application/json"}
    for path, wanted in (
        ("aliases/production", {"version": 2}),
        ("rollout", {"version": 2}),
        ("shadow", {"version": 2}),
    ):
        reply = call(
            server, "POST", f"/v1/registry/models/linear/{path}", json.dumps(wanted).encode(),
            headers,
        )  # fmt: skip
        assert reply.status == 409, reply.body
        said.append(reply.error())
    token = tmp_path / "token"
    token.write_text(keys["boss"])
    promote = ("models", "promote", "linear", "2")
    done = run_flambeau(*promote, "--at", f"http://{server.http}", "--token-file", token)
    assert done.returncode == 1
    for text in (*said, done.stderr):
        assert "max_batch_size falls from 64 to 4" in text
        assert "key:big (about 3 requests): the batch has 8 rows; at most 4 fit" in text, text
        assert "key:grpc (about 1 request): the batch has 7 rows" in text
        assert "key:small" not in text
        assert "key:pinned" not in text
