"""The refusal of a breaking version names the callers that it breaks, at real servers."""

import json
import os
import signal
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
from tests.fixtures.redis_servers import redis_process, until_true
from tests.fixtures.servers import ServerProcess, processes, running_server
from tests.fixtures.split_servers import running_gateway, running_registry, running_worker

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
def store(tmp_path: Path) -> ModelStore:
    """Returns linear 1 in production, and 2, which takes 4 rows at most."""
    store = ModelStore(str(tmp_path / "store"))
    onnx_models.publish(store.url, "linear", onnx_models.linear(2.0))
    store.promote("linear", 1)
    onnx_models.publish(store.url, "linear", onnx_models.linear(3.0), max_batch_size=4)
    return store


@pytest.fixture
def server(store: ModelStore, tmp_path: Path, keys: dict[str, str]) -> Iterator[ServerProcess]:
    with running_server(Path(store.url), api_keys_file=str(tmp_path / "keys.yaml")) as found:
        yield found


def refusal(server: ServerProcess, key: str) -> str:
    """Has version 2 refused as the production one; returns the message."""
    headers = {"x-api-key": key, "content-type": "application/json"}
    path = "/v1/registry/models/linear/aliases/production"
    reply = call(server, "POST", path, b'{"version": 2}', headers)
    assert reply.status == 409, reply.body
    return reply.error()


def until_named(server: ServerProcess, boss: str, *callers: str) -> str:
    """Waits until a refusal names callers: processes report them every few seconds."""
    said = [""]

    def names_all() -> bool:
        said[0] = refusal(server, boss)
        return all(f"key:{name} (about " in said[0] for name in callers)

    until_true(names_all, every_s=0.2)
    return said[0]


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


def test_a_refusal_names_the_callers_of_all_edge_processes(
    store: ModelStore, tmp_path: Path, keys: dict[str, str]
) -> None:
    """Requests come by connections of their own, which the kernel spreads over the edges."""
    access = {"api_keys_file": str(tmp_path / "keys.yaml")}
    with running_server(Path(store.url), "--processes=2", **access) as server:
        for _ in range(16):
            for name in ("big", "grpc", "pinned"):
                infer(server, keys[name], 8)
            infer(server, keys["small"], 2)
        said = ""

        def counts_all() -> bool:
            nonlocal said
            try:
                said = refusal(server, keys["boss"])
            except ConnectionError:  # it was queued at the socket of the edge that is killed
                return False
            return said.count("(about 16 requests)") == 3

        # Each call meets one of the edges: once both have reported, all answers are the same.
        until_true(lambda: all(counts_all() for _ in range(12)), every_s=0.2)
        assert "callers of the last hour seen at this server whose requests break: " in said
        assert "key:small" not in said
        victim, _ = processes(server, "edge")
        os.kill(victim, signal.SIGKILL)
        until_true(counts_all, every_s=0.2)


def test_a_refusal_of_the_registry_names_the_callers_of_all_gateways(
    store: ModelStore, tmp_path: Path, keys: dict[str, str]
) -> None:
    access = {"api_keys_file": str(tmp_path / "keys.yaml")}
    with (
        redis_process() as redis,
        running_worker(Path(store.url), redis.url),
        running_gateway(redis.url, **access) as first,
        running_registry(store.url, redis.url, **access) as registry,
    ):
        first.wait_for_log(message="ready")
        with running_gateway(redis.url, **access) as second:
            second.wait_for_log(message="ready")
            infer(first, keys["big"], 8)
            infer(first, keys["small"], 2)
            with grpc.insecure_channel(second.grpc) as channel:
                infer_grpc(channel, keys["grpc"], 7)
            said = until_named(registry, keys["boss"], "big", "grpc")
        assert "callers of the last hour seen at the gateways whose requests break: " in said
        assert "key:small" not in said
        # A gateway that has ended leaves its report.
        assert "key:grpc (about 1 request)" in refusal(registry, keys["boss"])
        redis.stop()
        said = refusal(registry, keys["boss"])
        assert "max_batch_size falls from 64 to 4" in said
        assert "no gateway tells its callers: the queue fails (" in said
        redis.start()
        until_named(registry, keys["boss"], "big")
