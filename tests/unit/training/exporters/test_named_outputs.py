"""Networks that return dictionaries and dataclasses: every kind of artifact has their outputs."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor, nn

from tests.unit.training.recipes import export_here, recipe, splits, untrained
from training.errors import SourceError
from training.importing.sources.source_options import SourceOptions
from training.importing.sources.torch_programs import aoti_package
from training.networks import SmallCnn
from training.verification.runners import file_runner

ROWS = splits().train.inputs["image"]
KINDS = ("onnx", "openvino", "pt2", "torchscript")


@dataclass
class Found:
    """Outputs of `GivesDataclass`."""

    logits: Tensor
    size: Tensor
    cache: Tensor | None = None


class GivesDataclass(nn.Module):
    """Returns classes and a number for each row."""

    def __init__(self) -> None:
        super().__init__()
        self.network = SmallCnn(width=4, classes=3)

    def forward(self, image: Tensor) -> Any:
        logits = self.network(image)
        return Found(logits=logits, size=logits.abs().sum(1))


class GivesDictionary(GivesDataclass):
    """The same by name."""

    def forward(self, image: Tensor) -> Any:
        found = super().forward(image)
        return {"logits": found.logits, "size": found.size}


@pytest.mark.parametrize("network", [GivesDataclass, GivesDictionary])
def test_every_kind_has_the_outputs_of_a_structure(
    network: type[nn.Module], tmp_path: Path
) -> None:
    check_outputs(network, KINDS, tmp_path)


@pytest.mark.long
@pytest.mark.skipif(not shutil.which("g++"), reason="g++ compiles the package, and is not here")
def test_a_package_has_the_outputs_of_a_structure_and_takes_names_from_examples(
    tmp_path: Path,
) -> None:
    """One compilation is used to export and to import."""
    path, image = check_outputs(GivesDataclass, ["aoti"], tmp_path), ROWS[:3]
    staging = tmp_path / "staging"
    options = SourceOptions(examples={"image": image})
    with pytest.raises(SourceError, match=r"native code\. .* pass --allow-native-code only for"):
        aoti_package.read(path, options, staging)
    assert not staging.exists(), "it was not opened"
    with pytest.raises(SourceError, match="takes 1 inputs, whose names and shapes"):
        aoti_package.read(path, SourceOptions(allow_native_code=True), staging)
    options = SourceOptions(examples={"image": image}, allow_native_code=True)
    original = aoti_package.read(path, options, staging)
    assert original.kind == "aoti"
    assert original.signature.inputs[0].shape == (-1, 1, 8, 8)
    assert [spec.shape for spec in original.signature.outputs] == [(-1, 3), (-1,)]
    assert "native code" in original.notes[0]


def check_outputs(network: type[nn.Module], kinds: Sequence[str], folder: Path) -> Path:
    """Exports the network, and checks the outputs of each kind; returns the last one's file."""
    chosen = recipe(
        model={"target": f"{__name__}:{network.__name__}", "outputs": ["logits", "size"]},
        export=[{"kind": kind} for kind in kinds],
    )
    data = splits()
    trained = untrained(chosen, data, folder / "trained")
    assert [spec.name for spec in trained.signature.outputs] == ["logits", "size"]
    exported = export_here(chosen, trained, data, folder)
    for made in exported:
        run = file_runner(made.entry.kind, "fp32", made.path, trained.signature)
        found: Any = run({"image": ROWS[:3]})
        assert found["logits"].shape == (3, 3)
        np.testing.assert_allclose(np.abs(found["logits"]).sum(1), found["size"], rtol=1e-4)
    return exported[-1].path
