"""Rollouts on real servers: steps, controllers that are killed, and two servers on one store."""

import http.client
import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_store.pointers import Pointers
from model_store.rollouts import transitions
from model_store.rollouts.guards import Guards, RateGuard
from model_store.rollouts.traffic import Rollout
from model_store.store import ModelStore
from services.rollouts.evidence.evidence import Evidence
from services.rollouts.evidence_files import EvidenceFiles
from tests.e2e.rest_calls import call, call_on, infer_path, linear_input, tensor
from tests.fixtures.onnx_models import linear, lookup, publish
from tests.fixtures.redis_setups import wait_until
from tests.fixtures.servers import ServerProcess, running_processes, running_server
from tests.fixtures.split_servers import running_split

ERRORS = Guards(
    errors=RateGuard(rate=0.05), disagreement=None, latency=None, nan=None, outputs=None
)
STEPS = (0.1, 0.5, 1.0)
MOVES_S = 60.0


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    """Returns versions 1 and 2 of `linear`, and production on 1."""
    store = ModelStore(str(tmp_path / "store"))
    for scale in (1, 2):
        publish(store.url, "linear", linear(scale))
    store.promote("linear", 1)
    return store


@pytest.fixture(
    params=[
        running_server,
        pytest.param(running_processes, marks=pytest.mark.long),
        running_split,
    ]
)
def server(store: ModelStore, request: pytest.FixtureRequest) -> Iterator[ServerProcess]:
    with request.param(Path(store.url)) as server:
        yield server


def start(store: ModelStore, **fields: Any) -> Rollout:
    fields = {"steps": STEPS, "every_s": 0.5, "guards": ERRORS, "candidate": 2, **fields}
    rollout = Rollout(baseline=1, **fields)
    store.point("linear", transitions.begun(store.pointers("linear"), rollout, "test", ""))
    return rollout


def pointers(store: ModelStore) -> Pointers:
    found = store.pointers("linear")
    assert found is not None
    return found


def wait_for(
    store: ModelStore, wanted: Callable[[Pointers], bool], servers: tuple[ServerProcess, ...] = ()
) -> Pointers:
    """Polls the store, which nobody announces; returns the first pointers that fit."""
    deadline = time.monotonic() + MOVES_S
    while not wanted(found := pointers(store)):
        if time.monotonic() > deadline:
            logs = "\n".join(line for one in servers for line in one.errors.all())
            raise AssertionError(f"the pointers stay at {found}; logs:\n{logs}")
        time.sleep(0.05)
    return found


def report(store: ModelStore, rollout: Rollout, process: str, failed: int = 0) -> None:
    """Writes counts as another process does: half of 4,000 requests at each step's share."""
    evidence = Evidence()
    for share in rollout.steps[:-1]:
        for number in range(2_000):
            evidence.count_request(share, "live")
            evidence.count_request(share, "candidate", failed=number < failed)
    EvidenceFiles(store.storage, "linear", rollout.id).write(process, evidence)


def steps_of(store: ModelStore) -> list[int | None]:
    """Returns the step of the rollout in each generation; None where there is none."""
    found = [one.traffic.rollout for one in store.history("linear")]
    return [rollout.step if rollout else None for rollout in found]


def test_candidate_reaches_all_requests_by_itself(store: ModelStore, server: ServerProcess) -> None:
    rollout = start(store)
    report(store, rollout, "other")
    last = wait_for(store, lambda now: not now.traffic, (server,))
    assert last.aliases == {"production": 2}
    assert last.evidence is not None
    assert last.evidence["decision"] == "promote"
    assert steps_of(store) == [None, 0, 1, None]
    server.wait_for_log(message="rollout moved", result="promoted", version=2)
    server.wait_for_log(logger="flambeau.audit", act="promote", target="linear")
    moves = "flambeau_rollout_moves_total"
    assert server.metric(moves, model="linear", result="advanced") == 1
    assert server.metric(moves, model="linear", result="promoted") == 1
    server.wait_for_metric(0, "flambeau_rollout_step", model="linear")


def test_failing_candidate_is_rolled_back_by_itself(
    store: ModelStore, server: ServerProcess
) -> None:
    rollout = start(store, every_s=3600)
    report(store, rollout, "other", failed=500)
    last = wait_for(store, lambda now: not now.traffic, (server,))
    assert last.aliases == {"production": 1}
    assert last.why.startswith("the guard 'errors' is broken: ")
    assert last.evidence is not None
    shown = last.evidence["counts"]["shares"]["0.1"]["candidate"]
    assert shown == {"requests": 2_000, "errors": 500}
    log = server.wait_for_log(message="rollout moved", result="rolled_back")
    assert log["reason"] == last.why
    verdict = json.loads(store.storage.get(f"linear/rollouts/{rollout.id}/verdict.json", 1_000_000))
    assert (verdict["decision"], verdict["next"]) == ("roll_back", "rolled_back")


def test_version_that_cannot_be_loaded_ends_it_and_says_where(
    store: ModelStore, server: ServerProcess
) -> None:
    manifest = publish(store.url, "linear", linear(3))
    artifact = Path(store.url, "linear", "3", manifest.artifacts[0].file.file)
    artifact.write_bytes(b"damaged")
    start(store, candidate=3)
    last = wait_for(store, lambda now: not now.traffic, (server,))
    assert last.aliases == {"production": 1}
    assert last.why.startswith("version 3 failed to load on ")
    server.wait_for_log(message="rollout moved", result="refused", version=3)
    assert server.metric("flambeau_rollout_moves_total", result="refused") == 1


def ask_until_over(server: ServerProcess, store: ModelStore, model: str, body: bytes) -> set[str]:
    """Sends requests until no rollout is left; returns the errors."""
    errors: set[str] = set()
    connection = http.client.HTTPConnection(server.http, timeout=60)
    deadline = time.monotonic() + MOVES_S
    while (now := store.pointers(model)) is not None and now.traffic:
        assert time.monotonic() < deadline, now
        for _ in range(20):
            reply = call_on(connection, "POST", infer_path(model), body)
            if reply.status != 200:
                errors.add(f"{reply.status} {reply.error()}")
    connection.close()
    return errors


def test_real_requests_promote_a_good_candidate(store: ModelStore, server: ServerProcess) -> None:
    rollout = start(store, steps=(0.5, 1.0))
    body = json.dumps({"inputs": [linear_input([1.0, 2.0, 3.0, 4.0])]}).encode()
    assert ask_until_over(server, store, "linear", body) == set()
    last = pointers(store)
    assert last.aliases == {"production": 2}
    assert last.evidence is not None
    counted = last.evidence["counts"]["shares"]["0.5"]
    assert counted["candidate"]["requests"] > 100
    assert counted["live"]["requests"] > 100
    found = EvidenceFiles(store.storage, "linear", rollout.id).read()
    assert not found.left_out


def test_real_requests_roll_a_failing_candidate_back(
    store: ModelStore, server: ServerProcess
) -> None:
    for entries in (10, 5):
        publish(store.url, "table", lookup(entries), golden={"index": np.arange(5)})
    store.promote("table", 1)
    body = json.dumps({"inputs": [tensor("index", "INT64", [1], [7])]}).encode()
    server.wait_for_log(message="version ready", model="table", version=2)
    rollout = Rollout(candidate=2, baseline=1, steps=(0.5, 1.0), every_s=0.5, guards=ERRORS)
    store.point("table", transitions.begun(store.pointers("table"), rollout, "test", ""))
    assert ask_until_over(server, store, "table", body)
    last = store.pointers("table")
    assert last is not None
    assert last.aliases == {"production": 1}
    assert last.why.startswith("the guard 'errors' is broken: ")
    # The server follows the pointers within half a second.
    wait_until(lambda: all(answered(server, "table", body) == "1" for _ in range(20)))


def answered(server: ServerProcess, model: str, body: bytes) -> str:
    """Returns the version that answers a request; empty if it fails."""
    reply = call(server, "POST", infer_path(model), body)
    return str(reply.json().get("model_version", ""))


def test_controller_killed_between_two_steps_is_replaced(store: ModelStore) -> None:
    rollout = start(store, every_s=1)
    report(store, rollout, "other")
    with running_server(Path(store.url)) as killed:
        wait_for(store, lambda now: now.traffic.rollout is None or now.traffic.rollout.step > 0)
        killed.process.kill()
        killed.wait()
        killed.expected_code = killed.process.poll() or 0
    assert steps_of(store) == [None, 0, 1]
    with running_server(Path(store.url)) as restarted:
        last = wait_for(store, lambda now: not now.traffic, (restarted,))
    assert last.aliases == {"production": 2}
    assert steps_of(store) == [None, 0, 1, None]
    leases = Path(store.url, "linear", "rollouts", rollout.id, "lease")
    assert sorted(path.name for path in leases.iterdir()) == ["1.json", "2.json"]


def test_two_servers_move_each_step_once(store: ModelStore) -> None:
    with ExitStack() as stack:
        servers = tuple(stack.enter_context(running_server(Path(store.url))) for _ in range(2))
        rollout = start(store, steps=(0.1, 0.2, 0.3, 0.4, 1.0))
        report(store, rollout, "other")
        wait_for(store, lambda now: not now.traffic, servers)
        assert steps_of(store) == [None, 0, 1, 2, 3, None]
        moves = [one.metric("flambeau_rollout_moves_total") for one in servers]
        assert sorted(moves) == [0, 4], "one of them is the controller"
