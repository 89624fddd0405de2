"""Commands on the registry of a real server: contents, annotations, aliases, uploads, deletion."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from typer.testing import CliRunner

from flambeau.cli import app
from model_store.store import ModelStore
from protos.flambeau.v1 import registry_pb2 as pb
from tests.e2e.grpc_calls import TIMEOUT_S
from tests.e2e.rest_calls import call
from tests.fixtures import onnx_models
from tests.fixtures.servers import ServerProcess, running_server

AS_JSON = {"content-type": "application/json"}
CHUNK_BYTES = 8 * 2**20


@pytest.fixture(scope="module")
def audit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the audit file of the server."""
    return tmp_path_factory.mktemp("audit") / "audit.jsonl"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, audit: Path) -> Iterator[ServerProcess]:
    """Runs a server with four versions of linear, whose registry is open to this machine."""
    folder = tmp_path_factory.mktemp("store")
    for scale in (2.0, 3.0, 4.0, 5.0):
        onnx_models.publish(str(folder), "linear", onnx_models.linear(scale))
    ModelStore(str(folder)).promote("linear", 3)
    with running_server(folder, registry="open", audit_log=str(audit)) as server:
        yield server


def flambeau(*arguments: str) -> str:
    done = CliRunner().invoke(app, [*arguments])
    assert done.exit_code == 0, done.output
    return done.stdout


def refused(*arguments: str) -> str:
    done = CliRunner().invoke(app, [*arguments])
    assert done.exit_code != 0, done.output
    return done.stderr


def begin(server: ServerProcess, version: int) -> str:
    data = f"manifest {version}".encode()
    file = {"file": "manifest.json", "size_bytes": 9 * 2**20}
    file["sha256"] = hashlib.sha256(data).hexdigest()
    other = {"file": "a", "size_bytes": 9 * 2**20, "sha256": "0" * 64}
    document = {"model": "linear", "version": version, "files": [{**file, "size_bytes": 9}, other]}
    body = json.dumps(document).encode()
    found = call(server, "POST", "/v1/registry/uploads", body, AS_JSON)
    assert found.status == 200, found.error()
    return str(found.json()["id"])


def test_contents_and_annotations(server: ServerProcess) -> None:
    url = f"http://{server.http}"
    flambeau("models", "tag", "linear/3", "team=vision", "old=x", "--at", url)
    noted = flambeau("models", "tag", "linear/3", "old=", "--at", url)
    assert noted == "linear/3: - (team=vision)\n"
    noted = flambeau("models", "describe", "linear", "It doubles.", "--server", url)
    assert noted == "linear: It doubles. (no tags)\n"
    assert "linear  3           4       -" in flambeau("models", "list", "--server", url)
    shown = flambeau("models", "show", "linear", "--server", url)
    assert shown.startswith("linear 3 ")
    document = json.loads(
        flambeau("models", "show", "linear@production", "--server", url, "--json")
    )
    assert (document["version"], document["tags"]) == (3, {"team": "vision"})


def test_an_alias_and_a_version_go(server: ServerProcess, audit: Path) -> None:
    url = f"http://{server.http}"
    for alias in ("canary", "shadowed"):
        flambeau("models", "promote", "linear", "1", "--alias", alias, "--at", url)
    named = flambeau("models", "promote", "linear@canary", "--alias", "named", "--at", url)
    assert named.startswith("linear named → 1 (generation ")
    assert "has no alias 'nothing'" in refused("models", "delete", "linear@nothing", "--at", url)
    flambeau("models", "unalias", "linear", "named", "--at", url)
    gone = flambeau("models", "unalias", "linear", "canary", "--at", url, "--why", "over")
    assert gone.startswith("linear has no alias canary any more")
    assert "is not removed" in refused("models", "unalias", "linear", "production", "--at", url)
    with grpc.insecure_channel(server.grpc) as channel:
        remove = channel.unary_unary(
            "/flambeau.v1.Registry/RemoveAlias",
            pb.RemoveAliasRequest.SerializeToString,
            pb.AliasMove.FromString,
        )
        moved = remove(pb.RemoveAliasRequest(model="linear", alias="shadowed"), timeout=TIMEOUT_S)
    assert dict(moved.aliases) == {"production": 3}
    newest = call(server, "GET", "/v1/registry/models/linear/history").json()["moves"][0]
    assert newest["changes"] == [{"alias": "shadowed", "from": 1, "to": None}]
    assert "linear 2 is deleted" in flambeau("models", "delete", "linear/2", "--at", url)
    lines = audit.read_text().splitlines()
    acts = [(one["act"], one["target"], one["outcome"]) for one in map(json.loads, lines)]
    assert ("remove alias", "linear@canary", "done") in acts
    assert ("delete", "linear/2", "done") in acts


def test_unfinished_uploads_are_listed_and_abandoned(server: ServerProcess) -> None:
    url = f"http://{server.http}"
    ids = [begin(server, version) for version in (10, 11)]
    listed = json.loads(flambeau("models", "uploads", "--at", url, "--json"))
    assert [one["id"] for one in listed] == ids[::-1]
    assert "linear/10" in flambeau("models", "uploads", "--at", url)
    with grpc.insecure_channel(server.grpc) as channel:
        ask = channel.unary_unary(
            "/flambeau.v1.Registry/ListUploads",
            pb.ListUploadsRequest.SerializeToString,
            pb.ListUploadsResponse.FromString,
        )
        found = ask(pb.ListUploadsRequest(), timeout=TIMEOUT_S).uploads
    assert [(one.id, one.version) for one in found] == [(ids[1], 11), (ids[0], 10)]
    large = call(
        server, "PUT", f"/v1/registry/uploads/{ids[0]}/files/a?offset=0", bytes(CHUNK_BYTES + 1)
    )
    assert (large.status, large.error()) == (
        413,
        f"the body is over {CHUNK_BYTES} bytes, the limit of what this path or call reads; send "
        "less",
    )
    flambeau("models", "uploads", "--at", url, "--abandon", ids[0])
    left = flambeau("models", "uploads", "--at", url, "--abandon", "all")
    assert left == "you have no unfinished upload there\n"
