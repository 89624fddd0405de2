"""The choice of a version's served artifact, and the handling of invalid ones."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from model_store.store import ModelStore
from tests.e2e.rest_calls import call, infer, linear_input
from tests.fixtures.onnx_models import linear, publish
from tests.fixtures.servers import ServerProcess, running_server

ROW = [1.0, 2.0, 3.0, 4.0]
NEARLY = 2.00001
"""A scale within the tolerance of 2, yet different in every output."""


def artifact_of(server: ServerProcess, model: str) -> str:
    return str(call(server, "GET", f"/v2/models/{model}").json()["properties"]["artifact"])


def answer_of(server: ServerProcess, model: str) -> list[float]:
    answer: list[float] = infer(server, model, linear_input(ROW)).outputs()["y"]
    return answer


def assert_refused(server: ServerProcess, model: str, *reasons: str) -> None:
    """Asserts that the model is not ready over every protocol, with these reasons."""
    for version in ("", "1"):
        reply = infer(server, model, linear_input(ROW), version=version)
        assert reply.status == 503
        for reason in reasons:
            assert reason in reply.error()
    assert call(server, "GET", f"/v2/models/{model}/versions/1/ready").status == 503
    assert server.metric("flambeau_model_ready", model=model, version="1") == 0
    assert server.wait_for_log(message="version refused", model=model)["version"] == 1
    printed = [line for line in server.output.all() if line.startswith(f"NOT serving {model} 1: ")]
    assert len(printed) == 1
    assert reasons[0] in printed[0]


@pytest.mark.parametrize(
    ("arguments", "artifact", "scale"),
    [
        ([], "onnx", NEARLY),
        (["--artifact=onnx"], "onnx", NEARLY),
        (["--artifact=onnx-1"], "onnx-1", 2),
    ],
)
def test_fastest_artifact_unless_another_is_named(
    tmp_path: Path, arguments: list[str], artifact: str, scale: float
) -> None:
    publish(str(tmp_path), "linear", linear(NEARLY), linear(2))
    with running_server(tmp_path, *arguments) as server:
        assert artifact_of(server, "linear") == artifact
        expected = np.array(ROW, np.float32) * np.float32(scale)
        assert np.array(answer_of(server, "linear"), np.float32).tolist() == expected.tolist()
        assert f"serving linear 1 ({artifact})" in server.output.all()


def test_artifact_that_is_not_there(tmp_path: Path) -> None:
    publish(str(tmp_path), "linear", linear(), linear())
    with running_server(tmp_path, "--artifact=onnx-9") as server:
        assert_refused(server, "linear", "no artifact 'onnx-9'; it has: onnx, onnx-1")


def test_artifact_out_of_tolerance_gives_way_to_the_next_best(tmp_path: Path) -> None:
    publish(str(tmp_path), "linear", linear(3), linear(float("nan")), linear(2))
    with running_server(tmp_path) as server:
        assert artifact_of(server, "linear") == "onnx-2"
        assert answer_of(server, "linear") == [2, 4, 6, 8]
        for artifact, difference in (("onnx", "6"), ("onnx-1", "inf")):
            log = server.wait_for_log(message="artifact refused", artifact=artifact)
            assert f"largest difference {difference} is above 0.0001" in log["reason"]


def test_named_artifact_out_of_tolerance_is_not_served(tmp_path: Path) -> None:
    publish(str(tmp_path), "linear", linear(3), linear(2))
    with running_server(tmp_path, "--artifact=onnx") as server:
        assert_refused(server, "linear", "artifact onnx: replaying the golden rows")


def test_version_none_of_whose_artifacts_passes_has_a_reason_for_each(tmp_path: Path) -> None:
    wrong = {"y": np.full((8, 4), 1000, np.float32)}
    publish(str(tmp_path), "linear", linear(3), linear(2), golden_outputs=wrong)
    with running_server(tmp_path) as server:
        assert_refused(server, "linear", "artifact onnx: replaying", "artifact onnx-1: replaying")


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def flip_name_of_graph(version: Path) -> None:
    """Changes one byte that no runtime checks: only the digest reveals it."""
    path = version / "model.0.onnx"
    flip(path, path.read_bytes().index(b"\x12\x01g") + 2)
    assert onnx.load_model_from_string(path.read_bytes()).graph.name == "f"


def edit_manifest(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def edit(version: Path) -> None:
        path = version / "manifest.json"
        document = json.loads(path.read_bytes())
        change(document)
        path.write_text(json.dumps(document))

    return edit


DAMAGE: dict[str, tuple[Callable[[Path], object], tuple[str, ...]]] = {
    "flipped byte": (flip_name_of_graph, ("model.0.onnx: sha256 differs from the manifest",)),
    "cut artifact": (
        lambda v: (v / "model.0.onnx").write_bytes((v / "model.0.onnx").read_bytes()[:-1]),
        ("model.0.onnx: sha256 differs", "bytes"),
    ),
    "lost artifact": (lambda v: (v / "model.0.onnx").unlink(), ("model.0.onnx", "not found")),
    "flipped golden": (
        lambda v: flip(v / "golden.safetensors", -1),
        ("golden.safetensors: sha256 differs",),
    ),
    "lost golden": (lambda v: (v / "golden.safetensors").unlink(), ("golden.safetensors",)),
    "manifest cut": (
        lambda v: (v / "manifest.json").write_bytes((v / "manifest.json").read_bytes()[:100]),
        ("manifest.json is not JSON",),
    ),
    "manifest of the future": (
        edit_manifest(lambda m: m.update(schema_version=2)),
        ("manifest.json has schema_version 2, written by a newer flambeau", "upgrade"),
    ),
    "unknown key": (
        edit_manifest(lambda m: m.update(singature=1)),
        ("unknown key 'singature' (did you mean 'signature'?)",),
    ),
    "artifact elsewhere": (
        edit_manifest(lambda m: m["artifacts"][0]["file"].update(file="../../secret")),
        ("artifacts.0.file.file", "not allowed"),
    ),
}


@pytest.fixture(scope="module")
def damaged_server(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Runs a server with one model for each kind of damage, and an intact one."""
    store = tmp_path_factory.mktemp("damaged")
    for what, (damage, _) in DAMAGE.items():
        publish(str(store), what.replace(" ", "-"), linear(2))
        damage(store / what.replace(" ", "-") / "1")
    publish(str(store), "whole", linear(2))
    with running_server(store) as server:
        yield server


@pytest.mark.parametrize("what", DAMAGE)
def test_damaged_version_is_refused_and_says_why(damaged_server: ServerProcess, what: str) -> None:
    assert_refused(damaged_server, what.replace(" ", "-"), *DAMAGE[what][1])


def test_damaged_versions_harm_no_other_model(damaged_server: ServerProcess) -> None:
    assert answer_of(damaged_server, "whole") == [2, 4, 6, 8]
    ready = call(damaged_server, "GET", "/v2/health/ready")
    assert ready.status == 503
    for what in DAMAGE:
        assert f"model '{what.replace(' ', '-')}'" in ready.json()["reason"]


def test_damaged_artifact_gives_way_to_the_next_best(tmp_path: Path) -> None:
    publish(str(tmp_path), "linear", linear(NEARLY), linear(2))
    flip_name_of_graph(tmp_path / "linear" / "1")
    with running_server(tmp_path) as server:
        assert artifact_of(server, "linear") == "onnx-1"
        assert answer_of(server, "linear") == [2, 4, 6, 8]
        log = server.wait_for_log(message="artifact refused", artifact="onnx")
        assert "sha256 differs" in log["reason"]


def test_repaired_version_is_served_without_a_restart(tmp_path: Path) -> None:
    publish(str(tmp_path), "linear", linear(2))
    path = tmp_path / "linear" / "1" / "model.0.onnx"
    whole = path.read_bytes()
    path.write_bytes(b"damaged")
    with running_server(tmp_path, retry_failed_s=0.1, store_poll_interval_s=0.05) as server:
        assert infer(server, "linear", linear_input(ROW)).status == 503
        path.write_bytes(whole)
        server.wait_for_log(message="version live", model="linear", version=1)
        assert answer_of(server, "linear") == [2, 4, 6, 8]
        assert server.metric("flambeau_model_ready", model="linear", version="1") == 1


def test_damaged_newest_version_leaves_the_one_before_it_live(tmp_path: Path) -> None:
    publish(str(tmp_path), "linear", linear(1))
    publish(str(tmp_path), "linear", linear(2))
    flip_name_of_graph(tmp_path / "linear" / "2")
    with running_server(tmp_path) as server:
        assert answer_of(server, "linear") == ROW
        reply = infer(server, "linear", linear_input(ROW), version="2")
        assert reply.status == 503
        assert "sha256 differs" in reply.error()


def test_damaged_production_version_is_not_replaced_behind_its_back(tmp_path: Path) -> None:
    for scale in (1, 2):
        publish(str(tmp_path), "linear", linear(scale))
    ModelStore(str(tmp_path)).promote("linear", 1)
    flip_name_of_graph(tmp_path / "linear" / "1")
    with running_server(tmp_path) as server:
        reply = infer(server, "linear", linear_input(ROW))
        assert reply.status == 503
        assert "version 1: artifact onnx" in reply.error()
        assert infer(server, "linear", linear_input(ROW), version="2").status == 200


@pytest.mark.parametrize("when", ["before the start", "while it runs"])
def test_pointer_file_that_is_broken_changes_nothing(tmp_path: Path, when: str) -> None:
    for scale in (1, 2):
        publish(str(tmp_path), "linear", linear(scale))
    ModelStore(str(tmp_path)).promote("linear", 1)
    broken = tmp_path / "linear" / "pointers" / "00000002.json"
    if when == "before the start":
        broken.write_text("{}")
    with running_server(tmp_path) as server:
        broken.write_text("{}")
        server.wait_for_log(message="pointers of linear are unreadable")
        assert answer_of(server, "linear") == ROW
