"""Importing flambeau is cheap, and the client needs no server, no training and no torch."""

import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def modules_after(statement: str) -> set[str]:
    """Returns the modules that a fresh interpreter has loaded after a statement."""
    script = f"import sys\n{statement}\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=True
    )
    return set(done.stdout.split())


def test_the_client_loads_no_server_code_and_no_torch() -> None:
    loaded = modules_after("import flambeau; flambeau.Client; flambeau.AsyncClient")
    assert "flambeau.client" in loaded
    heavy = {"torch", "onnxruntime", "services", "training", "obstore", "typer", "rich"}
    assert not loaded & (heavy | {"model_store.store", "model_store.manifest"})


def test_the_package_alone_loads_nothing() -> None:
    loaded = modules_after("import flambeau")
    assert not loaded & {"grpc", "numpy", "pydantic", "google.protobuf", "importlib.metadata"}


def test_the_infer_command_loads_the_client_only_when_it_runs() -> None:
    loaded = modules_after("import flambeau.commands.infer")
    assert not loaded & {"grpc", "numpy", "pydantic", "google.protobuf"}


def test_a_server_loads_reports_and_the_judge_of_rollouts_only_when_they_are_used() -> None:
    loaded = modules_after("import services.standalone.server, services.registry.rollouts")
    assert "services.rollouts.controller" in loaded
    late = ("reports", "comparison_files", "controlled_rollout", "evidence.judge")
    assert not loaded & {f"services.rollouts.{name}" for name in late}


def test_the_version_is_that_of_pyproject() -> None:
    import flambeau

    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert flambeau.__version__ == pyproject["project"]["version"]


def test_a_name_it_does_not_have_is_an_attribute_error() -> None:
    import flambeau

    assert not hasattr(flambeau, "Clinet")
