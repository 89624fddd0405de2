"""Calls of rollouts, shadows and splits: at a real server over REST, and by the command line."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from model_store.rollouts.traffic import Traffic
from model_store.store import ModelStore
from services.access.api_keys import ApiKey, add_key, digest_of, new_key
from services.rollouts.comparison_files import write_comparisons
from services.rollouts.shadow_figures import KeptPair, ShadowFigures
from tests.e2e.rest_calls import Reply, call
from tests.fixtures import onnx_models
from tests.fixtures.command_forker import run_flambeau
from tests.fixtures.servers import ServerProcess, running_server

AS_JSON = {"content-type": "application/json"}
GRANTS = {
    "reader": ("infer", "read:linear"),
    "canary": ("infer", "read:linear", "promote:linear@canary"),
    "promoter": ("infer", "read:linear", "promote:linear"),
    "stranger": ("infer:other",),
}
ACTS = (
    "rollout/pause", "rollout/resume", "rollout/abort", "rollout/promote", "shadow/stop",
    "split/end",
)  # fmt: skip
STARTS: dict[str, dict[str, Any]] = {
    "rollout": {"version": 2, "steps": [0.01, 1], "every_s": 3600, "why": "better"},
    "shadow": {"version": 2, "sample": 0.5},
    "split": {
        "name": "ab",
        "arms": [{"version": 1, "share": 0.5}, {"version": 2, "share": 0.5}],
    },
}


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """Returns a file of keys, and the keys by name."""
    file = tmp_path_factory.mktemp("keys") / "keys.yaml"
    made = {name: new_key() for name in GRANTS}
    for name, key in made.items():
        document = {"name": name, "sha256": digest_of(key).hex(), "grants": GRANTS[name]}
        add_key(file, ApiKey.model_validate(document))
    return file, made


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    """Returns a store with linear 1 in production, and 2."""
    found = ModelStore(str(tmp_path / "store"))
    onnx_models.publish(found.url, "linear", onnx_models.linear(2.0))
    onnx_models.publish(found.url, "linear", onnx_models.linear(3.0))
    found.promote("linear", 1)
    return found


@pytest.fixture
def server(store: ModelStore, keys: tuple[Path, dict[str, str]]) -> Iterator[ServerProcess]:
    """Runs a server that asks for keys."""
    with running_server(Path(store.url), api_keys_file=str(keys[0])) as server:
        yield server


def flambeau(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return run_flambeau(*arguments)


def at(server: ServerProcess, key: str, method: str, path: str, body: Any = None) -> Reply:
    data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    fields = {**AS_JSON, "authorization": f"Bearer {key}"}
    return call(server, method, f"/v1/registry/models/{path}", data, fields)


def test_each_call_needs_its_grant(
    server: ServerProcess, keys: tuple[Path, dict[str, str]]
) -> None:
    made = keys[1]
    for kind, wanted in STARTS.items():
        path = f"linear/{kind}"
        for name in ("reader", "canary"):
            assert at(server, made[name], "POST", path, wanted).status == 403
            assert at(server, made[name], "GET", path).status == 200
        for method in ("GET", "POST"):
            assert at(server, made["stranger"], method, path, wanted).status == 404
        assert at(server, made["promoter"], "GET", f"none/{kind}").status == 404
    for act in ACTS:
        assert at(server, made["canary"], "POST", f"linear/{act}", {}).status == 403
        assert at(server, made["promoter"], "POST", f"linear/{act}", {}).status == 409
    refused = [log for log in server.logs() if log["logger"] == "flambeau.audit"]
    assert {log["outcome"] for log in refused} == {"refused"}
    found = {(log["act"], log["who"]) for log in refused}
    assert {("rollout start", "key:canary"), ("rollout abort", "key:promoter")} <= found


def test_a_rollout_from_start_to_end(
    server: ServerProcess, store: ModelStore, keys: tuple[Path, dict[str, str]]
) -> None:
    key = keys[1]["promoter"]
    moved = at(server, key, "POST", "linear/rollout", STARTS["rollout"])
    assert moved.status == 200, moved.body
    assert moved.json()["who"] == "key:promoter"
    assert at(server, key, "POST", "linear/rollout", STARTS["rollout"]).status == 409
    assert at(server, key, "POST", "linear/split", STARTS["split"]).status == 409
    shown = at(server, key, "GET", "linear/rollout").json()
    assert (shown["production"], shown["rollout"]["share"]) == (1, 0.01)
    own, other = shown["rollout"]["id"], "0" * 16
    for act in ("pause", "resume", "abort"):
        wrong = at(server, key, "POST", f"linear/rollout/{act}", {"rollout_id": other})
        assert (wrong.status, other in wrong.json()["error"]) == (409, True), wrong.body
        reply = at(server, key, "POST", f"linear/rollout/{act}", {"why": act, "rollout_id": own})
        assert reply.status == 200, reply.body
    last = at(server, key, "GET", "linear/rollout").json()["last"]
    assert (last["outcome"], last["why"]) == ("aborted", "abort")
    for path, body, ended in (
        ("aliases/production", {"version": 1, "why": "back"}, "rollout of version 2"),
        ("aliases/production/rollback", {}, "split 'ab'"),
    ):
        kind = ended.split()[0]
        assert at(server, key, "POST", f"linear/{kind}", STARTS[kind]).status == 200
        moved = at(server, key, "POST", f"linear/{path}", body).json()
        assert (moved["ended"], moved["changes"]) == ([ended], [])
        assert moved["aliases"] == {"production": 1}
        assert at(server, key, "GET", f"linear/{kind}").json()[kind] is None
    moves = at(server, key, "GET", "linear/history").json()["moves"]
    acts = [one["act"] for move in moves for one in move.get("traffic_changes", ())]
    assert acts == [
        "ended", "started", "aborted", "started", "aborted", "resumed", "paused", "started",
    ]  # fmt: skip
    done = [
        (log["act"], log["target"], log.get("why", ""))
        for log in server.logs()
        if log["logger"] == "flambeau.audit" and log["outcome"] == "done"
    ]
    assert done[0] == ("rollout start", "linear/2", "better")
    assert ("rollout abort", "linear", "abort") in done
    assert done[-1] == ("rollback", "linear@production", "rollback")


def test_shadows_and_splits_from_start_to_end(
    server: ServerProcess, keys: tuple[Path, dict[str, str]]
) -> None:
    key = keys[1]["promoter"]
    for kind, end in (("shadow", "stop"), ("split", "end")):
        started = at(server, key, "POST", f"linear/{kind}", STARTS[kind])
        assert started.status == 200, started.body
        assert at(server, key, "GET", f"linear/{kind}").json()[kind]["id"]
        assert at(server, key, "POST", f"linear/{kind}/{end}", {}).json().get("traffic") is None
        shown = at(server, key, "GET", f"linear/{kind}").json()
        assert (shown[kind], shown["last"]["outcome"]) == (None, "ended")


def test_values_of_kept_pairs_need_the_right_to_promote(
    server: ServerProcess, keys: tuple[Path, dict[str, str]], store: ModelStore, tmp_path: Path
) -> None:
    started = at(server, keys[1]["promoter"], "POST", "linear/shadow", STARTS["shadow"]).json()
    traffic = Traffic.model_validate(started["traffic"])
    tensor = {"name": "x", "datatype": "BYTES", "shape": [1], "values": ["a secret"]}
    pair = KeptPair(
        disagreement=1.0, difference=2.5, request_id="r", when=0.0, inputs=[tensor],
        live=[tensor], candidate=[tensor], error="BackendError: a secret is none",
    )  # fmt: skip
    figures = ShadowFigures(keep=1, pairs=1, worst=[pair])
    write_comparisons(store.storage, "linear", traffic, "other", {}, figures)
    for name, sees in (("reader", False), ("canary", False), ("promoter", True)):
        reply = at(server, keys[1][name], "GET", "linear/shadow")
        assert (b"secret" in reply.body) == sees
        [shown] = reply.json()["figures"]["worst"]
        values = ["a secret"] if sees else None
        assert shown["candidate"] == [{**tensor, "values": values}]
        assert (shown["difference"], shown["error"].split(":")[0]) == (2.5, "BackendError")
        token = tmp_path / name
        token.write_text(keys[1][name])
        place = ("--server", f"http://{server.http}", "--token-file", str(token))
        printed = flambeau("shadow", "status", "linear", "--json", *place)
        assert ("secret" in printed.stdout) == sees, printed.stderr


@pytest.mark.parametrize("kind", STARTS)
def test_bad_bodies_are_refused_and_harm_nobody(
    server: ServerProcess, keys: tuple[Path, dict[str, str]], kind: str, store: ModelStore
) -> None:
    key, wanted = keys[1]["promoter"], STARTS[kind]
    bodies: list[Any] = [
        b"", b"null", b"[]", b"{}", b"\xff", b"[" * 100_000, b'{"a":' * 10_000,
        b'{"version": NaN}', b"0," * 40_000, json.dumps({**wanted, "x": 1}).encode(),
        {**wanted, "version": 0}, {**wanted, "version": 10**30}, {**wanted, "why": "x" * 501},
        {**wanted, "steps": [0.5, 0.1]}, {**wanted, "steps": [float("nan")]},
        {**wanted, "steps": [float("inf")]}, {**wanted, "steps": [0.1] * 33},
        {**wanted, "sample": 0}, {**wanted, "sample": float("nan")}, {**wanted, "every_s": 1e300},
        {**wanted, "guards": {str(n): None for n in range(17)}},
        {**wanted, "guards": {"errors": {"ratio": float("nan")}}},
        {**wanted, "arms": [{"version": 1, "share": float("nan")}] * 2},
        {**wanted, "arms": [{"version": 1, "share": 0.5}] * 9}, {**wanted, "name": "../x"},
    ]  # fmt: skip
    for body in bodies:
        if isinstance(body, dict) and not set(body) <= {"why", *wanted, *_fields(kind)}:
            continue
        reply = at(server, key, "POST", f"linear/{kind}", body)
        assert reply.status in (400, 413), (body, reply.status, reply.body)
        assert str(store.url) not in reply.body.decode()
    assert at(server, key, "GET", f"linear/{kind}").json()[kind] is None


def _fields(kind: str) -> set[str]:
    return {
        "rollout": {"version", "steps", "every_s", "guards"},
        "shadow": {"version", "sample"},
        "split": {"name", "arms"},
    }[kind]


def test_unknown_versions_and_methods(
    server: ServerProcess, keys: tuple[Path, dict[str, str]]
) -> None:
    key = keys[1]["promoter"]
    assert at(server, key, "POST", "linear/rollout", {"version": 9}).status == 404
    assert at(server, key, "DELETE", "linear/rollout").status == 405
    assert at(server, key, "POST", "linear/rollout/explode", {}).status == 404


def test_the_command_line_says_the_same_of_a_store_and_of_a_server(
    server: ServerProcess, store: ModelStore, keys: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text(keys[1]["promoter"])
    remote = ("--server", f"http://{server.http}", "--token-file", str(token))
    local = ("--store", store.url)
    for place in (remote, local):
        steps = ("--steps", "1%,100%", "--every", "1h", "--why", "better")
        started = flambeau("rollout", "start", "linear", "2", *steps, *place)
        assert started.returncode == 0, started.stderr
        assert "linear production → 1, rollout of 2 at 1%" in started.stdout
        status = flambeau("rollout", "status", "linear", *place)
        assert "[1%] → 100%, every 1h" in status.stdout
        paused = flambeau("rollout", "pause", "linear", "--why", "lunch", *place, "--json")
        assert json.loads(paused.stdout)["traffic"]["rollout"]["paused"] == "lunch"
        aborted = flambeau("rollout", "abort", "linear", *place)
        assert aborted.returncode == 0, aborted.stderr
        assert "linear rollout of version 2 aborted at 1%, production → 1" in aborted.stdout
        again = flambeau("rollout", "abort", "linear", *place)
        assert (again.returncode, again.stdout) == (1, "")
        assert "no version is being rolled out" in again.stderr
        watched = flambeau("rollout", "status", "linear", "--watch", *place)
        assert (watched.returncode, "aborted at 1%" in watched.stdout) == (1, True)
        report = flambeau("rollout", "report", "linear", *place)
        assert report.returncode == 0, report.stderr
    shown = flambeau("models", "history", "linear", "--server", f"http://{server.http}",
                     "--token-file", str(token))  # fmt: skip
    assert "rollout of version 2 paused at 1%: lunch" in shown.stdout
    assert flambeau("rollout", "start", "linear", "2", *local).returncode == 0
    assert flambeau("rollout", "promote", "linear", *local).returncode == 0
    assert flambeau("rollout", "status", "linear", "--watch", *local).returncode == 0
