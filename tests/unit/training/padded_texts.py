"""A small model of texts whose length varies, for tests that need one."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from training.datasets import Split, Splits
from training.recipe.recipe import Recipe

CLASSES, VOCABULARY, LONGEST = 3, 20, 12
PADDING: dict[str, Any] = {
    "inputs": {"tokens": 1},
    "outputs": {"each": 1},
    "buckets": [4, 8, 12],
    "mask": "mask",
}


class MaskedMean(nn.Module):
    """Scores each token, and the masked mean of all.

    Args:
        safe: whether padding is kept out of the mean.
    """

    def __init__(self, safe: bool = True) -> None:
        super().__init__()
        self.safe = safe
        self.embed = nn.Embedding(VOCABULARY, 8)
        self.widen = nn.Linear(8, 16)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, tokens: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        each = self.head(torch.relu(self.widen(self.embed(tokens))))  # [N, T, K]
        real = mask.to(each.dtype)[:, :, None] if self.safe else torch.ones_like(each)
        return (each * real).sum(dim=1) / real.sum(dim=1), each


def text_recipe(**changes: Any) -> Recipe:
    document: dict[str, Any] = {
        "name": "texts",
        "model": {
            "target": "tests.unit.training.padded_texts:MaskedMean",
            "outputs": ["logits", "each"],
        },
        "data": {"target": "unused:unused"},
        "padding": PADDING,
        "max_batch_size": 16,
        "publish": {"model": "texts"},
        **changes,
    }
    return Recipe.model_validate(document)


def text_splits(rows: int = 70, shortest: int = 1) -> Splits:
    def split(seed: int) -> Split:
        random = np.random.default_rng(seed)
        lengths = random.integers(shortest, LONGEST, rows, endpoint=True)
        mask = np.arange(LONGEST) < lengths[:, None]
        tokens = random.integers(0, VOCABULARY, (rows, LONGEST)) * mask
        return Split({"tokens": tokens, "mask": mask}, random.integers(0, CLASSES, rows))

    return Splits(split(1), split(2), split(3))
