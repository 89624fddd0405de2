"""The registry of a split server: a process beside gateways and workers, over REST and gRPC."""

import json
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from model_store.store import ModelStore
from protos.flambeau.v1 import registry_pb2 as pb
from services.access.api_keys import ApiKey, add_key, digest_of, new_key
from tests.e2e.grpc_calls import error_of, linear_request
from tests.e2e.rest_calls import call, infer, infer_path, linear_input, post
from tests.fixtures import onnx_models
from tests.fixtures.certificates import Authority
from tests.fixtures.command_forker import run_flambeau
from tests.fixtures.redis_servers import RedisProcess, redis_process, until_true
from tests.fixtures.split_servers import Part, running_gateway, running_registry, running_worker
from tests.fixtures.triton_messages import GRPCInferenceServiceStub

ROW = [1.0, 2.0, 3.0, 4.0]
SERVED_WITHIN_S = 2.0
"""From the answer of the registry to the first one by a loaded version, on an idle machine."""


@dataclass(frozen=True, kw_only=True)
class Split:
    """The processes of a split server, and what its callers hold."""

    store: ModelStore
    redis: RedisProcess
    worker: Part
    gateway: Part
    registry: Part
    authority: Authority
    keys: dict[str, Path]
    """Files of keys by name."""

    @property
    def url(self) -> str:
        return f"https://{self.registry.http}"

    def flambeau(self, key: str, *arguments: str) -> str:
        """Runs a command that calls the registry; returns its output."""
        options = ["--at", self.url, "--token-file", str(self.keys[key])]
        if arguments[0] == "push":
            options[0] = "--to"
        done = run_flambeau("--ca-file", self.authority.file, *arguments, *options)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def rest(self, key: str, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """Calls the registry over REST; returns status and document."""
        request = urllib.request.Request(
            f"{self.url}{path}",
            json.dumps(body).encode() if body is not None else None,
            {"x-api-key": self.keys[key].read_text(), "content-type": "application/json"},
            method=method,
        )
        trusted = ssl.create_default_context(cafile=str(self.authority.file))
        try:
            with urllib.request.urlopen(request, timeout=60, context=trusted) as reply:
                return reply.status, json.load(reply)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def channel(self) -> grpc.Channel:
        credentials = grpc.ssl_channel_credentials(self.authority.file.read_bytes())
        return grpc.secure_channel(self.registry.grpc, credentials)

    def version(self) -> int:
        """Returns the version that a gateway answers with; 0 if it knows no model yet."""
        reply = infer(self.gateway, "linear", linear_input(ROW))
        if reply.status in (404, 503):
            return 0
        version = int(reply.json()["model_version"])
        assert reply.outputs() == {"y": [version * x for x in ROW]}
        return version

    def served_after_s(self, version: int) -> float:
        """Waits until a gateway answers by a version, and returns the seconds that it took."""
        began = time.monotonic()
        until_true(lambda: self.version() == version, every_s=0.02)
        return time.monotonic() - began


def key_for(file: Path, name: str, *grants: str) -> str:
    secret = new_key()
    fields = {"name": name, "sha256": digest_of(secret).hex(), "grants": grants}
    add_key(file, ApiKey.model_validate(fields))
    return secret


@pytest.fixture
def source(tmp_path: Path) -> ModelStore:
    """Returns a store with versions 1 to 3 of `linear`, y = version * x."""
    found = ModelStore(str(tmp_path / "source"))
    for scale in (1.0, 2.0, 3.0):
        onnx_models.publish(found.url, "linear", onnx_models.linear(scale))
    return found


@pytest.fixture
def split(tmp_path: Path) -> Iterator[Split]:
    """Runs a split server whose registry speaks TLS and asks for keys."""
    store, file = ModelStore(str(tmp_path / "store")), tmp_path / "keys.yaml"
    keys = {}
    for name, grants in {
        "ci": ("push:linear", "read:linear"),
        "ops": ("read:linear", "promote:linear", "delete:linear", "infer:*"),
    }.items():
        keys[name] = tmp_path / f"{name}.key"
        keys[name].write_text(key_for(file, name, *grants))
    authority = Authority(tmp_path)
    pair = authority.issue("server")
    access = {
        "api_keys_file": str(file),
        "tls_certificate_file": str(pair.certificate),
        "tls_key_file": str(pair.key),
    }
    with (
        redis_process() as redis,
        running_worker(Path(store.url), redis.url) as worker,
        running_gateway(redis.url) as gateway,
        running_registry(store.url, redis.url, **access) as registry,
    ):
        yield Split(
            store=store, redis=redis, worker=worker, gateway=gateway, registry=registry,
            authority=authority, keys=keys,
        )  # fmt: skip


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[tuple[ModelStore, RedisProcess, Part]]:
    """Runs a registry, open to this machine, and a worker of its store."""
    store = ModelStore(str(tmp_path / "store"))
    for scale in (1.0, 2.0, 3.0):
        onnx_models.publish(store.url, "linear", onnx_models.linear(scale))
    store.promote("linear", 3)
    with (
        redis_process() as redis,
        running_worker(Path(store.url), redis.url, newest_versions=2),
        running_registry(store.url, redis.url, registry="open") as registry,
    ):
        until_true(lambda: index_of(registry)[0] == "whole")
        yield store, redis, registry


def index_of(registry: Part) -> tuple[str, list[tuple[str, str]]]:
    """Returns if the index of what is served is whole, and its versions with their states."""
    index = post(registry, "/v2/repository/index", {})
    said = str(index.headers["flambeau-index"])
    return said, [(one["version"], one["state"]) for one in index.json()]


def test_what_the_registry_takes_and_moves_is_served_by_the_gateways_within_two_seconds(
    source: ModelStore, split: Split
) -> None:
    told: list[str] = []
    with split.channel() as channel:
        watch = channel.unary_stream(
            "/flambeau.v1.Registry/WatchEvents",
            pb.WatchEventsRequest.SerializeToString,
            pb.RegistryEvent.FromString,
        )
        kind = pb.RegistryEvent.Kind
        metadata = (("x-api-key", split.keys["ops"].read_text()),)
        events = watch(pb.WatchEventsRequest(after="0"), metadata=metadata)

        def follow() -> None:
            try:
                for event in events:
                    told.append(f"{kind.Name(event.kind)[5:].lower()} {event.version}")
            except grpc.RpcError:
                return

        following = threading.Thread(target=follow, daemon=True)
        following.start()
        for version in ("1", "2", "3"):
            split.flambeau("ci", "push", f"linear/{version}", "--store", source.url)
        split.flambeau("ops", "models", "promote", "linear", "1", "--why", "the first")
        split.served_after_s(1)
        for number in (2, 3):
            split.worker.wait_for_log(message="version ready", model="linear", version=number)
        split.flambeau("ops", "models", "promote", "linear", "2")
        took_s = [split.served_after_s(2)]
        steps = ["--steps", "50%", "--every", "1h", "--mirror", "0%"]
        split.flambeau("ops", "rollout", "start", "linear", "3", *steps)
        took_s.append(split.served_after_s(3))
        split.served_after_s(2)
        split.flambeau("ops", "rollout", "promote", "linear", "--why", "enough")
        until_true(lambda: {split.version() for _ in range(8)} == {3})
        split.flambeau("ops", "models", "rollback", "linear")
        took_s.append(split.served_after_s(2))
        assert min(took_s) < SERVED_WITHIN_S, took_s
        wanted = {"pushed 1", "pushed 3", "promoted 1", "traffic 3", "promoted 3", "rolled_back 2"}
        until_true(lambda: wanted <= set(told))
        events.cancel()  # type: ignore[no-untyped-call]
        following.join()
    history = split.rest("ops", "GET", "/v1/registry/models/linear/history")[1]["moves"]
    assert {move["who"] for move in history} == {"key:ops"}
    refused = split.rest("ci", "POST", "/v1/registry/models/linear/aliases/production",
                         {"version": 1})  # fmt: skip
    assert refused[0] == 403
    audited = [log for log in split.registry.logs() if log["logger"] == "flambeau.audit"]
    acts = {(log["act"], log["target"], log["who"], log["outcome"]) for log in audited}
    assert ("push", "linear/1", "key:ci", "done") in acts
    assert ("rollout start", "linear/3", "key:ops", "done") in acts
    assert ("promote", "linear@production=1", "key:ci", "refused") in acts


def test_a_version_is_deleted_only_when_no_worker_holds_it(
    opened: tuple[ModelStore, RedisProcess, Part],
) -> None:
    store, redis, registry = opened
    held = call(registry, "DELETE", "/v1/registry/models/linear/versions/2")
    assert (held.status, "version 2 of 'linear' is served" in held.error()) == (409, True)
    redis.stop()
    registry.wait_for_log(message="the queue is unreachable")
    unknown = call(registry, "DELETE", "/v1/registry/models/linear/versions/1")
    assert (unknown.status, "the queue is unreachable" in unknown.error()) == (503, True)
    shown = call(registry, "GET", "/v1/registry/models/linear")
    assert shown.status == 200, "the store is there"
    assert call(registry, "GET", "/v2/health/ready").status == 200
    redis.start()
    until_true(
        lambda: call(registry, "DELETE", "/v1/registry/models/linear/versions/1").status == 200
    )
    assert store.versions("linear") == [2, 3]


def test_the_registry_runs_no_model_and_says_what_the_workers_have(
    opened: tuple[ModelStore, RedisProcess, Part],
) -> None:
    _, _, registry = opened
    refused = infer(registry, "linear", linear_input(ROW))
    assert (refused.status, "send inference to a gateway" in refused.error()) == (501, True)
    with grpc.insecure_channel(registry.grpc) as channel:
        stub = GRPCInferenceServiceStub(channel)
        code, words = error_of(lambda: stub.ModelInfer(linear_request(ROW), timeout=30))
    assert (code, "send inference to a gateway" in words) == (grpc.StatusCode.UNIMPLEMENTED, True)
    job = post(registry, infer_path("linear").replace("/infer", "/jobs"), {"inputs": []})
    assert job.status == 501
    assert index_of(registry) == ("whole", [("2", "READY"), ("3", "READY")])
    assert registry.metric("flambeau_fleet_workers") == 1


def test_an_index_is_partial_until_a_worker_has_read_the_store(tmp_path: Path) -> None:
    """Else `models prune --server` would take a server without workers for one that holds none."""
    store = ModelStore(str(tmp_path / "store"))
    onnx_models.publish(store.url, "linear", onnx_models.linear())
    with redis_process() as redis, running_registry(store.url, redis.url) as registry:
        assert call(registry, "GET", "/v2/health/ready").status == 200
        assert index_of(registry) == ("partial", [])


def test_a_registry_that_stops_ends_its_streams_and_exits_with_0(tmp_path: Path) -> None:
    store = ModelStore(str(tmp_path / "store"))
    onnx_models.publish(store.url, "linear", onnx_models.linear())
    with redis_process() as redis, running_registry(store.url, redis.url) as registry:
        stream = urllib.request.urlopen(f"http://{registry.http}/v1/registry/events", timeout=60)
        assert stream.readline().startswith(b": ")
        registry.ask_to_stop()
        began = time.monotonic()
        stream.read()
        assert time.monotonic() - began < 10
        assert registry.wait() == 0


def test_a_registry_that_strangers_would_reach_without_credentials_does_not_start(
    tmp_path: Path,
) -> None:
    command = ("registry", "--queue=redis://127.0.0.1:1", "--host=0.0.0.0")
    options = [f"--store={tmp_path}", "--http-port=0", "--grpc-port=0", "--metrics-port=0"]
    done = run_flambeau(*command, *options)
    assert done.returncode == 2
    assert "api_keys_file" in done.stderr
