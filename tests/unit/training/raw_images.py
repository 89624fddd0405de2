"""Raw images for tests of `preprocess`, and modules that its steps name."""

import numpy as np
import torch
from torch import nn

from tests.unit.training.recipes import CLASSES
from training.datasets import Split, Splits

STEPS = [
    {"scale": {"factor": 0.0625}},
    {"normalize": {"fit": True}},
    {"module": {"target": "tests.unit.training.raw_images:Blur"}},
    {"resize": {"height": 8, "width": 8}},
]


class Blur(nn.Module):
    """A convolution, which quantizers would take for one of the network's."""

    def __init__(self, side: int = 3) -> None:
        super().__init__()
        self.side = side
        self.kernel: torch.Tensor
        self.register_buffer("kernel", torch.full((1, 1, side, side), 1.0 / side**2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.conv2d(x, self.kernel, padding=self.side // 2)


def raw_splits(rows: int = 80) -> Splits:
    """UINT8 images of 12 x 12, whose class is written into their first rows."""

    def split(seed: int) -> Split:
        random = np.random.default_rng(seed)
        labels = random.integers(0, CLASSES, rows)
        images = random.integers(0, 9, (rows, 1, 12, 12)).astype(np.uint8)
        for row, label in enumerate(labels):
            images[row, 0, :4, 4 * label : 4 * label + 4] += 8
        return Split({"image": images}, labels)

    return Splits(split(1), split(2), split(3))
