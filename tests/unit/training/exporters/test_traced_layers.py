"""Layers of torch's own are traced and proven, although their checks of shapes warn."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from flambeau.protocol.signature import Signature, TensorSpec
from tests.unit.training.recipes import CLASSES, export_here, recipe, untrained
from training.datasets import Split, Splits
from training.errors import ExportError
from training.exporters.exporter import ExportJob
from training.exporters.torchscript import write
from training.recipe.kinds.torchscript_kind import TorchScriptExport
from training.verification.verify import reference, verify

CHANNELS, STEPS = 6, 5


class Recurrent(nn.Module):
    """A plain recurrent layer, and the class of its last step."""

    def __init__(self, cell: str, batch_first: bool, **options: Any) -> None:
        super().__init__()
        self.batch_first = batch_first
        self.layer = getattr(nn, cell)(CHANNELS, 8, batch_first=batch_first, **options)
        self.head = nn.LazyLinear(CLASSES)
        self.forward(torch.zeros(2, STEPS, CHANNELS))

    def forward(self, x: Tensor) -> Any:
        states, _ = self.layer(x if self.batch_first else x.transpose(0, 1))
        return self.head(states[:, -1] if self.batch_first else states[-1])


class Other(nn.Module):
    """Another layer between two linear ones."""

    def __init__(self, name: str) -> None:
        super().__init__()
        made: dict[str, Any] = {
            "GroupNorm": lambda: nn.GroupNorm(1, STEPS),
            "InstanceNorm1d": lambda: nn.InstanceNorm1d(STEPS),
            "MultiheadAttention": lambda: nn.MultiheadAttention(CHANNELS, 2, batch_first=True),
            "TransformerDecoderLayer": lambda: nn.TransformerDecoderLayer(
                CHANNELS, 2, 8, batch_first=True
            ),
        }
        self.name, self.layer = name, made[name]()
        self.head = nn.Linear(STEPS * CHANNELS, CLASSES)

    def forward(self, x: Tensor) -> Any:
        several = {"MultiheadAttention": 3, "TransformerDecoderLayer": 2}.get(self.name, 1)
        found = self.layer(*[x] * several)
        return self.head((found[0] if isinstance(found, tuple) else found).flatten(1))


class LooksAtRows(nn.Module):
    """Decides by how many rows there are."""

    def forward(self, x: Tensor) -> Any:
        return x + 1 if x.shape[0] > 3 else x


def sequences(rows: int = 70) -> Splits:
    def split(seed: int) -> Split:
        random = np.random.default_rng(seed)
        return Split(
            {"x": random.standard_normal((rows, STEPS, CHANNELS)).astype(np.float32)},
            random.integers(0, CLASSES, rows),
        )

    return Splits(split(1), split(2), split(3))


@pytest.mark.parametrize(
    ("network", "args"),
    [
        *(
            ("Recurrent", {"cell": cell, "batch_first": first})
            for cell in ("LSTM", "GRU", "RNN")
            for first in (True, False)
        ),
        ("Recurrent", {"cell": "LSTM", "batch_first": True, "bidirectional": True}),
        ("Recurrent", {"cell": "GRU", "batch_first": True, "num_layers": 2}),
        *(
            ("Other", {"name": name})
            for name in (
                "GroupNorm", "InstanceNorm1d", "MultiheadAttention", "TransformerDecoderLayer",
            )
        ),
    ],
)  # fmt: skip
def test_a_layer_of_torchs_own_is_traced_and_proven_at_every_batch_size(
    network: str, args: dict[str, Any], tmp_path: Path
) -> None:
    wanted = recipe(
        model={"target": f"{__name__}:{network}", "args": args}, export=[{"kind": "torchscript"}]
    )
    data = sequences()
    trained = untrained(wanted, data, tmp_path / "trained")
    expected, _ = reference(trained, data.test)
    (artifact,) = export_here(wanted, trained, data, tmp_path)
    report = verify(artifact, expected)
    assert report.refusal is None
    assert report.max_abs_difference is not None
    assert report.max_abs_difference < 1e-5


def test_a_network_that_decides_by_itself_is_refused_with_its_line(tmp_path: Path) -> None:
    spec = TensorSpec(name="x", datatype="FP32", shape=(-1, 3))
    signature = Signature(inputs=(spec,), outputs=(spec,), max_batch_size=4)
    job = ExportJob(recipe(), tmp_path, signature, TorchScriptExport(), {}, tmp_path, tmp_path)
    with pytest.raises(ExportError, match=r"TracerWarning: .* Python boolean") as refused:
        write(LooksAtRows().eval(), (torch.zeros(2, 3),), job)
    line = (
        r"test_traced_layers.py:\d+: return x \+ 1 if x.shape\[0\] > 3 else x\): a trace holds no"
    )
    assert re.search(line, str(refused.value))
    assert "take method: script" in str(refused.value)
