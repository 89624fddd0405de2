"""Weights from elsewhere, by the section of the guide: published, served, and refused."""

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from model_store.store import ModelStore
from tests.e2e.rest_calls import infer, tensor
from tests.fixtures.servers import ServerProcess, running_server
from training.process.file_digest import file_sha256

pytestmark = pytest.mark.long
ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs/guides/training.md"
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
MAX_DIFFERENCE = 1e-4
"""Tolerance of ONNX in FP32 unless a recipe changes it."""


def shell(folder: Path, text: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    environment["PYTHONPATH"] = str(ROOT)
    return subprocess.run(
        ["bash", "-ec", text], cwd=folder, env=environment, capture_output=True, text=True
    )


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs the blocks of the guide's section in a new folder."""
    folder = tmp_path_factory.mktemp("project")
    section = GUIDE.read_text().split("## Weights from elsewhere\n")[1].split("\n## ")[0]
    blocks = BLOCK.findall(section)
    assert len(blocks) == 2
    for block in blocks:
        done = shell(folder, block)
        assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def server(project: Path) -> Iterator[ServerProcess]:
    with running_server(project / "var/model_store") as server:
        yield server


def plain_module(project: Path) -> torch.nn.Module:
    """The user's class with the user's weights, without anything of this project."""
    spec = importlib.util.spec_from_file_location("nets", project / "my_project/nets.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    network: torch.nn.Module = module.Net()
    network.load_state_dict(torch.load(project / "my_project/net.pt", weights_only=True))
    return network.eval()


def test_answers_are_those_of_the_plain_module(project: Path, server: ServerProcess) -> None:
    rows = np.random.default_rng(3).random((5, 1, 8, 8), np.float32)
    reply = infer(server, "brought", tensor("image", "FP32", rows.shape, rows.ravel().tolist()))
    with torch.no_grad():
        expected = plain_module(project)(torch.from_numpy(rows)).numpy()
    found = np.array(reply.json()["outputs"][0]["data"], np.float32).reshape(expected.shape)
    assert np.abs(found - expected).max() <= MAX_DIFFERENCE
    assert expected.std() > 1  # of a trained network


def test_the_lineage_names_the_file(project: Path) -> None:
    manifest = ModelStore(str(project / "var/model_store")).manifest("brought", 1)
    weights = project / "my_project/net.pt"
    told = manifest.lineage.weights
    assert told is not None
    assert (told.path, told.sha256) == ("my_project/net.pt", file_sha256(weights))
    assert {artifact.name for artifact in manifest.artifacts} == {"onnx", "torchscript"}
    assert manifest.lineage.metrics["test/accuracy"] > 0.9
    shown = shell(project, "flambeau models show brought")
    assert f"my_project/net.pt, sha256 {told.sha256}" in shown.stdout
    page = (project / "var/model_store/brought/1/report.html").read_text()
    assert "The weights were given" in page


def test_weights_of_another_network_publish_nothing(project: Path) -> None:
    state = torch.load(project / "my_project/net.pt", weights_only=True)
    del state["layers.5.bias"]
    torch.save(state, project / "my_project/other.pt")
    command = "flambeau train my_project/brought.yaml --set weights=my_project/other.pt"
    done = shell(project, command)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "my_project/other.pt: they do not fit model.target my_project/nets.py:Net" in done.stderr
    assert "1 missing there: layers.5.bias" in done.stderr
    assert ModelStore(str(project / "var/model_store")).versions("brought") == [1]
