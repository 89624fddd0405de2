"""Two models as one: a detector finds digits on a canvas, a recogniser reads each crop.

Runs in the environment that `make up` makes.
"""

from collections import Counter
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import flambeau

SIDE, CROP, MOST = 40, 8, 6
"""Pixels of a canvas's side and of a crop's; most digits of a canvas."""


class Detector(nn.Module):
    """Finds the windows that lie apart and have the most ink in their middle, and crops them."""

    def __init__(self) -> None:
        super().__init__()
        across = torch.exp(-((torch.arange(CROP) - 3.4) ** 2) / 20)
        self.register_buffer("weights", (across[:, None] * across)[None, None] / CROP**2)

    def forward(self, canvas: Tensor) -> dict[str, Tensor]:
        """Returns `crops` [rows, MOST, 8, 8], their `corners`, and those that are `found`."""
        ink = nn.functional.conv2d(canvas[:, None], self.weights)
        peaks = ink * (ink == nn.functional.max_pool2d(ink, 2 * CROP - 1, 1, CROP - 1))
        best, place = peaks.flatten(1).topk(MOST)
        found = best > 0.1
        place = place * found
        windows = canvas.unfold(1, CROP, 1).unfold(2, CROP, 1).flatten(1, 2)
        crops = windows.gather(1, place[..., None, None].expand(-1, -1, CROP, CROP))
        columns = SIDE - CROP + 1
        corners = torch.stack([place // columns, place % columns], dim=2)
        return {"crops": crops * found[..., None, None], "corners": corners, "found": found}


def canvases(images: Any, labels: Any, rows: int) -> tuple[Tensor, list[Counter[int]]]:
    """Returns canvases [rows, SIDE, SIDE] with four digits each, and the digits."""
    random = np.random.default_rng(0)
    canvas, digits = np.zeros((rows, SIDE, SIDE), np.float32), []
    for row in canvas:
        chosen = random.choice(len(images), 4, replace=False)
        for number, (down, right) in zip(chosen, [(0, 0), (0, 20), (20, 0), (20, 20)], strict=True):
            y, x = random.integers(0, 12, 2) + np.array([down, right])
            row[y : y + CROP, x : x + CROP] = images[number]
        digits.append(Counter(labels[chosen].tolist()))
    return torch.from_numpy(canvas), digits


def trained(images: Any, labels: Any) -> nn.Module:
    """Returns a recogniser of crops [8, 8], trained on digits that are shifted by some pixels."""
    torch.manual_seed(0)
    layers = [nn.Unflatten(1, (1, CROP)), nn.Conv2d(1, 16, 3, padding=1), nn.ReLU()]
    network = nn.Sequential(*layers, nn.Flatten(), nn.Linear(1024, 10))
    optimizer = torch.optim.Adam(network.parameters(), 3e-3)
    crops, right = torch.from_numpy(images), torch.from_numpy(labels)
    for step in range(400):
        optimizer.zero_grad()
        shifted = torch.roll(crops, (step % 3 - 1, step % 5 - 2), dims=(1, 2))
        nn.functional.cross_entropy(network(shifted), right).backward()
        optimizer.step()
    return network.eval()


def main() -> None:
    """Publishes detector, recogniser and their pipeline, and compares with the modules' answers."""
    digits = load_digits()
    images = (digits.images / 16).astype(np.float32)
    detector, recogniser = Detector().eval(), trained(images[:1400], digits.target[:1400])
    canvas, right = canvases(images[1400:], digits.target[1400:], 64)
    seen = detector(canvas)

    flambeau.publish(detector, {"canvas": canvas}, name="detector", artifacts=["onnx"])
    flambeau.publish(
        recogniser, {"crop": seen["crops"][:, 0]}, name="recogniser", outputs=["scores"]
    )
    pipeline = flambeau.Pipeline(
        steps=[
            flambeau.Step("detect", "detector@^1", {"canvas": "input.canvas"}),
            flambeau.Step(
                "read", "recogniser@^1", {"crop": "detect.crops"},
                for_each="detect.crops", where="detect.found",
            ),
        ],
        outputs={"scores": "read.scores", "corners": "detect.corners", "found": "detect.found"},
    )  # fmt: skip
    flambeau.publish(pipeline, {"canvas": canvas[:16]}, name="digit-reader")

    with flambeau.load("digit-reader") as read:
        answer = read(canvas=canvas)
    scores = (
        recogniser(seen["crops"].flatten(0, 1)).unflatten(0, (-1, MOST)) * seen["found"][..., None]
    )
    gap = np.abs(answer["scores"] - scores.detach().numpy()).max()
    read_digits = [
        Counter(row[found].argmax(1).tolist())
        for row, found in zip(answer["scores"], answer["found"], strict=True)
    ]
    correct = sum((one & two).total() for one, two in zip(read_digits, right, strict=True))
    print(f"{correct} of {4 * len(right)} digits read; largest difference {gap:.1e}")
    assert gap < 1e-3


if __name__ == "__main__":
    main()
