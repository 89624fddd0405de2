"""Publishing what cannot be published: one line with the cause, no version and no folder left."""

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import torch
from torch import nn

import flambeau


class Echo:
    """Answers with its input."""

    def infer(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Answers a batch."""
        return {"y": inputs["x"]}


def wide() -> nn.Module:
    """Returns a network of 1 MiB."""
    return nn.Linear(256, 1024).eval()


def on_meta() -> nn.Module:
    """Returns a network without values."""
    return nn.Linear(4, 3, device="meta").eval()


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of temporary files of this process and its children."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 256 KiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(folder)]
    if os.geteuid() or subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("a small disk needs root, and permission to mount")
    yield folder
    # Lazily: torch may keep a file of its own open there.
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def refusal(model: Any, examples: Any, store: Path, temporary: Path, **options: Any) -> str:
    """Returns the error; checks that neither a version nor a temporary file is left."""
    with pytest.raises(flambeau.PublishError) as refused:
        flambeau.publish(model, examples, name="mine", to=store, progress=False, **options)
    assert "\n" not in str(refused.value)
    assert list(store.glob("mine/*/manifest.json")) == []
    assert list(temporary.glob("flambeau-*")) == []
    return str(refused.value)


def test_a_store_on_a_full_disk(small_disk: Path, temporary: Path) -> None:
    text = refusal(wide(), torch.ones(4, 256), small_disk, temporary, artifacts=["onnx"])
    assert text.startswith("nothing was published: cannot write 'mine/1/model.onnx' in ")
    assert "No space left on device" in text
    assert text.endswith("make room there, then try again")
    assert list(small_disk.glob("mine/*/*.onnx")) == []


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda file: (wide(), torch.ones(4, 256), {}), "the model has 1,052,672 bytes, and"),
        (
            lambda file: (nn.Linear(256, 3).eval(), torch.ones(400, 256), {}),
            "is full: torch cannot",
        ),
        (lambda file: (Echo, {"x": np.ones((400, 256))}, {}), "cannot write the examples to"),
        (lambda file: (Echo, {"x": np.ones(4)}, {"files": [file]}), "No space left on device"),
    ],
)
def test_temporary_files_on_a_full_disk(
    small_disk: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[[Path], Any],
    words: str,
) -> None:
    """It ends no process: torch aborts the one that writes an archive to a full disk."""
    (tmp_path / "large.bin").write_bytes(bytes(2**20))
    monkeypatch.setattr(tempfile, "tempdir", str(small_disk))
    model, examples, options = make(tmp_path / "large.bin")
    text = refusal(model, examples, tmp_path / "store", small_disk, **options)
    assert words in text
    assert "set TMPDIR to another folder" in text


def test_temporary_files_on_a_full_disk_where_no_child_captures(
    small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch would abort this process."""
    monkeypatch.setattr(tempfile, "tempdir", str(small_disk))
    server = grpc.server(ThreadPoolExecutor(1))
    server.start()  # a process with its threads is not forked
    try:
        net, rows = nn.Linear(256, 3).eval(), torch.ones(400, 256)
        text = refusal(net, rows, tmp_path / "store", small_disk)
    finally:
        server.stop(None).wait()
    assert "is full: torch cannot" in text


@pytest.mark.parametrize(
    ("make", "examples", "options", "words"),
    [
        (on_meta, torch.ones(4, 4), {}, "the model's 'weight' is on the device meta"),
        (wide, torch.zeros(1).expand(4, 10**12, 256), {}, "GiB are free; give fewer rows"),
        (lambda: Echo, {"x": np.broadcast_to(1.0, (4, 10**13))}, {}, "examples['x'] [4, 1000"),
        (lambda: Echo, {"x": [1.0]}, {"files": ["tokenizer.json"]},
         "files names 'tokenizer.json', which is no file; give its path"),
    ],
)  # fmt: skip
def test_what_is_larger_than_memory_or_missing(
    make: Callable[[], Any],
    examples: Any,
    options: dict[str, Any],
    words: str,
    tmp_path: Path,
    temporary: Path,
) -> None:
    assert words in refusal(make(), examples, tmp_path / "store", temporary, **options)
