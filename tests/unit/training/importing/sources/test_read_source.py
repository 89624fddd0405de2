"""Sources are recognised by content; anything else is refused with the list of formats."""

from pathlib import Path

import pytest
import torch
from torch import nn

from tests.unit.training.importing.foreign_models import write_onnx, write_program, write_script
from training.errors import SourceError
from training.importing.original import Original
from training.importing.sources.read_source import SOURCES, read_source, recognise
from training.importing.sources.source_options import SourceOptions


def reader_of(path: Path) -> str:
    return recognise(path).reader.rpartition(".")[2]


def test_files_are_told_apart_by_content(tmp_path: Path) -> None:
    torch.save(nn.Linear(2, 2).state_dict(), tmp_path / "a.pt")
    write_script(tmp_path / "b.pt")
    write_program(tmp_path / "c.pt", nn.Linear(4, 3), (torch.ones(2, 4),))
    write_onnx(tmp_path / "d.onnx")
    (tmp_path / "e.xml").write_text("<net ")
    (tmp_path / "f.safetensors").write_bytes(b"12345678")
    found = {path.name[0]: reader_of(path) for path in tmp_path.iterdir()}
    assert found == {
        "a": "checkpoint",
        "b": "torchscript_file",
        "c": "pt2_file",
        "d": "onnx_file",
        "e": "openvino_file",
        "f": "checkpoint",
    }


def test_folders_are_told_apart_by_their_files(tmp_path: Path) -> None:
    for name in ("MLmodel", "config.json", "config.pbtxt"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).write_text("{}")
    assert reader_of(tmp_path / "MLmodel") == "mlflow_model"
    assert reader_of(tmp_path / "config.json") == "hugging_face_folder"
    assert reader_of(tmp_path / "config.pbtxt") == "triton_repository"
    assert reader_of(tmp_path) == "triton_repository"  # it has a folder of a model


def test_every_reader_exists() -> None:
    import importlib

    for source in SOURCES:
        assert callable(importlib.import_module(source.reader).read)


def test_anything_else_is_refused_with_the_formats(tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("text")
    (tmp_path / "empty.onnx").touch()
    with pytest.raises(SourceError, match=r"is no file of a model.*ONNX \(\.onnx\)"):
        recognise(tmp_path / "notes.md")
    with pytest.raises(SourceError, match="is no folder of a model"):
        recognise(tmp_path)
    with pytest.raises(SourceError, match="there is no file or folder"):
        recognise(tmp_path / "absent")
    with pytest.raises(SourceError, match="is empty"):
        recognise(tmp_path / "empty.onnx")
    with pytest.raises(SourceError, match="is no regular file"):
        recognise(Path("/dev/zero"))


def test_a_file_is_read_by_its_reader(tmp_path: Path) -> None:
    path = write_onnx(tmp_path / "net.onnx")
    (original,) = read_source(path, SourceOptions(), tmp_path / "staging")
    assert isinstance(original, Original)
    assert original.kind == "onnx"
