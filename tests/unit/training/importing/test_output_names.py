"""Outputs that have the name of a layer before them, or of an input."""

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

from flambeau.publishing.capture import capture
from flambeau.publishing.examples import read_examples
from training.errors import ExportError
from training.importing.derive import DeriveJob, derive, program_to_onnx
from training.recipe.kinds.onnx_kind import OnnxExport
from training.recipe.kinds.openvino_kind import OpenVinoExport
from training.recipe.kinds.pt2_kind import Pt2Export
from training.recipe.parts.export_entries import ExportEntry


class Embedding(nn.Module):
    """Has outputs with the names of its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 4)
        self.linear = nn.Linear(4, 2)

    def forward(self, tokens: Tensor) -> dict[str, Tensor]:
        """Returns sums of both layers' results."""
        found = self.embedding(tokens)
        return {"linear": self.linear(found).mean(1), "embedding": found.sum(1)}


def test_an_output_may_have_the_name_of_a_layer(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net, tokens = Embedding().eval(), torch.randint(0, 10, (4, 3))
    found = capture(net, read_examples(net, {"tokens": tokens}), folder=tmp_path)

    program_to_onnx(tmp_path / found.files["pt2"], found.signature, tmp_path / "net.onnx")

    session = onnxruntime.InferenceSession(str(tmp_path / "net.onnx"))
    _, right_outputs = found.rows[0]
    outputs = session.run(list(right_outputs), {"tokens": tokens.numpy()})
    for right, array in zip(right_outputs.values(), outputs, strict=True):
        assert np.allclose(array, right, atol=1e-5)


class Inverting(nn.Module):
    """Has an output with the name of its input."""

    def forward(self, u: Tensor) -> dict[str, Tensor]:
        """Returns the other bits."""
        return {"u": u ^ 255}


@pytest.mark.parametrize("entry", [OnnxExport(), OpenVinoExport()])
def test_an_output_with_the_name_of_an_input_is_refused_where_graphs_cannot_have_it(
    entry: ExportEntry, tmp_path: Path
) -> None:
    with pytest.raises(ExportError, match="output 'u' has the name of an input, and a graph of "):
        derive(inverting(entry, tmp_path))


def test_an_output_may_have_the_name_of_an_input_in_a_program(tmp_path: Path) -> None:
    job = inverting(Pt2Export(), tmp_path)
    derive(job)
    assert job.path.exists()


def inverting(entry: ExportEntry, folder: Path) -> DeriveJob:
    """Returns the job that makes an artifact of `Inverting`."""
    net = Inverting().eval()
    found = capture(net, read_examples(net, {"u": np.ones((2, 3), np.uint8)}), folder=folder)
    (folder / "made").mkdir()
    return DeriveJob(
        entry=entry,
        source=folder / found.files["pt2"],
        source_weights=None,
        source_kind="pt2",
        signature=found.signature,
        inputs=found.rows[0][0],
        folder=folder / "made",
    )
