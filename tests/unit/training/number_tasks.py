"""Data and networks whose labels are no classes: numbers, counts, labels on their own, and two at
once."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from flambeau.protocol.tensors import Array
from training.recipe.recipe import Recipe

Found = dict[str, tuple[dict[str, Array], Any]]
HERE = "tests.unit.training.number_tasks"
ROWS, FEATURES = 96, 4


class Heads(nn.Module):
    """A linear layer an output, on the same features.

    Args:
        widths: of the outputs.
    """

    def __init__(self, widths: tuple[int, ...] = (1,)) -> None:
        super().__init__()
        self.heads = nn.ModuleList(nn.Linear(FEATURES, width) for width in widths)

    def forward(self, features: Tensor) -> tuple[Tensor, ...]:
        """Features [N, F] to [N, width] of each head."""
        return tuple(head(features) for head in self.heads)


class Three(nn.Module):
    """Features [N, F] to logits [N, 2], and to numbers of three places, [N, 3, 1]."""

    def __init__(self) -> None:
        super().__init__()
        self.classes, self.amount = nn.Linear(FEATURES, 2), nn.Linear(FEATURES, 3)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """See the class."""
        return self.classes(features), self.amount(features)[:, :, None]


class Places(nn.Module):
    """Features [N, F] to numbers [N, 3, 2]."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, 6)

    def forward(self, features: Tensor) -> Tensor:
        """See the class."""
        return torch.unflatten(self.layer(features), 1, (3, 2))


def data(seed: int, kind: str = "numbers", **wrong: Any) -> Found:
    """Rows of a linear rule.

    Args:
        seed: of everything.
        kind: of the labels.
        wrong: `split`, `row` and `value` of a label, or with `feature` of a feature, that is put in
            afterwards.
    """
    found: Found = {}
    for number, name in enumerate(("train", "validation", "test")):
        random = np.random.default_rng((seed, number))
        features = random.normal(size=(ROWS, FEATURES)).astype(np.float32)
        labels = _labels(kind, features, random)
        if wrong.get("split") == name:
            place = features if wrong.get("feature") else labels
            place[wrong["row"]] = float(wrong["value"])  # a recipe has no NaN
        found[name] = ({"features": features}, labels)
    return found


def _labels(kind: str, features: npt.NDArray[np.float32], random: np.random.Generator) -> Any:
    numbers = features[:, 0] - 2 * features[:, 1] + 0.1 * random.normal(size=ROWS)
    match kind:
        case "numbers":
            return numbers
        case "columns":
            return np.stack([numbers, 1000 * features[:, 2]], axis=1)
        case "places":
            places = np.repeat(numbers, 6).reshape(ROWS, 3, 2)
            places[::2, 2] = np.nan
            return places
        case "counts":
            return random.poisson(np.exp(0.5 + 0.6 * features[:, 0]))
        case "multi_label":
            return (features[:, :2] > 0.5).astype(np.int64)
        case "classes":
            return (numbers > 0).astype(np.int64)
        case _:
            gaps = np.stack([numbers, numbers, numbers], axis=1)[:, :, None]
            gaps[1::3, 1:] = np.nan
            return {"labels": (numbers > 0).astype(np.int64), "amount": gaps, "unused": numbers}


def number_recipe(kind: str, loss: dict[str, Any], **changes: Any) -> Recipe:
    """A recipe for one linear layer on `data`."""
    model: dict[str, Any] = {"target": f"{HERE}:Heads"}
    if kind in ("columns", "multi_label", "classes"):
        model["args"] = {"widths": [2]}
    if kind == "places":
        model = {"target": f"{HERE}:Places"}
    return Recipe.model_validate(
        {
            "name": "numbers",
            "model": {**model, "outputs": ["found"]},
            "data": {"target": f"{HERE}:data", "args": {"kind": kind}, "batch_size": 16},
            "loss": loss,
            "optim": {"adamw": {"lr": 0.1}},
            "train": {"epochs": 6, "threads": 1},
            "track": [],
            "export": [{"kind": "onnx"}],
            "publish": {"model": "numbers"},
            **changes,
        }
    )
