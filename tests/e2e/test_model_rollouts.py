"""ModelRollouts at a server with a registry and keys: applied, killed, steered and deleted."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from model_store.records.moves import moves_page
from model_store.rollouts import rollout_store
from model_store.store import ModelStore
from tests.fixtures import onnx_models
from tests.fixtures.credentials import KEY, keys_text
from tests.fixtures.object_api_server import ObjectApiServer, account_in, object_api_server
from tests.fixtures.servers import ROOT, Lines, ServerProcess, running_server

pytestmark = pytest.mark.long

MODEL = "linear"
WAIT_S = 120.0


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    """Returns a store with linear 1 in production, and 2."""
    found = ModelStore(str(tmp_path / "store"))
    onnx_models.publish(found.url, MODEL, onnx_models.linear(2.0))
    onnx_models.publish(found.url, MODEL, onnx_models.linear(2.0))
    found.promote(MODEL, 1)
    return found


@pytest.fixture
def server(store: ModelStore, tmp_path: Path) -> Iterator[ServerProcess]:
    """Runs a server whose key for the controller reads and promotes, and no more."""
    keys = tmp_path / "keys.yaml"
    keys.write_text(keys_text("read", "promote", name="gitops"))
    with running_server(Path(store.url), api_keys_file=str(keys)) as server:
        yield server


@pytest.fixture
def api() -> Iterator[ObjectApiServer]:
    with object_api_server() as api:
        yield api


@contextmanager
def controller(
    api: ObjectApiServer, server: ServerProcess, folder: Path
) -> Iterator["subprocess.Popen[str]"]:
    """Runs the controller's process; kills it in the end."""
    (folder / "token").write_text(KEY)
    process = subprocess.Popen(
        [
            sys.executable, "-P", "-m", "services.kubernetes", "--metrics-port=0",
            f"--kubernetes-url={api.url}",
            f"--kubernetes-account={account_in(folder / 'account')}",
            f"--registry=http://{server.http}",
            f"--registry-token-file={folder / 'token'}",
            "--rollout-poll-s=0.2",
        ],
        stderr=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    assert process.stderr is not None
    log = Lines(process.stderr)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        log.join()


def acts(store: ModelStore) -> list[tuple[str, str]]:
    """Returns what happened to rollouts, and by whom, the oldest first."""
    moves = moves_page(store, MODEL, 100).moves[::-1]
    return [(one.act, move.pointers.who) for move in moves for one in move.traffic_changes]


def test_a_rollout_by_apply_survives_its_controller(
    api: ObjectApiServer, server: ServerProcess, store: ModelStore, tmp_path: Path
) -> None:
    with controller(api, server, tmp_path):
        api.apply(MODEL, model=MODEL, version=2, steps=["10%"], every="1h", why="better")
        found = api.await_phase(MODEL, "Running")
        api.await_object(MODEL, lambda one: (one or {}).get("status", {}).get("share") == "10%")
    api.apply(MODEL, state="Paused")  # while there is none
    with controller(api, server, tmp_path) as process:
        api.await_phase(MODEL, "Paused")
        api.apply(MODEL, state="Running")
        api.await_phase(MODEL, "Running")
        rollout_store.promote_rollout(store, MODEL, "good enough", "ann")
        found = api.await_phase(MODEL, "Promoted")
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0
    assert (found["status"]["reason"], found["status"]["production"]) == ("good enough", 2)
    key = "key:gitops"
    assert acts(store) == [
        ("started", key), ("paused", key), ("resumed", key), ("promoted", "ann"),
    ]  # fmt: skip
    audited = {log["act"] for log in server.logs() if log["logger"] == "flambeau.audit"}
    assert {"rollout start", "rollout pause", "rollout resume"} <= audited


def test_a_deleted_one_aborts_and_a_breaking_one_is_refused(
    api: ObjectApiServer, server: ServerProcess, store: ModelStore, tmp_path: Path
) -> None:
    onnx_models.publish(store.url, MODEL, onnx_models.lookup())
    with controller(api, server, tmp_path):
        api.apply(MODEL, model=MODEL, version=3)
        found = api.await_phase(MODEL, "Refused")
        assert "breaks" in found["status"]["reason"]
        api.apply(MODEL, version=2)
        api.await_phase(MODEL, "Running")
        api.delete(MODEL)
        api.await_object(MODEL, lambda one: one is None)
    assert [act for act, _ in acts(store)] == ["started", "aborted"]


def test_the_page_s_object_is_carried_out(
    api: ObjectApiServer, server: ServerProcess, store: ModelStore, tmp_path: Path
) -> None:
    """The first ModelRollout of docs/guides/kubernetes.md, for this test's model."""
    page = (ROOT / "docs/guides/kubernetes.md").read_text()
    (block,) = (one for one in page.split("```yaml\n")[1:] if one.startswith("apiVersion: flamb"))
    document = yaml.safe_load(block.partition("```")[0])
    with controller(api, server, tmp_path):
        api.apply("digits", **{**document["spec"], "model": MODEL, "version": 2})
        api.await_phase("digits", "Running")
    pointers = store.pointers(MODEL)
    assert pointers is not None
    assert pointers.traffic.rollout is not None
    assert pointers.traffic.rollout.steps == (0.01, 0.1, 0.5, 1)
