"""Networks that return dictionaries and dataclasses: every kind of artifact has their outputs."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor, nn

from tests.unit.training.recipes import export_here, recipe, splits, untrained
from training.networks import SmallCnn
from training.verification.runners import file_runner

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
    kinds = list(KINDS)
    if network is GivesDataclass and shutil.which("g++"):  # it takes a compilation
        kinds.append("aoti")
    chosen = recipe(
        model={"target": f"{__name__}:{network.__name__}", "outputs": ["logits", "size"]},
        export=[{"kind": kind} for kind in kinds],
    )
    data = splits()
    trained = untrained(chosen, data, tmp_path / "trained")
    assert [spec.name for spec in trained.signature.outputs] == ["logits", "size"]
    image = data.train.inputs["image"][:3]
    for made in export_here(chosen, trained, data, tmp_path):
        run = file_runner(made.entry.kind, "fp32", made.path, trained.signature)
        found: Any = run({"image": image})
        assert found["logits"].shape == (3, 3)
        np.testing.assert_allclose(np.abs(found["logits"]).sum(1), found["size"], rtol=1e-4)
