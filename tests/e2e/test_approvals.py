"""Moves that need two persons, at real servers with keys: over REST, gRPC and the command line."""

import json
import subprocess
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import jsonschema
import pytest

from model_store.approvals.asked_move import AskedMove
from model_store.approvals.request_store import ask
from model_store.records.deletion import delete_version
from model_store.rollouts.requests import RolloutRequest
from model_store.rollouts.rollout_store import start_rollout
from model_store.store import ModelStore
from services.access.api_keys import ApiKey, add_key, digest_of, new_key
from tests.e2e.grpc_calls import error_of
from tests.e2e.rest_calls import Reply, call
from tests.e2e.test_registry_grpc import Stub
from tests.e2e.test_rollout_control import report
from tests.fixtures import onnx_models
from tests.fixtures.command_forker import run_flambeau
from tests.fixtures.servers import Log, ServerProcess, running_server

GRANTS = {
    "ann": ("read:linear", "promote:linear", "delete:linear"),
    "ben": ("read:linear", "promote:linear"),
    "canary": ("read:linear", "promote:linear@canary"),
    "reader": ("read:linear",),
    "stranger": ("infer:other",),
}
AS_JSON = {"content-type": "application/json"}
MODELS = "/v1/registry/models"
NEXT = {"version": 2, "why": "better"}


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
    for scale in (2.0, 3.0):
        onnx_models.publish(found.url, "linear", onnx_models.linear(scale))
    found.promote("linear", 1)
    return found


class Registry:
    """Calls of callers at a server."""

    def __init__(self, server: ServerProcess, keys: dict[str, str]) -> None:
        self.server, self.keys = server, keys

    def get(self, who: str, path: str) -> Reply:
        headers = {"x-api-key": self.keys[who]}
        return call(self.server, "GET", f"{MODELS}/{path}", headers=headers)

    def post(self, who: str, path: str, body: Any = None) -> Reply:
        data = json.dumps(body or {}).encode()
        headers = {**AS_JSON, "x-api-key": self.keys[who]}
        return call(self.server, "POST", f"{MODELS}/{path}", data, headers)

    def asked(self, who: str, path: str, body: Any = None) -> int:
        """Asks for a move; returns the number of the request."""
        reply = self.post(who, path, body)
        assert reply.status == 202, reply.body
        request = reply.json()["request"]
        assert (request["who"], request["state"]) == (f"key:{who}", "open")
        return int(request["number"])

    def acts(self) -> list[Log]:
        return [log for log in self.server.logs() if log["logger"] == "flambeau.audit"]


@pytest.fixture
def registry(store: ModelStore, keys: tuple[Path, dict[str, str]]) -> Iterator[Registry]:
    """Runs a server where production of linear needs two."""
    with two_person_server(store, keys) as server:
        yield Registry(server, keys[1])


def two_person_server(store: ModelStore, keys: tuple[Path, dict[str, str]], **more: object) -> Any:
    settings: dict[str, Any] = {
        "api_keys_file": str(keys[0]),
        "registry_two_person": ["linear@production"],
    }
    return running_server(Path(store.url), **settings, **more)


def production(store: ModelStore) -> int:
    pointers = store.pointers("linear")
    assert pointers is not None
    return pointers.aliases["production"]


def test_two_persons_promote_at_two_servers(
    registry: Registry, store: ModelStore, keys: tuple[Path, dict[str, str]]
) -> None:
    number = registry.asked("ann", "linear/aliases/production", NEXT)
    assert production(store) == 1
    approval = f"linear/requests/{number}/approve"
    for who, status in (("ann", 403), ("canary", 403), ("reader", 403), ("stranger", 404)):
        assert registry.post(who, approval).status == status, who
    own = registry.post("ann", approval).error()
    assert "was asked for by key:ann, and must be approved by another person" in own
    assert registry.post("ben", "linear/requests/7/approve").status == 404
    assert registry.post("ben", "linear/requests/x/approve").status == 404
    [shown] = registry.get("reader", "linear/requests").json()["requests"]
    assert (shown["move"]["version"], shown["state"]) == (2, "open")
    with two_person_server(store, keys) as second:
        other = Registry(second, keys[1])
        done = other.post("ben", approval, {"why": "looked at it"})
        assert done.status == 200, done.body
        assert done.json()["approval"] == {"request": 1, "by": "key:ben", "why": "looked at it"}
        assert other.post("ben", approval).json() == done.json()
        approved = next(one for one in other.acts() if one["act"] == "approve promote")
    assert production(store) == 2
    assert registry.post("canary", approval).status == 403
    facts = [approved[name] for name in ("target", "who", "asked_by", "why", "outcome")]
    assert facts == ["linear@production=2", "key:ben", "key:ann", "looked at it", "done"]
    asked = next(one for one in registry.acts() if one["act"] == "ask for promote")
    assert (asked["target"], asked["who"], asked["why"]) == (
        "linear@production=2", "key:ann", "better",
    )  # fmt: skip
    refused = {(one["act"], one["who"]) for one in registry.acts() if one["outcome"] == "refused"}
    assert {("approve promote", "key:ann"), ("approve request", "key:stranger")} <= refused
    [move, _] = registry.get("reader", "linear/history").json()["moves"]
    assert (move["who"], move["approval"]["by"]) == ("key:ann", "key:ben")


def test_other_aliases_move_at_once(registry: Registry, store: ModelStore) -> None:
    moved = registry.post("canary", "linear/aliases/canary", NEXT)
    assert (moved.status, moved.json()["aliases"]["canary"]) == (200, 2)
    assert "approval" not in moved.json()
    assert registry.post("canary", "linear/aliases/production", NEXT).status == 403
    assert registry.get("reader", "linear/requests").json() == {"requests": []}


def test_refused_outdated_expired_and_deleted(registry: Registry, store: ModelStore) -> None:
    first = registry.asked("ann", "linear/aliases/production", NEXT)
    refused = registry.post("ben", f"linear/requests/{first}/refuse", {"why": "no"})
    assert refused.json()["request"]["state"] == "refused"
    second = registry.asked("ann", "linear/aliases/production", NEXT)
    withdrawn = registry.post("ann", f"linear/requests/{second}/refuse")
    assert withdrawn.json()["request"]["decision"]["outcome"] == "withdrawn"
    third = registry.asked("ann", "linear/aliases/production", NEXT)
    delete_version(store, "linear", 2, "ops", "broken")
    move = AskedMove(act="promote", version=1, why="late")
    fourth = ask(store, "linear", move, "key:ann", timedelta(0)).number
    for number, said in (
        (first, "was refused by key:ben"),
        (second, "was withdrawn by key:ann"),
        (third, "its pointers have moved since"),
        (fourth, "expired at "),
    ):
        reply = registry.post("ben", f"linear/requests/{number}/approve")
        assert (reply.status, said in reply.error()) == (409, True), reply.error()
    assert production(store) == 1


def test_a_rollback_to_an_older_version_waits_for_nobody(
    registry: Registry, store: ModelStore
) -> None:
    number = registry.asked("ann", "linear/aliases/production", NEXT)
    assert registry.post("ben", f"linear/requests/{number}/approve").status == 200
    back = registry.post("ben", "linear/aliases/production/rollback", {"why": "it fails"})
    assert (back.status, production(store)) == (200, 1)
    forward = registry.asked("ben", "linear/aliases/production/rollback")
    assert production(store) == 1
    assert registry.post("ben", f"linear/requests/{forward}/approve").status == 403
    assert registry.post("ann", f"linear/requests/{forward}/approve").status == 200
    assert production(store) == 2


def test_a_setting_makes_rollbacks_wait_too(
    store: ModelStore, keys: tuple[Path, dict[str, str]]
) -> None:
    store.promote("linear", 2)
    with two_person_server(store, keys, registry_two_person_rollback=True) as server:
        registry = Registry(server, keys[1])
        start_rollout(store, "linear", RolloutRequest(version=1))
        ended = registry.post("ann", "linear/aliases/production/rollback").json()
        assert (ended["ended"], production(store)) == (["rollout of version 1"], 2)
        number = registry.asked("ann", "linear/aliases/production/rollback")
        assert production(store) == 2
        assert registry.post("ben", f"linear/requests/{number}/approve").status == 200
    assert production(store) == 1


STARTS: dict[str, dict[str, Any]] = {
    "rollout": {"version": 2, "steps": [0.1, 1], "every_s": 3600},
    "shadow": {"version": 2, "sample": 0.5},
    "split": {
        "name": "ab",
        "arms": [{"version": 1, "share": 0.5}, {"version": 2, "share": 0.5}],
    },
}


@pytest.mark.parametrize("kind", STARTS)
def test_starts_are_asked_for_and_ends_are_free(
    registry: Registry, store: ModelStore, kind: str
) -> None:
    number = registry.asked("ann", f"linear/{kind}", STARTS[kind])
    assert registry.get("reader", f"linear/{kind}").json()[kind] is None
    done = registry.post("ben", f"linear/requests/{number}/approve")
    assert done.status == 200, done.body
    assert registry.get("reader", f"linear/{kind}").json()[kind]["id"]
    if kind == "rollout":
        promotion = registry.asked("ann", "linear/rollout/promote", {"why": "now"})
        assert production(store) == 1
        assert registry.post("ben", f"linear/requests/{promotion}/approve").status == 200
        assert production(store) == 2
        return
    already = registry.post("ann", "linear/aliases/production", {"version": 1})
    if kind == "shadow":
        assert (already.status, already.json()["changes"]) == (200, [])
        assert registry.post("ann", "linear/shadow/stop").status == 200
        return
    assert (already.status, already.json()["request"]["ends"]) == (202, ["split 'ab'"])
    back = registry.post("ann", "linear/aliases/production/rollback")
    assert (back.status, back.json().get("ended")) == (200, ["split 'ab'"])
    assert (production(store), back.json()["changes"]) == (1, [])


def test_the_controller_rolls_back_without_a_second_person(
    registry: Registry, store: ModelStore
) -> None:
    manifest = onnx_models.publish(store.url, "linear", onnx_models.linear(4.0))
    artifact = Path(store.url, "linear", "3", manifest.artifacts[0].file.file)
    artifact.write_bytes(b"damaged")
    wanted = {**STARTS["rollout"], "version": 3}
    number = registry.asked("ann", "linear/rollout", wanted)
    assert registry.post("ben", f"linear/requests/{number}/approve").status == 200
    registry.server.wait_for_log(message="rollout moved", result="refused", version=3)
    moves = registry.get("reader", "linear/history").json()["moves"]
    assert moves[0]["traffic_changes"][0]["act"] == "rolled back"
    assert "approval" not in moves[0]


def test_the_last_step_of_an_approved_rollout_is_the_controllers(
    registry: Registry, store: ModelStore
) -> None:
    unjudged = dict.fromkeys(("disagreement", "latency", "nan", "outputs"))
    guards = {**unjudged, "errors": {"rate": 0.05}}
    wanted = {"version": 2, "steps": [0.1, 1], "every_s": 0, "mirrored": 0, "guards": guards}
    number = registry.asked("ann", "linear/rollout", wanted)
    assert registry.post("ben", f"linear/requests/{number}/approve").status == 200
    pointers = store.pointers("linear")
    assert pointers is not None
    assert pointers.traffic.rollout is not None
    report(store, pointers.traffic.rollout, "other")
    registry.server.wait_for_log(message="rollout moved", result="promoted", version=2)
    assert production(store) == 2
    assert registry.get("reader", "linear/requests").json()["requests"][0]["state"] == "executed"


def test_the_same_over_grpc(registry: Registry, store: ModelStore) -> None:
    with grpc.insecure_channel(registry.server.grpc) as channel:
        stubs = {name: Stub(channel, key) for name, key in registry.keys.items()}
        asked = stubs["ann"].Promote(model="linear", alias="production", version=2, why="better")
        assert (asked.generation, asked.request.number, production(store)) == (0, 1, 1)
        one = asked.request
        assert (one.act, one.version, one.who, one.why) == ("promote", 2, "key:ann", "better")
        assert one.until.seconds - one.when.seconds == 86_400
        for who, code in (
            ("ann", grpc.StatusCode.PERMISSION_DENIED),
            ("reader", grpc.StatusCode.PERMISSION_DENIED),
            ("stranger", grpc.StatusCode.NOT_FOUND),
        ):
            refused = error_of(lambda: stubs[who].ApproveMove(model="linear", number=1))  # noqa: B023
            assert refused[0] == code, who
        done = stubs["ben"].ApproveMove(model="linear", number=1, why="fine")
        assert (done.aliases["production"], done.approval.by) == (2, "key:ben")
        back = stubs["ann"].Rollback(model="linear", alias="production")
        assert (back.generation, back.HasField("request")) == (3, False)
        again = stubs["ann"].Rollback(model="linear", alias="production").request
        withdrawn = stubs["ann"].RefuseMove(model="linear", number=again.number, why="enough")
        assert withdrawn.state == withdrawn.STATE_WITHDRAWN
        late = error_of(lambda: stubs["ben"].ApproveMove(model="linear", number=again.number))
        assert "was withdrawn by key:ann" in late[1]
        [second, first] = stubs["reader"].ListMoveRequests(model="linear").requests
        assert (first.state, first.decided_by) == (first.STATE_EXECUTED, "key:ben")
        assert (second.act, second.decided_why) == ("rollback", "enough")
        events = stubs["reader"].WatchEvents(after="0")
        found = [next(events) for _ in range(5)]
        events.cancel()
        [promoted] = [one for one in found if one.version == 2 and one.changes]
        assert (promoted.who, promoted.approved_by) == ("key:ann", "key:ben")
        [waits] = [one for one in found if one.kind == one.KIND_ASKED]
        assert (waits.request, waits.act, waits.alias) == (1, "promote", "production")
        assert (waits.version, waits.who, waits.why) == (2, "key:ann", "better")
        assert waits.until == one.until
        start_rollout(store, "linear", RolloutRequest(version=2))
        ended = stubs["ann"].Rollback(model="linear", alias="production")
        assert (ended.generation, list(ended.ended)) == (5, ["rollout of version 2"])
        assert (dict(ended.aliases), list(ended.changes)) == ({"production": 1}, [])


def test_hostile_calls_are_refused_and_decide_nothing(
    registry: Registry, store: ModelStore
) -> None:
    number = registry.asked("ann", "linear/aliases/production", NEXT)
    headers = {**AS_JSON, "x-api-key": registry.keys["ben"]}
    bodies = (
        b"", b"null", b"[]", b"\xff", b"[" * 100_000, b'{"why": 1}', b'{"why": NaN}',
        b'{"who": "key:eve"}', json.dumps({"why": "x" * 501}).encode(),
    )  # fmt: skip
    for verb in ("approve", "refuse"):
        for body in bodies:
            path = f"{MODELS}/linear/requests/{number}/{verb}"
            assert call(registry.server, "POST", path, body, headers).status in (400, 413), body
        for name in ("0", "-1", "1.5", "9" * 18, "9" * 40, "%2e%2e", "1%2f..%2f1", "1.decision"):
            path = f"{MODELS}/linear/requests/{name}/{verb}"
            assert call(registry.server, "POST", path, b"{}", headers).status == 404, name
    for alias in ("x" * 300, "a%20b", "7", "%00"):
        assert registry.post("ann", f"linear/aliases/{alias}", NEXT).status == 400, alias
    assert registry.get("ben", "linear/requests?limit=101").status == 400
    assert registry.get("ben", "..%2Flinear/requests").status == 404
    [shown] = registry.get("reader", "linear/requests").json()["requests"]
    assert (shown["state"], production(store)) == ("open", 1)


def test_the_answers_are_as_openapi_describes_them(registry: Registry) -> None:
    document = call(registry.server, "GET", "/openapi.json").json()
    waits = registry.post("ann", "linear/aliases/production", NEXT)
    rows = registry.get("ann", "linear/requests")
    done = registry.post("ben", "linear/requests/1/approve")
    for name, reply in (
        ("RegistryWaiting", waits), ("RegistryRequests", rows), ("RegistryMove", done),
    ):  # fmt: skip
        schema = {**document["components"]["schemas"][name], "components": document["components"]}
        jsonschema.Draft202012Validator(schema).validate(reply.json())


def test_the_command_line(registry: Registry, store: ModelStore, tmp_path: Path) -> None:
    def flambeau(who: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
        token = tmp_path / who
        token.write_text(registry.keys[who])
        place = ("--at", f"http://{registry.server.http}", "--token-file", str(token))
        return run_flambeau(*arguments, *place)

    asked = flambeau("ann", "models", "promote", "linear", "2", "--why", "better")
    assert asked.returncode == 0, asked.stderr
    assert "linear production → 2 waits for a second person until " in asked.stdout
    assert f"flambeau models approve linear 1 --at http://{registry.server.http}" in asked.stdout
    own = flambeau("ann", "models", "approve", "linear", "1")
    assert (own.returncode, "approved by another person" in own.stderr) == (1, True)
    shown = flambeau("reader", "models", "requests", "linear")
    assert "open   production → 2  key:ann" in shown.stdout, shown.stdout
    done = flambeau("ben", "models", "approve", "linear", "1", "--why", "fine")
    assert done.stdout == "linear production → 2 (generation 2), as key:ann asked\n"
    started = flambeau("ann", "rollout", "start", "linear", "1", "--steps", "5%,100%")
    said = "linear rollout start of 1: 5%, 100%, every 5m, risk 1% waits for a second person"
    assert said in started.stdout
    assert f"flambeau models approve linear 2 --at http://{registry.server.http}" in started.stdout
    withdrawn = flambeau("ann", "models", "refuse", "linear", "2")
    assert withdrawn.stdout == "request 2 for linear is withdrawn\n"
    moves = run_flambeau("models", "history", "linear", "--store", store.url)
    assert "key:ann, approved by key:ben" in moves.stdout


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "asks for no credentials, by which it would know two persons"),
        ({"api_keys_file": "keys.yaml", "registry_two_person": "[a b@x]"}, "names no models"),
        ({"api_keys_file": "keys.yaml", "registry_two_person": "['a@']"}, "names no aliases"),
    ],
)
def test_a_setting_that_cannot_hold_is_refused(
    store: ModelStore, settings: dict[str, str], said: str
) -> None:
    chosen = {"registry_two_person": "[linear@production]", **settings}
    arguments = [part for name, text in chosen.items() for part in ("--set", f"{name}={text}")]
    done = run_flambeau("serve", "--store", store.url, *arguments)
    assert (done.returncode != 0, said in done.stderr) == (True, True), done.stderr
