"""Sizes that a model takes, found by running it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flambeau.publishing.capture import Captured, capture
from flambeau.publishing.errors import ExampleError
from flambeau.publishing.examples import read_examples


class Skipping(nn.Module):
    """Halves an image, doubles it and adds it to the original."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(1, 2, 3, stride=2, padding=1)
        self.up = nn.ConvTranspose2d(2, 1, 2, stride=2)

    def forward(self, image: Tensor) -> Tensor:
        """Maps [rows, 1, height, width] to the same; height and width are even."""
        found: Tensor = image + self.up(self.down(image).relu())
        return found


def next_to(a: Tensor, b: Tensor) -> Tensor:
    """Maps [rows, n] and [rows, n + 1] to [rows, n]."""
    return a * b[:, :-1] + b[:, 1:]


def square(x: Tensor) -> Tensor:
    """Maps [rows, n, n] to the same."""
    return x @ x.transpose(1, 2) + x


class Branching(nn.Module):
    """Branches on values, which torch.export cannot capture."""

    def forward(self, x: Tensor) -> Tensor:
        """Maps [rows, n] to [rows, n + 1]."""
        if bool((x.sum() > 1e9).item()):
            return torch.cat([x, -x[:, :1]], 1)
        return torch.cat([x, x[:, :1]], 1)


def masked(x: Tensor, mask: Tensor) -> Tensor:
    """Maps [rows, n] twice to [rows, n, 3]."""
    return (x * mask)[:, :, None] * torch.ones(3)


def only_eight(x: Tensor) -> Tensor:
    """Maps [rows, 8] to the same, where the program does not say so."""
    if x.shape[1] != 8:
        raise ValueError(f"{x.shape[1]} is not 8")
    return x * 2


def captured(
    model: Any, examples: Any, folder: Path, dynamic: Mapping[str, Mapping[int, Any]] | None = None
) -> Captured:
    return capture(model, read_examples(model, examples, dynamic), folder=folder)


@pytest.mark.parametrize("sizes", [(7, 65), (8, 64, 2)])
def test_multiples_of_a_size_are_found_or_told(sizes: tuple[int, ...], tmp_path: Path) -> None:
    given = {"image": torch.randn(4, 1, 16, 12)}

    found = captured(Skipping().eval(), given, tmp_path, {"image": {2: sizes, 3: sizes}})

    assert found.signature.dynamic == {}  # verification would try odd sizes
    assert found.signature.limits == {"image": {2: (8, 64), 3: (8, 64)}}
    assert [inputs["image"].shape for inputs, _ in found.rows] == [
        (4, 1, 16, 12),
        (4, 1, 8, 8),
        (4, 1, 64, 64),
    ]
    assert "axis 2 of input 'image' takes multiples of 2, 8 to 64" in " ".join(found.notes)


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (lambda x: x + 1, (-1, -1)),
        (lambda x: torch.cat([x, x], 1), (-1, -1)),
        (lambda x: x[:, ::24], (-1, -1)),  # one element for all sizes up to 24
        (lambda x: x.mean(1, keepdim=True), (-1, 1)),
        (Branching().eval(), (-1, -1)),
    ],
)
def test_sizes_of_outputs_that_follow_those_of_inputs_vary(
    model: Any, shape: tuple[int, ...], tmp_path: Path
) -> None:
    found = captured(model, {"x": torch.randn(4, 12)}, tmp_path, {"x": {1: (2, 64)}})
    assert found.signature.dynamic == {"x": {1: (2, 64)}}
    assert found.signature.outputs[0].shape == shape


def test_sizes_of_outputs_follow_those_that_depend_on_each_other(tmp_path: Path) -> None:
    given = {"x": torch.randn(4, 12), "mask": torch.ones(4, 12)}
    found = captured(masked, given, tmp_path, {"x": {1: (2, 64)}, "mask": {1: (2, 64)}})
    assert found.signature.limits == {"x": {1: (2, 64)}, "mask": {1: (2, 64)}}
    assert found.signature.outputs[0].shape == (-1, -1, 3)


def test_sizes_that_depend_on_each_other_are_limits(tmp_path: Path) -> None:
    given = {"a": torch.randn(4, 8), "b": torch.randn(4, 9)}
    found = captured(next_to, given, tmp_path, {"a": {1: (3, 40)}, "b": {1: (4, 41)}})
    assert found.signature.dynamic == {}
    assert found.signature.limits == {"a": {1: (3, 40)}, "b": {1: (4, 41)}}

    found = captured(square, torch.randn(4, 8, 8), tmp_path, {"x": {1: (2, 16), 2: (2, 16)}})
    assert (found.signature.dynamic, list(found.signature.limits)) == ({}, ["x"])


def test_a_size_that_works_alone_is_refused_in_words(tmp_path: Path) -> None:
    given = {"x": torch.randn(4, 8)}
    with pytest.raises(ExampleError) as refused:
        captured(only_eight, given, tmp_path, {"x": {1: (4, 20)}})
    assert "dynamic['x'][1] is 4 to 20, and the model takes 8 and none of 9, 10, 12, 16" in str(
        refused.value
    )
    assert "leave the axis out" in str(refused.value)


def test_limits_that_the_model_does_not_take_are_refused(tmp_path: Path) -> None:
    given = {"image": torch.randn(4, 1, 16, 12)}
    network = nn.Sequential(nn.Conv2d(1, 1, 7), Skipping()).eval()  # 6 smaller
    with pytest.raises(ExampleError, match="the smallest sizes of dynamic"):
        captured(network, {"input": given["image"]}, tmp_path, {"input": {2: (4, 64, 2)}})
