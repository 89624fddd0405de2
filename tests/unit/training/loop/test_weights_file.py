"""Files of weights that other programs wrote: tensors by name, or one line that says why not."""

import io
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from training.errors import RecipeError
from training.loop.weights_file import read_weights_file

WEIGHTS = {"a.weight": torch.arange(6.0).view(2, 3), "a.count": torch.tensor(7)}


class _Runs:
    """Would make a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return (Path.touch, (self.path,))


def saved(value: object, path: Path) -> Path:
    torch.save(value, path)
    return path


@pytest.mark.parametrize("suffix", [".safetensors", ".pt", ".pth", ".bin"])
def test_tensors_are_read_by_name(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"net{suffix}"
    if suffix == ".safetensors":
        save_file(WEIGHTS, path)
    else:
        torch.save(OrderedDict(WEIGHTS), path)
    found = read_weights_file(path, "net")
    assert found.keys() == WEIGHTS.keys()
    assert all(torch.equal(found[name], WEIGHTS[name]) for name in WEIGHTS)


def test_a_file_of_the_older_format_is_read(tmp_path: Path) -> None:
    path = tmp_path / "old.pt"
    torch.save(WEIGHTS, path, _use_new_zipfile_serialization=False)
    assert read_weights_file(path, "old.pt").keys() == WEIGHTS.keys()


@pytest.mark.parametrize("zipped", [True, False])
def test_code_in_a_pickle_never_runs(tmp_path: Path, zipped: bool) -> None:
    made, path = tmp_path / "made", tmp_path / "evil.pt"
    if zipped:
        torch.save({"a": _Runs(made)}, path)
    else:
        path.write_bytes(pickle.dumps({"a": _Runs(made)}))
    with pytest.raises(RecipeError, match=r"^weights evil\.pt is .*no state_dict; save it with"):
        read_weights_file(path, "evil.pt")
    assert not made.exists()


def test_a_pickled_module_is_refused_by_the_name_of_its_class(tmp_path: Path) -> None:
    path = saved(nn.Linear(2, 2), tmp_path / "whole.pt")
    with pytest.raises(RecipeError, match=r"imports torch\.nn\.modules\.linear\.Linear, which may"):
        read_weights_file(path, "whole.pt")


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ({"model": WEIGHTS, "epoch": 3}, r"it holds model, epoch, of which 'model' is a dict"),
        ({"a": torch.ones(1), "b": 3}, r"'b' is a int"),
        ({1: torch.ones(1)}, r"'1' is a Tensor"),
        (torch.ones(3), r"holds a Tensor, and no state_dict"),
        ({}, r"holds an empty dict"),
        ({"a": torch.tensor([1.0, float("nan")])}, r"a holds nan"),
        ({"a": torch.ones(2, 2).to_sparse()}, r"a is sparse, quantized or without values"),
    ],
)
def test_other_objects_are_named(tmp_path: Path, value: object, told: str) -> None:
    path = saved(value, tmp_path / "net.pt")
    with pytest.raises(RecipeError, match=told):
        read_weights_file(path, "net.pt")


def test_a_torchscript_program_is_called_one(tmp_path: Path) -> None:
    path = tmp_path / "script.pt"
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("script/code/__torch__.py", "class Net(Module): ...")
    path.write_bytes(archive.getvalue())
    with pytest.raises(RecipeError, match=r"script\.pt is a TorchScript program"):
        read_weights_file(path, "script.pt")


def test_an_archive_that_unpacks_to_more_than_it_has_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bomb.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("bomb/data.pkl", bytes(10_000_000))
    with pytest.raises(RecipeError, match=r"bomb\.pt unpacks to 10,000,000 bytes, more than"):
        read_weights_file(path, "bomb.pt")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("bad.pt", r"weights bad\.pt is damaged, or holds other objects"),
        ("bad.safetensors", r"weights bad\.safetensors cannot be read as safetensors"),
    ],
)
@pytest.mark.parametrize("data", [b"", b"x" * 100, b"PK\x05\x06" + bytes(18)])
def test_damaged_files_are_told(tmp_path: Path, name: str, told: str, data: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(RecipeError, match=told):
        read_weights_file(path, name)
