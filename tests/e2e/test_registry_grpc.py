"""The registry of a real server over gRPC, by grpcio's client."""

import asyncio
import hashlib
import http.client
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from model_store.manifest import Manifest
from model_store.store import ModelStore
from protos.flambeau.v1 import registry_pb2 as pb
from services.access.api_keys import ApiKey, add_key, digest_of, new_key
from tests.e2e.grpc_calls import TIMEOUT_S, error_of
from tests.e2e.rest_calls import call
from tests.fixtures import onnx_models
from tests.fixtures.command_forker import run_flambeau
from tests.fixtures.redis_servers import redis_process
from tests.fixtures.servers import ServerProcess, running_processes, running_server
from tests.fixtures.split_servers import running_gateway, running_worker
from tests.fixtures.store_versions import draft_in
from tests.fixtures.uploads import version_bytes
from tests.fixtures.webhook_receiver import SECRET, Receiver

BIG_BYTES = 5 * 2**20
CODE = grpc.StatusCode


class Stub:
    """The calls of the service; what protoc's plugin for grpcio would generate."""

    def __init__(self, channel: grpc.Channel, key: str = "") -> None:
        self._channel = channel
        self._metadata = (("x-api-key", key),) if key else ()

    def __getattr__(self, method: str) -> Any:
        described = pb.DESCRIPTOR.services_by_name["Registry"].methods_by_name[method]
        reply = getattr(pb, described.output_type.name)
        kind = self._channel.unary_stream if described.server_streaming else (
            self._channel.unary_unary
        )  # fmt: skip
        request = getattr(pb, described.input_type.name)
        made = kind(f"/flambeau.v1.Registry/{method}", request.SerializeToString, reply.FromString)

        def send(**fields: Any) -> Any:
            return made(request(**fields), timeout=TIMEOUT_S, metadata=self._metadata)

        return send


def declared(files: dict[str, bytes]) -> list[pb.DeclaredFile]:
    return [
        pb.DeclaredFile(file=name, size_bytes=len(b), sha256=hashlib.sha256(b).hexdigest())
        for name, b in files.items()
    ]


def push(stub: Stub, files: dict[str, bytes], model: str = "linear", version: int = 1) -> Any:
    """Pushes a version in chunks of a MiB, and returns the last answer."""
    upload = stub.BeginUpload(model=model, version=version, files=declared(files))
    if upload.is_published:
        return upload
    for one in upload.files:
        send_rest(stub, upload.id, one, files[one.file])
    return stub.FinishUpload(id=upload.id, why="nightly")


def send_rest(stub: Stub, upload: str, state: Any, data: bytes) -> None:
    at = state.received
    while at < len(data):
        part = data[at : at + 2**20]
        at = stub.AppendChunk(id=upload, file=state.file, offset=at, data=part).received


def pulled(stub: Stub, **asked: Any) -> tuple[bytes, Any]:
    """Downloads a file; returns its bytes and the first chunk."""
    chunks = list(stub.Download(**asked))
    assert all(len(one.data) <= 2**20 for one in chunks)
    return b"".join(one.data for one in chunks), chunks[0]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> ModelStore:
    """Returns a store with two versions of linear, and one of digits with a large file."""
    found = ModelStore(str(tmp_path_factory.mktemp("source")))
    for scale in (2.0, 3.0):
        onnx_models.publish(found.url, "linear", onnx_models.linear(scale))
    folder = tmp_path_factory.mktemp("draft")
    found.publish(draft_in(folder, artifact=os.urandom(BIG_BYTES)), folder)
    return found


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Runs a server whose registry is open to this machine."""
    with running_server(tmp_path_factory.mktemp("target"), registry="open") as server:
        yield server


@pytest.fixture
def stub(server: ServerProcess) -> Iterator[Stub]:
    with grpc.insecure_channel(server.grpc) as channel:
        yield Stub(channel)


def acts(server: ServerProcess) -> set[tuple[str, str, str, str]]:
    found = [log for log in server.logs() if log["logger"] == "flambeau.audit"]
    return {(log["act"], log["target"], log["outcome"], log.get("why", "")) for log in found}


def test_push_promote_roll_back_describe_and_delete(
    source: ModelStore, server: ServerProcess, stub: Stub
) -> None:
    for version in (1, 2):
        files = version_bytes(source, "linear", version)
        done = push(stub, files, version=version)
        assert (done.model, done.version, done.is_published) == ("linear", version, True)
        assert stub.BeginUpload(model="linear", version=version, files=declared(files)).is_published
    for version in (1, 2):
        moved = stub.Promote(model="linear", alias="canary", version=version, why="ready")
        assert dict(moved.aliases) == {"canary": version}
    again = error_of(lambda: stub.Promote(model="linear", alias="canary", version=1, first=True))
    assert (again[0], "names version 2 already" in again[1]) == (CODE.ALREADY_EXISTS, True)
    assert stub.Rollback(model="linear", alias="canary").aliases["canary"] == 1
    moves = stub.ListMoves(model="linear", limit=2)
    assert [(m.generation, m.why) for m in moves.moves] == [(3, "rollback"), (2, "ready")]
    change = moves.moves[0].changes[0]
    assert (change.alias, change.before, change.after) == ("canary", 2, 1)
    rest = stub.ListMoves(model="linear", before=moves.next).moves
    assert [(m.generation, m.changes[0].before) for m in rest] == [(1, 0)]
    at = moves.moves[1].when.ToDatetime().isoformat()
    assert stub.GetAliases(model="linear", at=at).aliases["canary"] == 2
    assert stub.GetAliases(model="linear", at="2020-01-01").generation == 0

    noted = stub.Annotate(model="linear", version=1, description="doubles", tags={"team": "a"})
    assert (noted.description, dict(noted.tags)) == ("doubles", {"team": "a"})
    again = stub.Annotate(model="linear", version=1, tags={"b": "c"}, removed_tags=["team"])
    assert (again.description, dict(again.tags)) == ("doubles", {"b": "c"})
    shown = stub.GetVersion(model="linear", version="canary")
    assert (shown.version, shown.description, list(shown.aliases)) == (1, "doubles", ["canary"])
    assert Manifest.model_validate_json(shown.manifest_json) == source.manifest("linear", 1)
    report = version_bytes(source, "linear", 1)["report.json"]
    assert json.loads(shown.report_json) == json.loads(report)
    page = stub.GetModel(model="linear", limit=1)
    assert ([one.version for one in page.versions], page.next) == ([2], 2)
    assert page.versions[0].size_bytes == sum(
        entry.size_bytes for entry in source.manifest("linear", 2).all_files()
    )
    assert [one.version for one in stub.GetModel(model="linear", before=2).versions] == [1]
    listed = {one.name: one for one in stub.ListModels(limit=100).models}
    assert (listed["linear"].newest, dict(listed["linear"].aliases)) == (2, {"canary": 1})
    seen = acts(server)
    for act in (
        ("push", "linear/1", "done", "nightly"),
        ("promote", "linear@canary=2", "done", "ready"),
        ("rollback", "linear@canary", "done", "rollback"),
        ("annotate", "linear/1", "done", ""),
    ):
        assert act in seen


def test_an_upload_goes_on_where_its_connection_broke(
    source: ModelStore, server: ServerProcess
) -> None:
    files = version_bytes(source, "digits", 1)
    large = max(files, key=lambda name: len(files[name]))
    with grpc.insecure_channel(server.grpc) as channel:
        stub = Stub(channel)
        upload = stub.BeginUpload(model="digits", version=1, files=declared(files)).id
        stub.AppendChunk(id=upload, file=large, offset=0, data=files[large][: 2**20])
    with grpc.insecure_channel(server.grpc) as channel:
        stub = Stub(channel)
        state = stub.GetUpload(id=upload)
        received = {one.file: one.received for one in state.files}
        assert received[large] == 2**20
        ahead = error_of(lambda: stub.AppendChunk(id=upload, file=large, offset=5, data=b"x"))
        assert (ahead[0], f"go on at {2**20:,}" in ahead[1]) == (CODE.ALREADY_EXISTS, True)
        early = error_of(lambda: stub.FinishUpload(id=upload))
        assert (early[0], "send the rest" in early[1]) == (CODE.ALREADY_EXISTS, True)
        assert stub.BeginUpload(model="digits", version=1, files=declared(files)).id == upload
        push(stub, files, "digits")
        data, first = pulled(stub, model="digits", version="1", file=large)
        assert data == files[large]
        assert first.size_bytes == len(data)
        assert first.sha256 == hashlib.sha256(data).hexdigest()
        rest, _ = pulled(stub, model="digits", version="1", file=large, offset=BIG_BYTES - 10)
        assert rest == data[-10:]
        none, first = pulled(stub, model="digits", version="1", file=large, offset=BIG_BYTES)
        assert (none, first.size_bytes) == (b"", BIG_BYTES)
        whole = stub.Download(model="digits", version="1", file=large)
        next(iter(whole))
        whole.cancel()  # and the server goes on
        assert stub.GetModel(model="digits").versions[0].version == 1


def test_what_is_wrong_has_the_code_and_the_words_of_rest(
    source: ModelStore, server: ServerProcess, stub: Stub
) -> None:
    push(stub, version_bytes(source, "linear", 1))
    for send, code, words in (
        (lambda: stub.GetModel(model="none"), CODE.NOT_FOUND, "has no such model"),
        (lambda: stub.GetModel(model="../x"), CODE.NOT_FOUND, "not in the registry"),
        (lambda: stub.GetVersion(model="linear", version="77"), CODE.NOT_FOUND, "77"),
        (lambda: stub.ListModels(limit=101), CODE.INVALID_ARGUMENT, "give 1 to 100"),
        (lambda: stub.Promote(model="linear", alias="a"), CODE.INVALID_ARGUMENT, "'version' is 0"),
        (
            lambda: stub.Promote(model="linear", alias="a", version=1, why="x" * 501),
            CODE.INVALID_ARGUMENT, "give a shorter reason",
        ),
        (lambda: stub.GetUpload(id="0" * 32), CODE.NOT_FOUND, "begin it again"),
        (
            lambda: stub.AppendChunk(id="x", file="a", data=bytes(2**23 + 2**20)),
            CODE.RESOURCE_EXHAUSTED, "bytes",
        ),
        (
            lambda: stub.BeginUpload(model="evil", version=1, files=declared({"../a": b""})),
            CODE.INVALID_ARGUMENT, "'../a' is not allowed",
        ),
        (
            lambda: stub.BeginUpload(
                model="evil", version=1, files=[pb.DeclaredFile(file="a")] * 1100
            ),
            CODE.INVALID_ARGUMENT, "at most 1,024 files",
        ),
        (
            lambda: list(stub.Download(model="linear", version="1", file="claim.json")),
            CODE.NOT_FOUND, "is no file of linear 1",
        ),
        (
            lambda: list(
                stub.Download(model="linear", version="1", file="manifest.json", offset=2**40)
            ),
            CODE.INVALID_ARGUMENT, "begin within it",
        ),
    ):  # fmt: skip
        found = error_of(send)
        assert found[0] is code, found
        assert words in found[1]


def test_a_deletion_leaves_a_tombstone(source: ModelStore, tmp_path: Path) -> None:
    store = ModelStore(str(tmp_path))
    for scale in (2.0, 3.0, 4.0):
        onnx_models.publish(store.url, "linear", onnx_models.linear(scale))
    store.promote("linear", 3)
    with running_server(tmp_path, registry="open") as server:
        server.wait_for_log(message="version ready", model="linear", version=2)
        with grpc.insecure_channel(server.grpc) as channel:
            stub = Stub(channel)
            kept = error_of(lambda: stub.DeleteVersion(model="linear", version=3))
            assert (kept[0], "is served here" in kept[1]) == (CODE.ALREADY_EXISTS, True)
            gone = stub.DeleteVersion(model="linear", version=1, why="old")
            assert (gone.version, gone.why) == (1, "old")
            assert error_of(lambda: stub.GetVersion(model="linear", version="1"))[0] is (
                CODE.NOT_FOUND
            )
        assert ("delete", "linear/1", "done", "old") in acts(server)


def test_grants_are_those_of_rest(source: ModelStore, tmp_path: Path) -> None:
    keys, secrets = tmp_path / "keys.yaml", {}
    for name, grants in (("ci", ["push:lin*", "read:lin*", "promote:lin*@canary"]),
                         ("app", ["infer:*"])):  # fmt: skip
        secrets[name] = new_key()
        fields = {"name": name, "sha256": digest_of(secrets[name]).hex(), "grants": grants}
        add_key(keys, ApiKey.model_validate(fields))
    (tmp_path / "store").mkdir()
    files = version_bytes(source, "linear", 1)
    with (
        running_server(tmp_path / "store", api_keys_file=str(keys)) as server,
        grpc.insecure_channel(server.grpc) as channel,
    ):
        stranger, ci, app = (
            Stub(channel),
            Stub(channel, secrets["ci"]),
            Stub(channel, secrets["app"]),
        )
        assert error_of(stranger.ListModels)[0] is CODE.UNAUTHENTICATED
        assert error_of(lambda: list(stranger.Download()))[0] is CODE.UNAUTHENTICATED
        push(ci, files)
        assert error_of(lambda: push(ci, files, "digits"))[0] is CODE.NOT_FOUND
        assert ci.Promote(model="linear", alias="canary", version=1).generation == 1
        refused = error_of(lambda: ci.Promote(model="linear", alias="production", version=1))
        assert (refused[0], "'production'" in refused[1]) == (CODE.PERMISSION_DENIED, True)
        assert error_of(lambda: ci.DeleteVersion(model="linear", version=1))[0] is (
            CODE.PERMISSION_DENIED
        )
        assert list(app.ListModels().models) == []
        assert error_of(lambda: app.GetModel(model="linear"))[0] is CODE.NOT_FOUND


def test_a_gateway_without_a_store_says_the_words_of_rest(tmp_path: Path) -> None:
    with (
        redis_process() as redis,
        running_worker(tmp_path, redis.url),
        running_gateway(redis.url) as gateway,
        grpc.insecure_channel(gateway.grpc) as channel,
    ):
        stub = Stub(channel)
        rest = call(gateway, "GET", "/v1/registry/models")
        assert rest.status == 501
        for send in (stub.ListModels, lambda: list(stub.Download())):
            assert error_of(send) == (CODE.UNIMPLEMENTED, rest.error())


def test_events_by_server_sent_events_and_by_grpc(source: ModelStore, tmp_path: Path) -> None:
    with (
        running_server(tmp_path, registry="open") as server,
        grpc.insecure_channel(server.grpc) as channel,
    ):
        stub = Stub(channel)
        reading = http.client.HTTPConnection(server.http, timeout=TIMEOUT_S)
        reading.request("GET", "/v1/registry/events")
        told = reading.getresponse()
        assert told.headers.get_content_type() == "text/event-stream"
        push(stub, version_bytes(source, "linear", 1))
        stub.Promote(model="linear", alias="canary", version=1, why="ready")
        first, second = stub.WatchEvents(after="0"), []
        for event in first:
            second.append(event)
            if len(second) == 2:
                break
        pushed, promoted = second
        assert (pushed.kind, pushed.model, pushed.version) == (1, "linear", 1)
        assert (promoted.kind, promoted.why, promoted.changes[0].alias) == (2, "ready", "canary")
        lines = [told.readline().decode().rstrip() for _ in range(12)]
        documents = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
        assert [one["id"] for one in documents][:2] == [pushed.id, promoted.id]
        assert f"id: {pushed.id}" in lines
        assert "event: promoted" in lines
        again = http.client.HTTPConnection(server.http, timeout=TIMEOUT_S)
        again.request("GET", "/v1/registry/events", headers={"last-event-id": pushed.id})
        rest = again.getresponse()
        while not (line := rest.readline().decode()).startswith("id: "):
            assert line
        assert line == f"id: {promoted.id}\n"
        bad = call(server, "GET", "/v1/registry/events?after=x")
        assert (bad.status, "give the id of an event" in bad.error()) == (400, True)
        watch = stub.WatchEvents(after=promoted.id)
        server.ask_to_stop()
        assert error_of(lambda: next(watch))[0] is CODE.UNAVAILABLE
        assert "event: error" in told.read().decode()
        server.wait()
        reading.close()
        again.close()


def test_webhooks_of_the_settings_are_called(source: ModelStore, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(SECRET)
    (tmp_path / "store").mkdir()
    with Receiver() as receiver:
        settings = {
            "registry": "open",
            "registry_webhooks": [receiver.url],
            "webhook_secret_file": str(tmp_path / "secret"),
        }
        with (
            running_processes(tmp_path / "store", **settings) as server,
            grpc.insecure_channel(server.grpc) as channel,
        ):
            push(Stub(channel), version_bytes(source, "linear", 1))
            _, document = asyncio.run(receiver.call())
            assert (document["type"], document["data"]["model"]) == ("registry.pushed", "linear")
        assert receiver.calls.empty()
    command = ("serve", "--store", tmp_path / "store")
    for setting, words in (
        ("registry_webhooks=[http://127.0.0.1/x]", "set webhook_secret_file too"),
        ("registry_webhooks=[ftp://127.0.0.1/x]", "is no URL"),
    ):
        done = run_flambeau(*command, "--set", setting)
        assert (done.returncode, words in done.stderr) == (2, True), done.stderr
