"""Rollouts of a TorchServe archive's model: drawn on TorchServe's ports, then the default version.

The door's store is this server's own, in a temporary folder; its pointers are moved as the
controller of a rollout moves them.
"""

import json
import tempfile
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from model_store.rollouts import transitions
from model_store.rollouts.traffic import Rollout
from model_store.store import ModelStore
from tests.fixtures.model_archives import write_archive
from tests.fixtures.redis_setups import wait_until
from tests.fixtures.torchserve_messages import TorchServeStub, pb
from tests.fixtures.torchserve_server import TorchServeProcess, running_torchserve

pytestmark = pytest.mark.long

TELL = """
    def handle(data, context):
        if data is None:
            return None
        return [context.manifest["model"]["modelVersion"]] * len(data)
    """
"""Answers with its version."""


class Drawn:
    """A server with two versions of one model, the first of which is the default one."""

    def __init__(self, server: TorchServeProcess, model: str) -> None:
        self.server, self.model = server, model
        (folder,) = Path(tempfile.gettempdir()).glob(f"flambeau-torchserve-*/store/{model}")
        self.store = ModelStore(str(folder.parent))

    def manage(self, method: str, path: str) -> Any:
        said = self.server.manage(method, path)
        assert said.status == 200, said
        return said.document

    def answering(self, version: str = "") -> str:
        """Returns the version that answers over REST."""
        said = self.server.predict(f"{self.model}/{version}" if version else self.model, b"x")
        assert said.status == 200, said
        return said.body.decode()

    def default(self) -> str:
        """Returns the default version, as management shows it."""
        (shown,) = self.manage("GET", f"/models/{self.model}")
        return str(shown["modelVersion"])

    def begin(self, **fields: Any) -> Rollout:
        numbers = self.store.versions(self.model)
        rollout = Rollout(
            candidate=numbers[1], baseline=numbers[0], steps=(0.5,), mirrored=0, **fields
        )
        before = self.store.pointers(self.model)
        self.store.point(self.model, transitions.begun(before, rollout, "test", "a test"))
        return rollout

    def promote(self, rollout: Rollout) -> None:
        before = self.store.pointers(self.model)
        assert before is not None
        self.store.point(self.model, transitions.promoted(before, rollout.id, "test", "a test"))


@pytest.fixture
def drawn(tmp_path: Path) -> Iterator[Drawn]:
    archives, model = tmp_path / "archives", f"drawn-{uuid.uuid4().hex[:8]}"
    archives.mkdir()
    for version in ("1.0", "2.0"):
        path = write_archive(archives, TELL, name=model, modelVersion=version)
        path.rename(archives / f"{version}.mar")
    arguments = ("--disable-token-auth", "--enable-model-api")
    with running_torchserve(tmp_path, *arguments) as server:
        for version in ("1.0", "2.0"):
            said = server.manage("POST", f"/models?url={version}.mar&initial_workers=1")
            assert said.status == 200, said
        yield Drawn(server, model)


def test_versions_are_drawn_on_both_protocols_and_named_ones_are_kept(drawn: Drawn) -> None:
    assert {drawn.answering() for _ in range(8)} == {"1.0"}
    drawn.begin()
    wait_until(lambda: drawn.answering() == "2.0")
    counted = Counter(drawn.answering() for _ in range(60))
    assert counted.keys() == {"1.0", "2.0"}
    assert min(counted.values()) >= 10
    assert {drawn.answering("1.0") for _ in range(20)} == {"1.0"}
    port = drawn.server.ports["grpc_inference_port"]
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = TorchServeStub(channel, "inference")
        message = pb.PredictionsRequest(model_name=drawn.model, input={"data": b"x"})
        answers = {stub.Predictions(message, timeout=60).prediction for _ in range(40)}
    assert answers == {b"1.0", b"2.0"}


def test_sticky_header_keeps_its_version(drawn: Drawn) -> None:
    drawn.begin(sticky="header:x-user")
    wait_until(lambda: any(drawn_for(drawn, f"user-{n}") == "2.0" for n in range(8)))
    users = [f"user-{number}" for number in range(12)]
    first = {user: drawn_for(drawn, user) for user in users}
    assert set(first.values()) == {"1.0", "2.0"}
    assert {user: drawn_for(drawn, user) for user in users} == first


def drawn_for(drawn: Drawn, user: str) -> str:
    said = drawn.server.predict(drawn.model, b"x", x_user=user)
    assert said.status == 200, said
    return said.body.decode()


def test_promoted_version_is_the_default_one_and_stays_it(drawn: Drawn) -> None:
    drawn.promote(drawn.begin())
    wait_until(lambda: drawn.answering() == "2.0" and drawn.default() == "2.0")
    drawn.manage("PUT", f"/models/{drawn.model}/1.0?min_worker=2&synchronous=true")
    assert drawn.default() == "2.0"
    assert {drawn.answering() for _ in range(8)} == {"2.0"}
    refused = drawn.server.manage("DELETE", f"/models/{drawn.model}/2.0")
    assert (refused.status, json.loads(refused.body)["code"]) == (403, 403)
    drawn.manage("DELETE", f"/models/{drawn.model}/1.0")
    assert {drawn.answering() for _ in range(8)} == {"2.0"}
