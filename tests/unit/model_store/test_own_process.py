"""Our child processes, in a working directory with files that bear the names of our modules."""

import subprocess
import sys
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from flambeau.client import Client
from flambeau.server_process import server_process
from model_store.host.own_process import own_command
from tests.fixtures.onnx_models import linear, publish

ROOT = Path(__file__).parents[3]
TRAPS = ("services", "flambeau", "training", "model_store")
RUN_ISOLATED = """
import sys
sys.path.pop(0)
from math import sqrt
from training.process.isolated_run import run_isolated
print(run_isolated(sqrt, 9.0, time_limit_s=60, memory_limit_bytes=2**30))
"""
"""A program whose process imports nothing from the working directory, like `flambeau`."""


@pytest.fixture
def trapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory."""
    folder = tmp_path / "folder"
    for name in TRAPS:
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(f"raise SystemExit('{name} was run')")
    (folder / "random.py").write_text("raise SystemExit('random was run')")
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.parametrize("isolate", [False, True])  # the one tries artifacts, the other has workers
def test_a_server_serves_where_files_bear_the_names_of_its_modules(
    trapped: Path, isolate: bool
) -> None:
    store = str(trapped.parent / "store")
    publish(store, "linear", linear(2), golden={"x": np.zeros((1, 4), np.float32)})
    with server_process(["--store", store, "--set", f"isolate={isolate}"]) as server:
        with urllib.request.urlopen(f"http://{server.http}/v2/health/ready") as reply:
            assert reply.status == 200
        with Client(server.grpc) as client:
            answer = client.model("linear")(x=np.ones((1, 4), np.float32))
    assert answer.tolist() == [[2, 2, 2, 2]]


@pytest.mark.parametrize("module", ["services.gateway", "services.inference", "flambeau"])
def test_a_child_runs_our_module_and_none_of_the_working_directory(
    trapped: Path, module: str
) -> None:
    command = own_command(module, "--help")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "Usage:" in done.stdout or "usage:" in done.stdout


def test_a_child_runs_the_modules_of_the_checkout_that_is_named(tmp_path: Path) -> None:
    package = tmp_path / "flambeau"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text("import sys; print(__name__, *sys.argv[1:])")
    command = own_command("flambeau", "serve", "now", packages=tmp_path)
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("__main__ serve now\n", "")


def test_an_export_runs_in_a_process_that_ignores_the_working_directory(trapped: Path) -> None:
    command = [sys.executable, "-c", RUN_ISOLATED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout == "3.0\n", done.stderr
