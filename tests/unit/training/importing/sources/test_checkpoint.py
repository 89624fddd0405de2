"""Weights with their class: what does not fit is named, and pickles run only if allowed."""

from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn

from model_store.errors import ArchiveError
from tests.unit.training.importing import foreign_models
from tests.unit.training.importing.foreign_models import TwoInputs, evil_torch_file, zip_bomb
from training.errors import SourceError
from training.importing.original import Original
from training.importing.sources.checkpoint import read
from training.importing.sources.source_options import SourceOptions

CLASS = f"{foreign_models.__file__}:TwoInputs"
EXAMPLES = {
    "image": np.random.default_rng(2).standard_normal((5, 4)).astype(np.float32),
    "mask": np.ones((5, 3), np.float32),
}


def read_here(path: Path, tmp_path: Path, **options: object) -> Original:
    given = {"network": CLASS, "examples": EXAMPLES, **options}
    return read(path, SourceOptions(**given), tmp_path / "staging")  # type: ignore[arg-type]


def outputs_of(original: Original) -> list[np.ndarray]:
    module = torch.export.load(original.file).module()
    with torch.no_grad():
        found = module(*(torch.from_numpy(array) for array in EXAMPLES.values()))
    return [tensor.numpy() for tensor in found]


@pytest.mark.parametrize("form", ["plain", "nested", "parallel", "safetensors"])
def test_a_network_is_exported_with_its_weights(tmp_path: Path, form: str) -> None:
    network = TwoInputs().eval()
    weights = network.state_dict()
    path = tmp_path / ("w.safetensors" if form == "safetensors" else "w.pt")
    if form == "safetensors":
        safetensors.torch.save_file(weights, path)
    elif form == "nested":
        torch.save({"state_dict": weights, "epoch": 3}, path)
    elif form == "parallel":
        torch.save({f"module.{name}": tensor for name, tensor in weights.items()}, path)
    else:
        torch.save(weights, path)
    original = read_here(path, tmp_path)
    assert original.kind == "pt2"
    assert [spec.name for spec in original.signature.outputs] == ["logits", "total"]
    assert original.signature.inputs[0].shape == (-1, 4)
    with torch.no_grad():
        wanted = network(*(torch.from_numpy(array) for array in EXAMPLES.values()))
    np.testing.assert_allclose(outputs_of(original)[0], wanted["logits"].numpy(), atol=1e-6)
    assert len(original.notes) == (form in ("nested", "parallel"))


def test_weights_that_do_not_fit_are_named_on_both_sides(tmp_path: Path) -> None:
    weights = TwoInputs().state_dict()
    weights["extra"] = weights.pop("layer.bias")
    torch.save(weights, tmp_path / "w.pt")
    with pytest.raises(SourceError) as caught:
        read_here(tmp_path / "w.pt", tmp_path, args={"width": 5})
    text = str(caught.value)
    assert "missing in the file: layer.bias" in text
    assert "unknown to the class: extra" in text
    assert "layer.weight [3, 4] for [5, 4]" in text
    assert "TwoInputs" in text
    assert "\n" not in text


def test_code_in_a_pickle_does_not_run(tmp_path: Path) -> None:
    marker, path = tmp_path / "ran", tmp_path / "w.pt"
    evil_torch_file(path, marker)
    with pytest.raises(SourceError, match=r"would run code.*--allow-pickle only for files"):
        read_here(path, tmp_path)
    assert not marker.exists()
    with pytest.raises(SourceError, match="more than weights by name"):
        read_here(path, tmp_path, allow_pickle=True)
    assert marker.exists()  # the test would notice a pickle that runs


def test_a_whole_module_is_read_if_pickles_are_allowed(tmp_path: Path) -> None:
    torch.save(TwoInputs().eval(), tmp_path / "net.pt")
    with pytest.raises(SourceError, match=r"foreign_models\.TwoInputs"):
        read_here(tmp_path / "net.pt", tmp_path, network="")
    original = read_here(tmp_path / "net.pt", tmp_path, network="", allow_pickle=True)
    assert original.kind == "pt2"


def test_a_class_is_asked_for(tmp_path: Path) -> None:
    torch.save(nn.Linear(2, 2).state_dict(), tmp_path / "w.pt")
    with pytest.raises(SourceError, match=r"--network file\.py:Net"):
        read_here(tmp_path / "w.pt", tmp_path, network="")


def test_examples_are_asked_for_by_the_names_of_forward(tmp_path: Path) -> None:
    torch.save(TwoInputs().state_dict(), tmp_path / "w.pt")
    with pytest.raises(SourceError, match=r"image \[rows, \.\.\.\], mask \[rows, \.\.\.\]"):
        read_here(tmp_path / "w.pt", tmp_path, examples=None)


def test_a_network_of_100_gigabytes_is_refused_before_it_is_allocated(tmp_path: Path) -> None:
    torch.save(TwoInputs().state_dict(), tmp_path / "w.pt")
    with pytest.raises(SourceError, match=r"needs 111\.8 GiB for its weights"):
        read_here(tmp_path / "w.pt", tmp_path, args={"width": 6_000_000_000})


@pytest.mark.parametrize("name", ["w.pt", "w.safetensors"])
@pytest.mark.parametrize("data", [b"\x89PNG" * 10, b"\xff" * 100, b"\0"])
def test_other_files_are_refused(tmp_path: Path, name: str, data: bytes) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(SourceError, match=name):
        read_here(tmp_path / name, tmp_path)


def test_a_zip_bomb_is_not_inflated(tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="inflates to"):
        read_here(zip_bomb(tmp_path / "w.pt", "x"), tmp_path)
