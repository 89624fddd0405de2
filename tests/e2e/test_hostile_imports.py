"""Hostile files: each is refused in one line, its code does not run, the store does not change."""

import hashlib
import json
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from flambeau.cli import app
from tests.fixtures.shaped_models import publish
from tests.unit.training.importing import foreign_models
from tests.unit.training.importing.foreign_models import (
    evil_torch_file,
    point_outside,
    rewrite,
    write_onnx,
    write_program,
    write_script,
    zip_bomb,
)

Make = Callable[[Path, Path], list[str]]
"""Writes files into a folder; given a marker that their code would create, returns arguments."""


def weights_with_code(folder: Path, marker: Path) -> list[str]:
    evil_torch_file(folder / "w.pt", marker)
    np.savez(folder / "x.npz", image=np.ones((2, 4), np.float32), mask=np.ones((2, 3), np.float32))
    network = f"{foreign_models.__file__}:TwoInputs"
    return [str(folder / "w.pt"), "--network", network, "--examples", str(folder / "x.npz")]


def mlflow_folder(folder: Path) -> Path:
    """Returns where an MLflow folder has its pickled module."""
    (folder / "MLmodel").write_text("flavors:\n  pytorch: {model_data: data}\n")
    (folder / "data").mkdir()
    return folder / "data" / "model.pth"


def folder_with_code(folder: Path, marker: Path) -> list[str]:
    evil_torch_file(mlflow_folder(folder), marker)
    return [str(folder)]


def program_with_code(folder: Path, marker: Path) -> list[str]:
    path = write_program(folder / "net.pt2", nn.Linear(4, 3), (torch.ones(2, 4),))
    evil = evil_torch_file(folder / "evil.pt", marker)
    return [str(rewrite(path, {"data/sample_inputs/model.pt": evil}))]


def native_code(folder: Path, marker: Path) -> list[str]:
    path = write_script(folder / "net.pt2")
    return [str(rewrite(path, {"data/aotinductor/model/wrapper.so": b"\x7fELF"}))]


def external_data(folder: Path, marker: Path) -> list[str]:
    return [str(point_outside(folder / "net.onnx", "/etc/passwd"))]


def custom_operators(folder: Path, marker: Path) -> list[str]:
    return [str(write_onnx(folder / "net.onnx", domain="acme.ops"))]


def bomb(folder: Path, marker: Path) -> list[str]:
    return [str(zip_bomb(folder / "net.pt2", "archive_format"))]


def bomb_in_a_folder(folder: Path, marker: Path) -> list[str]:
    zip_bomb(mlflow_folder(folder), "constants.pkl")
    return [str(folder)]


def endless_header(folder: Path, marker: Path) -> list[str]:
    arguments = weights_with_code(folder, marker)
    path = folder / "w.safetensors"
    tensor = {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}
    header = json.dumps({"w": tensor}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    return [str(path), *arguments[1:]]


HOSTILE: dict[str, tuple[Make, list[str]]] = {
    "weights with code": (weights_with_code, ["w.pt", "posix.mkdir", "--allow-pickle only for"]),
    "a folder with code": (folder_with_code, ["model.pth", "pickled", "--allow-pickle only for"]),
    "a program with code": (program_with_code, ["net.pt2", "contains code", "--allow-pickle only"]),
    "native code": (native_code, ["net.pt2", "native code", "--allow-native-code only for"]),
    "external data": (external_data, ["net.onnx", "'/etc/passwd'", "copy it there"]),
    "custom operators": (custom_operators, ["net.onnx", "acme.ops", "export"]),
    "a zip bomb": (bomb, ["net.pt2", "inflates to 300,000,001", "export it again"]),
    "a zip bomb in a folder": (
        bomb_in_a_folder,
        ["model.pth", "inflates to 300,000,001", "export it"],
    ),
    "a tensor of 4 TB": (endless_header, ["w.safetensors", "no safetensors file", "save it again"]),
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a store with one version."""
    folder = tmp_path_factory.mktemp("store")
    publish(str(folder), "scaled")
    return folder


def content(folder: Path) -> dict[str, str]:
    """Returns the digest of every file in a folder, by its path."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_file_is_refused_in_one_line(store: Path, tmp_path: Path, what: str) -> None:
    make, words = HOSTILE[what]
    (tmp_path / "in").mkdir()
    marker, before = tmp_path / "ran", content(store)
    arguments = make(tmp_path / "in", marker)
    result = CliRunner().invoke(app, ["import", *arguments, "--name", "net", "--store", str(store)])
    assert result.exit_code == 2
    *steps, told = result.stderr.splitlines()
    assert steps == [f"reading {arguments[0]}"]
    assert told.startswith("error: ")
    assert [word for word in words if word not in told] == []
    assert not marker.exists(), "its code ran"
    assert content(store) == before
