"""Models whose tensors are not all [rows, ...], published and asked as a server runs them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import flambeau
from flambeau.protocol.tensors import Array


class Voice(nn.Module):
    """Keeps its state outside, as voice detectors do."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.LSTM(8, 6)
        self.head = nn.Linear(6, 1)

    def forward(self, x: Tensor, state: Tensor, sr: Tensor) -> tuple[Tensor, Tensor]:
        """Takes x [rows, 8], state [2, rows, 6] and a scalar."""
        found, (h, c) = self.recurrent(x.unsqueeze(0), (state[:1], state[1:]))
        return torch.sigmoid(self.head(found[0]) * sr / 16000), torch.cat([h, c])


class Photo(nn.Module):
    """Takes one image without a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.AdaptiveAvgPool2d(1))

    def forward(self, image: Tensor) -> Tensor:
        """Takes [3, height, width]; returns [4]."""
        found: Tensor = self.layers(image.unsqueeze(0))
        return found.flatten()


@dataclass
class Tags:
    """Results of `Tagger`."""

    scores: Tensor
    best: Tensor
    extra: Tensor | None = None


class Tagger(nn.Module):
    """Takes a mask, and one more argument that the examples leave out."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 5)

    def forward(
        self, steps: Tensor, bias: Tensor | None = None, mask: Tensor | None = None
    ) -> Tags:
        """Returns scores in FP32, and classes as integers."""
        if bias is not None:
            steps = steps + bias
        assert mask is not None
        scores = self.head((steps * mask.unsqueeze(-1)).sum(1))
        return Tags(scores=scores, best=scores.argmax(-1))


def published(
    model: Any, examples: Any, store: Path, **options: Any
) -> tuple[flambeau.PublishedVersion, Any]:
    version = flambeau.publish(model, examples, name="mine", to=store, progress=False, **options)
    return version, flambeau.load("mine", store=store)


def faults(version: flambeau.PublishedVersion) -> list[str]:
    """Returns the reasons of artifacts that could not be made or verified."""
    return [text for text in version.refused.values() if not text.startswith("dominated")]


def run(model: nn.Module, *inputs: Array) -> list[Any]:
    with torch.inference_mode():
        found = model(*map(torch.from_numpy, inputs))
    return [t.numpy() for t in (found if isinstance(found, tuple) else (found,))]


def test_a_state_and_a_scalar(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = Voice().eval()
    examples = [
        {"x": torch.randn(4, 8), "state": torch.randn(2, 4, 6), "sr": rate}
        for rate in (8000, 16000)
    ]

    version, mine = published(net, examples, tmp_path, artifacts=["onnx", "pt2"])

    assert faults(version) == []
    assert "input 'sr' has no batch axis" in " ".join(version.notes)
    given = [np.ones((3, 8), np.float32), np.ones((2, 3, 6), np.float32), np.array(8000)]
    with mine:
        found = mine(x=given[0], state=given[1], sr=given[2])
    for one, right in zip(found.values(), run(net, *given), strict=True):
        np.testing.assert_allclose(one, right, atol=1e-5)


def test_images_of_several_sizes_without_a_batch(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = Photo().eval()
    examples = [{"image": torch.randn(3, size, size)} for size in (8, 8, 16)]

    version, mine = published(net, examples, tmp_path, artifacts=["onnx", "onnx-int8", "openvino"])

    assert faults(version) == []
    image = np.ones((3, 9, 12), np.float32)
    with mine:
        found = mine(image=image)
    np.testing.assert_allclose(found, run(net, image)[0], atol=1e-5)


def test_a_dataclass_of_integers_with_a_mask_and_an_argument_left_out(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = Tagger().eval()
    examples = [
        {"steps": torch.randn(rows, size, 8), "mask": torch.rand(rows, size) > 0.3}
        for rows, size in ((33, 4), (3, 9))
    ]

    version, mine = published(net, examples, tmp_path)

    assert "no input bias" in " ".join(version.notes)
    steps, mask = np.ones((2, 6, 8), np.float32), np.ones((2, 6), bool)
    with mine:
        found = mine(steps=steps, mask=mask)
    with torch.inference_mode():
        right = net(torch.from_numpy(steps), mask=torch.from_numpy(mask))
    np.testing.assert_allclose(found["scores"], right.scores.numpy(), atol=0.05)
    np.testing.assert_array_equal(found["best"], right.best.numpy())


def test_half_precision_in_and_out(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = nn.Linear(4, 3).half().eval()

    version, mine = published(net, torch.randn(8, 4).half(), tmp_path, artifacts=["onnx"])

    assert [one.name for one in version.artifacts] == ["onnx"]
    with mine:
        assert mine(np.ones((2, 4), np.float16)).dtype == np.float16


def test_complex_answers_are_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(flambeau.PublishError, match=r"output 'output' is torch\.complex64"):
        flambeau.publish(
            lambda x: torch.fft.fft(x), torch.ones(4, 2), name="mine", to=tmp_path, progress=False
        )

    assert not list(tmp_path.iterdir())
