"""The registry of a real server, by the command line and over HTTP."""

import contextlib
import hashlib
import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest

from model_store.manifest import Manifest
from model_store.store import ModelStore
from services.access.api_keys import ApiKey, add_key, digest_of, new_key
from tests.e2e.rest_calls import Reply, call
from tests.fixtures import onnx_models
from tests.fixtures.command_forker import run_flambeau
from tests.fixtures.servers import COMMAND, ROOT, ServerProcess, running_processes, running_server
from tests.fixtures.signing import key_in, signer_in
from tests.fixtures.store_versions import draft_in
from tests.fixtures.uploads import version_bytes

AS_JSON = {"content-type": "application/json"}
BIG_BYTES = 40 * 2**20


def flambeau(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """Runs a command to its end."""
    return run_flambeau(*arguments)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> ModelStore:
    """Returns a store with two versions of linear, and one of digits with a large file."""
    found = ModelStore(str(tmp_path_factory.mktemp("source")))
    onnx_models.publish(found.url, "linear", onnx_models.linear(2.0))
    onnx_models.publish(found.url, "linear", onnx_models.linear(3.0))
    folder = tmp_path_factory.mktemp("draft")
    found.publish(draft_in(folder, artifact=os.urandom(BIG_BYTES)), folder)
    return found


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Runs a server whose registry is open to this machine."""
    with running_server(tmp_path_factory.mktemp("target"), registry="open") as server:
        yield server


def at(server: ServerProcess, path: str) -> Reply:
    return call(server, "GET", f"/v1/registry/{path}")


def push(server: ServerProcess, source: ModelStore, version: str) -> dict[str, object]:
    done = flambeau(
        "push", version, "--to", f"http://{server.http}", "--store", source.url, "--json"
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


def acts(server: ServerProcess) -> list[tuple[str, str, str, str]]:
    found = [log for log in server.logs() if log["logger"] == "flambeau.audit"]
    return [(log["act"], log["target"], log["outcome"], log.get("why", "")) for log in found]


def test_push_promote_serve_roll_back_and_pull(
    source: ModelStore, server: ServerProcess, tmp_path: Path
) -> None:
    url = f"http://{server.http}"
    first = push(server, source, "linear/1")
    assert (first["files_copied"], first["files_skipped"]) == (4, 0)
    second = push(server, source, "linear/2")
    assert (second["files_copied"], second["files_skipped"]) == (3, 1)
    assert push(server, source, "linear/2")["files_copied"] == 0
    for version in ("1", "2"):
        moved = flambeau("models", "promote", "linear", version, "--at", url, "--why", "ready")
        assert moved.returncode == 0, moved.stderr
    server.wait_for_log(message="version ready", model="linear", version=2)
    assert at(server, "models/linear").json()["aliases"] == {"production": 2}
    refused = flambeau("models", "promote", "linear", "9", "--at", url)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "model 'linear' has no version 9" in refused.stderr
    back = flambeau("models", "rollback", "linear", "--at", url)
    assert back.stdout == "linear production → 1 (generation 3)\n"
    pulled = flambeau("pull", "linear", "--from", url, "--store", str(tmp_path / "pulled"))
    assert pulled.returncode == 0, pulled.stderr
    copy = ModelStore(str(tmp_path / "pulled"))
    assert version_bytes(copy, "linear", 1) == version_bytes(source, "linear", 1)
    seen = acts(server)
    for act in (
        ("push", "linear/1", "done", ""),
        ("promote", "linear@production=2", "done", "ready"),
        ("promote", "linear@production=9", "refused", ""),
        ("rollback", "linear@production", "done", "rollback"),
        ("download", "linear/1/manifest.json", "done", ""),
    ):
        assert act in seen


def test_what_the_registry_shows(source: ModelStore, server: ServerProcess) -> None:
    push(server, source, "linear/1")
    push(server, source, "linear/2")
    models = at(server, "models?limit=100").json()["models"]
    assert next(one for one in models if one["name"] == "linear")["newest"] == 2
    page = at(server, "models/linear?limit=1").json()
    assert ([one["version"] for one in page["versions"]], page["next"]) == ([2], 2)
    rest = at(server, "models/linear?before=2").json()
    assert ([one["version"] for one in rest["versions"]], rest["next"]) == ([1], None)
    noted = b'{"description": "doubles", "tags": {"team": "a"}}'
    changed = call(server, "PATCH", "/v1/registry/models/linear/versions/1", noted, AS_JSON)
    assert changed.status == 200
    shown = at(server, "models/linear/versions/1").json()
    assert (shown["description"], shown["tags"]) == ("doubles", {"team": "a"})
    assert Manifest.model_validate(shown["manifest"]) == source.manifest("linear", 1)
    assert shown["report"] == json.loads(version_bytes(source, "linear", 1)["report.json"])
    part = call(
        server, "GET", "/v1/registry/models/linear/versions/1/files/manifest.json",
        headers={"range": "bytes=2-11"},
    )  # fmt: skip
    sealed = version_bytes(source, "linear", 1)["manifest.json"]
    assert (part.status, part.body) == (206, sealed[2:12])
    assert part.headers["content-range"] == f"bytes 2-11/{len(sealed)}"
    for path in ("models/none", "models/linear/versions/7", "uploads/nothing", "none"):
        assert at(server, path).status == 404
    gone = at(server, "models/linear/versions/1/files/claim.json")
    assert (gone.status, "is no file of linear 1" in gone.error()) == (404, True)


def test_the_history_and_the_aliases_at_a_time(source: ModelStore, tmp_path: Path) -> None:
    store = ModelStore(str(tmp_path))
    for scale in (2.0, 3.0):
        onnx_models.publish(store.url, "linear", onnx_models.linear(scale))
    for version, alias in ((1, "production"), (2, "canary"), (2, "production")):
        store.promote("linear", version, alias, why=f"{alias} {version}", who="ann")
    first, second, third = (one.when.isoformat() for one in store.history("linear"))
    with running_server(tmp_path, registry="open") as server:
        url = f"http://{server.http}"
        arguments = ("models", "history", "linear", "--server", url)
        there = flambeau(*arguments)
        here = flambeau("models", "history", "linear", "--store", store.url)
        assert there.returncode == 0, there.stderr
        assert there.stdout == here.stdout
        page = at(server, "models/linear/history?limit=2").json()
        assert [one["generation"] for one in page["moves"]] == [3, 2]
        assert page["moves"][0]["changes"] == [{"alias": "production", "from": 1, "to": 2}]
        rest = at(server, f"models/linear/history?before={page['next']}").json()
        assert ([one["generation"] for one in rest["moves"]], rest["next"]) == ([1], None)
        for when, aliases in (
            (first, {"production": 1}),
            (second, {"production": 1, "canary": 2}),
            (third, {"production": 2, "canary": 2}),
            ("2020-01-01T00:00", {}),
        ):
            done = flambeau(*arguments, "--at", when, "--json")
            assert json.loads(done.stdout)["aliases"] == aliases
        shown = flambeau(*arguments, "--at", second)
        assert "by ann: canary 2\n" in shown.stdout
        bad = at(server, "models/linear/history?at=2026-11-01T12:00+01:00")
        assert (bad.status, "in a URL %2B01:00" in bad.error()) == (400, True)


def test_openapi_describes_the_answers(source: ModelStore, server: ServerProcess) -> None:
    push(server, source, "linear/1")
    document = call(server, "GET", "/openapi.json").json()
    promoted = call(
        server, "POST", "/v1/registry/models/linear/aliases/described", b'{"version": 1}', AS_JSON
    )
    assert promoted.status == 200
    begun = begin(server, {"manifest.json": b"another version of linear"}, version=9)
    upload = begun.json()["id"]
    call(server, "PUT", f"/v1/registry/uploads/{upload}/files/manifest.json?offset=0", b"another")
    shown = {
        "RegistryModels": at(server, "models"),
        "RegistryModel": at(server, "models/linear"),
        "RegistryVersion": at(server, "models/linear/versions/1"),
        "RegistryHistory": at(server, "models/linear/history"),
        "RegistryMove": promoted,
        "RegistryUpload": at(server, f"uploads/{upload}"),
    }
    for name, reply in shown.items():
        schema = {**document["components"]["schemas"][name], "components": document["components"]}
        jsonschema.Draft202012Validator(schema).validate(reply.json())
        known = set(schema["properties"])
        assert set(reply.json()) - {"schema_version"} <= known, name


class SlowLine:
    """A proxy that closes all connections after some bytes to the server; then it stops."""

    def __init__(self, port: int, bytes_until_break: int) -> None:
        self._port, self._left = port, bytes_until_break
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.broken = threading.Event()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self._port))
            threading.Thread(target=self._copy, args=(far, near, False), daemon=True).start()
            threading.Thread(target=self._copy, args=(near, far, True), daemon=True).start()

    def _copy(self, source: socket.socket, target: socket.socket, is_counted: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(2**16):
                target.sendall(data)
                if is_counted and not self.broken.is_set():
                    self._left -= len(data)
                    if self._left < 0:
                        self.broken.set()
                        break
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def close(self) -> None:
        self._listener.close()


def test_a_push_survives_a_broken_connection_within_one_command(
    source: ModelStore, tmp_path: Path
) -> None:
    with running_server(tmp_path, registry="open") as server:
        line = SlowLine(server.http_port, BIG_BYTES // 2)
        done = flambeau(
            "push", "digits/1", "--to", f"http://127.0.0.1:{line.port}", "--store", source.url
        )
        line.close()
        assert line.broken.is_set()
        assert done.returncode == 0, done.stderr
    found = ModelStore(str(tmp_path))
    found.read_file(found.manifest("digits", 1), found.manifest("digits", 1).artifacts[0].file)


def test_a_killed_push_and_a_killed_server_go_on(source: ModelStore, tmp_path: Path) -> None:
    """Each end is killed in the middle; no byte that has arrived is sent again."""
    arguments = ("push", "digits/1", "--store", source.url)
    with running_server(tmp_path, registry="open") as server:
        server.expected_code = -signal.SIGKILL
        command = [COMMAND, *arguments, "--to", f"http://{server.http}"]
        pusher = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
        before = arrived(tmp_path, 2**23)
        pusher.kill()
        pusher.communicate()
        server.process.kill()
        server.wait()
    assert ModelStore(str(tmp_path)).models() == []
    with running_server(tmp_path, registry="open") as server:
        done = flambeau(*arguments, "--to", f"http://{server.http}", "--json")
        assert done.returncode == 0, done.stderr
        total = source.manifest("digits", 1)
        size = sum(entry.size_bytes for entry in total.all_files())
        assert json.loads(done.stdout)["bytes_copied"] <= size + 2**15 - before
    copy = ModelStore(str(tmp_path))
    assert version_bytes_of(copy) == version_bytes_of(source)
    assert os.listdir(tmp_path / ".uploads") == [".lock"]


def arrived(store: Path, at_least: int) -> int:
    """Waits until a server has some bytes of an upload; returns their number."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        sizes = [path.stat().st_size for path in store.glob(".uploads/*/store/*/*/model.onnx")]
        if sum(sizes) >= at_least:
            return sum(sizes)
        os.sched_yield()
    raise AssertionError("no bytes have arrived")


def version_bytes_of(store: ModelStore) -> dict[str, str]:
    return {entry.file: entry.sha256 for entry in store.manifest("digits", 1).all_files()}


def begin(server: ServerProcess, files: dict[str, bytes], key: str = "", version: int = 1) -> Reply:
    document = {
        "model": "linear", "version": version,
        "files": [
            {"file": name, "size_bytes": len(b), "sha256": hashlib.sha256(b).hexdigest()}
            for name, b in files.items()
        ],
    }  # fmt: skip
    headers = {**AS_JSON, **({"x-api-key": key} if key else {})}
    return call(server, "POST", "/v1/registry/uploads", json.dumps(document).encode(), headers)


def test_bad_uploads_are_named_and_nothing_is_visible(source: ModelStore, tmp_path: Path) -> None:
    files = version_bytes(source, "linear", 1)
    with running_server(tmp_path, registry="open") as server:
        climbing = begin(server, {**files, "../../evil": b"x"})
        assert climbing.status == 400
        assert "'../../evil' is not allowed" in climbing.error()
        upload = begin(server, files).json()["id"]
        path = f"/v1/registry/uploads/{upload}"
        climbing = call(server, "PUT", f"{path}/files/..%2F..%2Fevil?offset=0", b"x")
        assert climbing.status in (400, 404)
        early = call(server, "POST", f"{path}/finish", b"{}", AS_JSON)
        assert (early.status, "send the rest" in early.error()) == (409, True)
        ahead = call(server, "PUT", f"{path}/files/manifest.json?offset=5", b"x")
        assert (ahead.status, "go on at 0" in ahead.error()) == (409, True)
        large = call(server, "PUT", f"{path}/files/manifest.json?offset=0", b"x" * (2**23 + 1))
        assert large.status == 413
        for name, data in files.items():
            sent = data if name != "golden.safetensors" else bytes([data[0] ^ 1]) + data[1:]
            assert call(server, "PUT", f"{path}/files/{name}?offset=0", sent).status == 200
        flipped = call(server, "POST", f"{path}/finish", b"{}", AS_JSON)
        assert flipped.status == 400
        assert "'golden.safetensors' arrived with sha256" in flipped.error()
        asked = call(server, "POST", f"{path}/finish", b"{}", {"content-type": "text/plain"})
        assert (asked.status, "application/json" in asked.error()) == (400, True)
        assert call(server, "DELETE", path).status == 204
        assert at(server, "models").json()["models"] == []
    assert not (tmp_path.parent / "evil").exists()


def test_a_served_or_live_version_is_not_deleted(source: ModelStore, tmp_path: Path) -> None:
    store = ModelStore(str(tmp_path))
    for scale in (2.0, 3.0, 4.0):
        onnx_models.publish(store.url, "linear", onnx_models.linear(scale))
    store.promote("linear", 3)
    with running_server(tmp_path, registry="open") as server:
        for version in (2, 3):
            server.wait_for_log(message="version ready", model="linear", version=version)
            kept = call(server, "DELETE", f"/v1/registry/models/linear/versions/{version}")
            assert (kept.status, "is served here" in kept.error()) == (409, True)
        other = 1
        path = f"/v1/registry/models/linear/versions/{other}"
        gone = call(server, "DELETE", f"{path}?why=old")
        assert gone.status == 200, gone.body
        assert call(server, "GET", path).status == 404
        assert ("delete", f"linear/{other}", "done", "old") in acts(server)
        promoted = call(
            server, "POST", "/v1/registry/models/linear/aliases/production",
            json.dumps({"version": other}).encode(), AS_JSON,
        )  # fmt: skip
        assert (promoted.status, "was deleted" in promoted.error()) == (409, True)


def test_pruning_keeps_what_a_server_holds(tmp_path: Path) -> None:
    store = ModelStore(str(tmp_path))
    for scale in (2.0, 3.0, 4.0, 5.0):
        onnx_models.publish(store.url, "linear", onnx_models.linear(scale))
    store.promote("linear", 4)
    arguments = ("models", "prune", "--store", store.url, "--keep-newest", "1", "--keep-days", "0")
    with running_server(tmp_path, registry="open", newest_versions="2") as server:
        for version in (3, 4):
            server.wait_for_log(message="version ready", model="linear", version=version)
        url = f"http://{server.http}"
        plan = flambeau(*arguments, "--server", url, "--json")
        assert plan.returncode == 0, plan.stderr
        assert [one["reasons"] for one in json.loads(plan.stdout)["versions"]] == [
            [], [], [f"held by {url}"],
            ["alias production", f"held by {url}", "among the newest 1"],
        ]  # fmt: skip
        done = flambeau(*arguments, "--server", url, "--yes")
        assert done.returncode == 0, done.stderr
        assert [line.split(" (")[0] for line in done.stdout.splitlines()] == [
            "deleted linear 1", "deleted linear 2"
        ]  # fmt: skip
    assert store.versions("linear") == [3, 4]
    away = flambeau(*arguments, "--server", url, "--yes")
    assert (away.returncode, away.stdout) == (1, "")
    assert f"no answer from {url}" in away.stderr
    assert store.versions("linear") == [3, 4]


def test_a_key_that_does_not_see_all_models_prunes_none(tmp_path: Path) -> None:
    store, keys = ModelStore(str(tmp_path / "store")), tmp_path / "keys.yaml"
    for scale in (2.0, 3.0):
        onnx_models.publish(store.url, "linear", onnx_models.linear(scale))
    for name, grants in (("some", ["infer:lin*", "infer:?"]), ("all", ["manage:*"])):
        (tmp_path / name).write_text(key_for(keys, name, *grants))
    with running_server(tmp_path / "store", api_keys_file=str(keys)) as server:
        arguments = (
            "models", "prune", "--store", store.url, "--server", f"http://{server.http}"
        )  # fmt: skip
        some = flambeau(*arguments, "--token-file", str(tmp_path / "some"))
        assert some.returncode == 1
        assert "your key does not have infer or manage on all models" in some.stderr
        whole = flambeau(*arguments, "--token-file", str(tmp_path / "all"))
        assert (whole.returncode, whole.stderr) == (0, "")


def key_for(file: Path, name: str, *grants: str) -> str:
    secret = new_key()
    fields = {"name": name, "sha256": digest_of(secret).hex(), "grants": grants}
    add_key(file, ApiKey.model_validate(fields))
    return secret


def test_grants_by_model_and_alias(source: ModelStore, tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    pusher = key_for(keys, "ci", "push:lin*", "read:lin*", "promote:lin*@canary")
    caller = key_for(keys, "app", "infer:*")
    (tmp_path / "store").mkdir()
    with running_server(tmp_path / "store", api_keys_file=str(keys)) as server:
        url = f"http://{server.http}"
        (tmp_path / "ci").write_text(pusher)
        token = ("--token-file", str(tmp_path / "ci"))
        arguments = ("push", "linear/1", "--to", url, "--store", source.url)
        stranger = flambeau(*arguments)
        assert stranger.returncode == 1
        assert "give a key with --token-file FILE" in stranger.stderr
        done = flambeau(*arguments, *token, "--why", "nightly")
        assert done.returncode == 0, done.stderr
        other = flambeau("push", "digits/1", "--to", url, "--store", source.url, *token)
        assert (other.returncode, "'digits' is not in the registry" in other.stderr) == (1, True)
        for alias, code in (("canary", 0), ("production", 1)):
            moved = flambeau(
                "models", "promote", "linear", "1", "--at", url, "--alias", alias, *token
            )
            assert moved.returncode == code, moved.stderr
        seen = call(server, "GET", "/v1/registry/models/linear", headers={"x-api-key": caller})
        assert seen.status == 404
        audited = [log for log in server.logs() if log["logger"] == "flambeau.audit"]
        one = next(log for log in audited if log["act"] == "push")
        assert (one["who"], one["peer"], one["why"]) == ("key:ci", "127.0.0.1", "nightly")
        refused = next(log for log in audited if log["target"] == "linear@production=1")
        assert (refused["outcome"], refused["who"]) == ("refused", "key:ci")


def test_without_credentials_the_registry_is_only_read(source: ModelStore, tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        arguments = ("push", "linear/1", "--to", f"http://{server.http}", "--store", source.url)
        done = flambeau(*arguments)
        assert done.returncode == 1
        assert "'push' in the registry needs a credential" in done.stderr
        assert at(server, "models").json() == {"models": [], "next": None}
    with running_server(tmp_path, registry="off") as server:
        assert at(server, "models").status == 501


def test_a_foreign_signature_is_refused(source: ModelStore, tmp_path: Path) -> None:
    key_in(tmp_path / "ada", "ada")
    key_in(tmp_path / "eve", "eve")
    foreign = ModelStore(str(tmp_path / "foreign"))
    folder = tmp_path / "draft"
    foreign.publish(draft_in(folder), folder, sign=signer_in(tmp_path / "eve"))
    (tmp_path / "store").mkdir()
    settings = {
        "registry": "open",
        "trusted_keys": str(tmp_path / "ada" / "trusted"),
        "signature_needed_for": "everything",
    }
    with running_server(tmp_path / "store", **settings) as server:
        done = flambeau("push", "digits/1", "--to", f"http://{server.http}", "--store", foreign.url)
        assert done.returncode == 1
        assert "error: version 1 of 'digits'" in done.stderr
        assert "trusted" in done.stderr
        assert at(server, "models").json()["models"] == []


def test_every_edge_process_takes_part_of_one_upload(source: ModelStore, tmp_path: Path) -> None:
    """Each call opens a connection, so that both edges have some of them."""
    files = version_bytes(source, "linear", 1)
    with running_processes(tmp_path, registry="open") as server:
        upload = begin(server, files).json()["id"]
        path = f"/v1/registry/uploads/{upload}"
        for name, data in files.items():
            for offset in range(0, len(data), 200):
                piece = data[offset : offset + 200]
                done = call(server, "PUT", f"{path}/files/{name}?offset={offset}", piece)
                assert done.status == 200, done.body
        assert call(server, "POST", f"{path}/finish", b"{}", AS_JSON).status == 200
        assert at(server, "models/linear/versions/1").status == 200


@pytest.mark.parametrize("name", ["%00", "..", "..%2F..%2Fetc", "a" * 200, "%C3%A9", "%0A"])
def test_a_name_that_is_none_reaches_no_path(server: ServerProcess, name: str) -> None:
    version = f"/v1/registry/models/{name}/versions/1"
    for method, path, body in (
        ("GET", f"/v1/registry/models/{name}", b""),
        ("GET", f"/v1/registry/models/{name}/history", b""),
        ("GET", version, b""),
        ("GET", f"{version}/files/manifest.json", b""),
        ("DELETE", version, b""),
        ("PATCH", version, b'{"description": "x"}'),
        ("PATCH", f"/v1/registry/models/{name}", b'{"description": "x"}'),
        ("POST", f"/v1/registry/models/{name}/aliases/x", b'{"version": 1}'),
        ("POST", f"/v1/registry/models/{name}/aliases/x/rollback", b"{}"),
        ("GET", f"/v1/registry/models/linear/versions/{name}", b""),
        ("GET", f"/v1/registry/models/linear/versions/1/files/{name}", b""),
        ("PUT", f"/v1/registry/uploads/{name}/files/{name}?offset=0", b""),
        ("DELETE", f"/v1/registry/uploads/{name}", b""),
    ):
        found = call(server, method, path, body, AS_JSON)
        assert found.status in (400, 404), (method, path, found.body)
