"""Outputs that have the name of a layer before them."""

from pathlib import Path

import numpy as np
import onnxruntime
import torch
from torch import Tensor, nn

from flambeau.publishing.capture import capture
from flambeau.publishing.examples import read_examples
from training.importing.derive import program_to_onnx


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
