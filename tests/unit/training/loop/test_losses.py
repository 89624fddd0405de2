"""Losses: their values, and the weight of a mean beside others."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch.nn import functional

from tests.unit.training.recipes import recipe
from training.datasets import IGNORED_LABEL
from training.errors import RecipeError, TargetError
from training.loop.losses import Loss, make_loss

LABELS = np.array([0, 0, 0, 1, 1, 2])
MINE = """
from torch.nn import functional
def margin(p): return lambda logits, labels: functional.multi_margin_loss(logits, labels, p=p)
def each(): return lambda logits, labels: functional.cross_entropy(logits, labels, reduction="none")
def nothing(): return 7
"""


def loss(**part: Any) -> Loss:
    return make_loss(recipe(loss=part).loss, LABELS, classes=3)


def rows(places: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    shape = (6,) if places is None else (6, places)
    labels = torch.randint(0, 3, shape)
    if places is not None:
        labels[:, -1] = IGNORED_LABEL
    return torch.randn(*shape, 3), labels


def test_balanced_weights_make_every_class_weigh_the_same() -> None:
    weights = loss(cross_entropy={"weight": "balanced"}).class_weights
    assert weights is not None
    assert weights.tolist() == pytest.approx([6 / 9, 6 / 6, 6 / 3])
    gaps = make_loss(recipe(loss={"nll": {"weight": "balanced"}}).loss, LABELS, classes=4)
    assert gaps.class_weights is not None
    assert gaps.class_weights.tolist() == pytest.approx([6 / 12, 6 / 8, 6 / 4, 1.0])


def test_focal_loss_without_focus_is_cross_entropy() -> None:
    for places in (None, 4):
        logits, labels = rows(places)
        for weight in (None, [0.2, 1.0, 3.0]):
            found = loss(focal={"gamma": 0, "weight": weight}).of(logits, labels)
            expected = loss(cross_entropy={"weight": weight}).of(logits, labels)
            assert found.item() == pytest.approx(expected.item(), rel=1e-6)


def test_focal_loss_shrinks_what_is_right() -> None:
    logits = torch.tensor([[2.0, 0.0, 0.0], [0.0, 2.0, 0.0]])
    labels = torch.tensor([0, 0])
    p = logits.softmax(-1)[:, 0]
    expected = (-((1 - p) ** 2) * p.log()).mean()
    assert loss(focal={}).of(logits, labels).item() == pytest.approx(expected.item())


def test_nll_takes_log_probabilities() -> None:
    logits, labels = rows(4)
    found = loss(nll={}).of(functional.log_softmax(logits, -1), labels)
    assert found.item() == pytest.approx(loss().of(logits, labels).item())


@pytest.mark.parametrize(
    "part",
    [
        {"cross_entropy": {"weight": "balanced", "label_smoothing": 0.1}},
        {"focal": {"weight": [1.0, 2.0, 3.0]}},
        {"nll": {}},
    ],
)
def test_means_of_batches_make_the_mean_of_all_rows(part: dict[str, Any]) -> None:
    chosen = loss(**part)
    logits, labels = rows(4)
    labels[0, :2] = IGNORED_LABEL
    means = [chosen.of(logits[part], labels[part]).item() for part in (slice(2), slice(2, 6))]
    weights = [chosen.weight_of(labels[part]) for part in (slice(2), slice(2, 6))]
    assert np.average(means, weights=weights) == pytest.approx(chosen.of(logits, labels).item())


def test_a_loss_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    logits, labels = rows()
    found = loss(target=f"{tmp_path}/mine.py:margin", args={"p": 2})
    expected = functional.multi_margin_loss(logits, labels, p=2)
    assert found.of(logits, labels).item() == expected.item()
    assert found.weight_of(labels) == 6
    with pytest.raises(TargetError, match=r"returned a shape \[6\]; return a scalar"):
        loss(target=f"{tmp_path}/mine.py:each").of(logits, labels)
    with pytest.raises(TargetError, match="made a int"):
        loss(target=f"{tmp_path}/mine.py:nothing")
    with pytest.raises(TargetError, match=r"'q' in 'loss\.args'"):
        loss(target=f"{tmp_path}/mine.py:margin", args={"q": 2})


def test_bad_values_are_named() -> None:
    with pytest.raises(RecipeError, match="weight has 2 numbers, and the model 3 classes"):
        loss(cross_entropy={"weight": [1.0, 2.0]})
    with pytest.raises(ValidationError, match="args belong to a target"):
        loss(focal={}, args={"p": 1})
    with pytest.raises(ValidationError, match="focal and nll exclude each other"):
        loss(focal={}, nll={})
    with pytest.raises(ValidationError, match="greater than 0"):
        loss(nll={"weight": [0.0, 1.0, 1.0]})
