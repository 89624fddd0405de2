"""A server whose store is a bucket of each provider: push, promote, roll out, events, deletion."""

import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from model_store.store import ModelStore
from tests.e2e.rest_calls import call, infer, linear_input, post
from tests.fixtures import onnx_models
from tests.fixtures.azure_server import azure_server
from tests.fixtures.command_forker import run_flambeau
from tests.fixtures.gcs_server import gcs_server
from tests.fixtures.redis_servers import until_true
from tests.fixtures.s3_server import s3_server
from tests.fixtures.servers import COMMAND, FREE_PORTS, ServerProcess, serving, supervised

AS_JSON = {"content-type": "application/json"}
ROW = [1.0, 2.0, 3.0, 4.0]
SERVERS = {"s3": s3_server, "gcs": gcs_server, "azure": azure_server}


_IN_LONG_RUNS = [pytest.param(kind, marks=pytest.mark.long) for kind in ("gcs", "azure")]


@pytest.fixture(params=["s3", *_IN_LONG_RUNS])
def bucket(request: pytest.FixtureRequest) -> Iterator[str]:
    """Yields the URL of an empty store in a bucket of each kind."""
    with SERVERS[request.param]() as url:
        yield f"{url}/prod-{request.param}"  # moto's buckets are those of the process


@contextmanager
def served(store: str, **settings: object) -> Iterator[ServerProcess]:
    """Runs a server with the variables that this process has now; it must exit with 0."""
    command = [COMMAND, *serving(store, *FREE_PORTS, **settings)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with supervised(ServerProcess(process)) as server:
        yield server


def version(server: ServerProcess) -> int:
    """Returns the version that answers, 0 for none; checks its numbers."""
    reply = infer(server, "linear", linear_input(ROW))
    if reply.status in (404, 503):
        return 0
    number = int(reply.json()["model_version"])
    assert reply.outputs() == {"y": [number * x for x in ROW]}
    return number


def test_a_version_from_its_push_to_its_deletion(bucket: str, tmp_path: Path) -> None:
    source = ModelStore(str(tmp_path / "source"))
    for scale in (1.0, 2.0, 3.0):
        onnx_models.publish(source.url, "linear", onnx_models.linear(scale))
    settings = {"registry": "open", "upload_folder": str(tmp_path / "uploads")}
    with served(bucket, newest_versions=0, **settings) as server:
        url = f"http://{server.http}"
        told = urllib.request.urlopen(f"{url}/v1/registry/events?after=0", timeout=60)

        def flambeau(*words: str) -> None:
            done = run_flambeau(*words)
            assert done.returncode == 0, done.stderr

        for number in ("1", "2", "3"):
            flambeau("push", f"linear/{number}", "--to", url, "--store", source.url)
        flambeau("models", "promote", "linear", "1", "--at", url)
        until_true(lambda: version(server) == 1)
        steps = ["--steps", "50%", "--every", "1h", "--mirror", "0%"]
        flambeau("rollout", "start", "linear", "2", *steps, "--at", url)
        until_true(lambda: version(server) == 2)
        until_true(lambda: version(server) == 1)
        flambeau("rollout", "promote", "linear", "--at", url)
        until_true(lambda: {version(server) for _ in range(8)} == {2})
        flambeau("models", "rollback", "linear", "--at", url)
        until_true(lambda: {version(server) for _ in range(8)} == {1})
        gone = "/v1/registry/models/linear/versions/3"
        until_true(lambda: call(server, "DELETE", gone).status == 200)
        assert call(server, "GET", gone).status == 404
        again = post(server, "/v1/registry/models/linear/aliases/canary", {"version": 3}, AS_JSON)
        assert again.status == 409
        kinds = []
        while "deleted" not in kinds:
            line = told.readline().decode()
            if line.startswith("event: "):
                kinds.append(line.removeprefix("event: ").strip())
        assert kinds.count("promoted") == 2
        assert {"pushed", "traffic", "rolled_back"} <= set(kinds)
        told.close()
    store = ModelStore(bucket)
    assert store.versions("linear") == [1, 2]
    pointers = store.pointers("linear")
    assert pointers is not None
    assert pointers.aliases == {"production": 1}
