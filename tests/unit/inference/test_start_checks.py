"""Settings that this machine cannot fulfil are refused before a server starts."""

import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from flambeau.cli import app
from services.inference.config import InferenceConfig, InferenceSettings
from services.inference.server import serve
from services.inference.start_checks import check_machine
from services.settings import ConfigError, checked


def settings(**given: str) -> InferenceSettings:
    return checked(InferenceSettings, given)


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def test_what_this_machine_has_is_accepted(tmp_path: Path) -> None:
    check_machine(settings())
    check_machine(settings(trusted_keys=str(tmp_path)))


@pytest.mark.usefixtures("no_gpu")
def test_a_gpu_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match=r"device cuda:0 was asked for, .* serve on device cpu$"):
        check_machine(settings(device="cuda"))


def test_a_gpu_without_torch_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "services.inference.backends.gpu.cuda_device", None)
    with pytest.raises(ConfigError, match=r"device cuda:1 needs torch, .*pip install"):
        check_machine(settings(device="cuda:1"))


def test_a_folder_of_keys_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"trusted_keys is .*/none, which is not a folder; give"):
        check_machine(settings(trusted_keys=str(tmp_path / "none")))


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("command", ["serve", "up"])
def test_a_server_does_not_start(tmp_path: Path, command: str) -> None:
    settings = ["--store", str(tmp_path / "store"), "--set", "device=cuda"]
    found = CliRunner().invoke(app, [command, *settings])
    assert (found.exit_code, found.stderr.count("\n")) == (2, 1)
    assert found.stderr.startswith("error: device cuda:0 was asked for")


@pytest.mark.usefixtures("no_gpu")
def test_a_worker_does_not_start(tmp_path: Path) -> None:
    given = {"store": str(tmp_path), "queue": "redis://127.0.0.1:1", "device": "cuda"}
    config = checked(InferenceConfig, given)
    with pytest.raises(ConfigError, match="finds no CUDA GPU here"):
        serve(config)
