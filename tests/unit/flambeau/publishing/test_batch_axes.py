"""Batch axes of models as they are: states, scalars, images without a batch."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flambeau.publishing.batch_axes import find_batch_axes, repeated
from flambeau.publishing.errors import CaptureError, ExampleError, PublishError


class Voice(nn.Module):
    """Keeps its state outside, as voice detectors do."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.LSTM(8, 6)
        self.head = nn.Linear(6, 1)

    def forward(self, x: Tensor, state: Tensor, rate: Tensor) -> tuple[Tensor, Tensor]:
        """Takes x [rows, 8], state [2, rows, 6] and a scalar."""
        found, (h, c) = self.recurrent(x.unsqueeze(0), (state[:1], state[1:]))
        return torch.sigmoid(self.head(found[0]) * rate / 16000), torch.cat([h, c])


class Photo(nn.Module):
    """Takes one image without a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1))

    def forward(self, image: Tensor) -> Tensor:
        """Takes [3, height, width]; returns [4]."""
        found: Tensor = self.layers(image.unsqueeze(0))
        return found.flatten()


def inputs(*shapes: tuple[int, ...]) -> dict[str, Tensor]:
    torch.manual_seed(0)
    return {f"input_{place}": torch.randn(shape) for place, shape in enumerate(shapes)}


@pytest.mark.parametrize("rows", [1, 2, 3, 40])
def test_a_state_and_a_scalar_beside_rows(rows: int) -> None:
    given = {"x": torch.randn(rows, 8), "state": torch.randn(2, rows, 6), "rate": torch.tensor(16)}

    found = find_batch_axes(Voice().eval(), given)

    assert found.inputs == {"x": 0, "state": 1, "rate": None}
    assert found.outputs == {"output_0": 0, "output_1": 1}
    assert "the batch is axis 1 of input 'state'" in found.notes()


def test_an_image_without_a_batch_runs_alone() -> None:
    found = find_batch_axes(Photo().eval(), {"image": torch.randn(3, 9, 9)})

    assert (found.inputs, found.outputs) == ({"image": None}, {"output": None})
    assert "one request at a time" in found.notes()[0]


@pytest.mark.parametrize(
    ("model", "shapes", "axes", "outputs"),
    [
        (lambda a: a * 2, [(4, 3)], [0], [0]),
        (lambda a: a.softmax(0), [(5, 4)], None, None),
        (lambda a, b: a @ b, [(4, 3), (3, 5)], [0, None], [0]),
        (lambda a, b: a / b, [(40, 3), ()], [0, None], [0]),
        (lambda a: (a * 2, torch.arange(3)), [(4, 3)], [0], [0, None]),
        (lambda a: a.view(5, -1, 6).sum(2), [(5, 24)], [None], [None]),
    ],
)
def test_axes_of_functions(model: Any, shapes: Any, axes: Any, outputs: Any) -> None:
    given = inputs(*shapes)
    if axes is None:
        with pytest.raises(CaptureError, match="batch_axes="):
            find_batch_axes(model, given)
        return

    found = find_batch_axes(model, given)

    assert list(found.inputs.values()) == axes
    assert list(found.outputs.values()) == outputs


def test_axes_that_are_said_are_used() -> None:
    """A softmax over the first axis has its batch in the second, which nobody can know."""
    given = inputs((5, 4))

    second = find_batch_axes(lambda a: a.softmax(0), given, told={"input_0": 1})
    none = find_batch_axes(lambda a: a.softmax(0), given, told={"input_0": None})

    assert (second.inputs, second.outputs) == ({"input_0": 1}, {"output": 1})
    assert not none.has_batch


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"imput_0": 0}, "did you mean 'input_0'"),
        (
            {"input_0": 2},
            "batch_axes['input_0'] is 2, and the input is [4, 3]; give an axis from 0",
        ),
        ({"input_0": -1}, "is -1"),
        ({"input_0": "rows"}, "is 'rows'"),
    ],
)
def test_axes_that_do_not_fit_are_refused(told: Any, words: str) -> None:
    with pytest.raises(ExampleError) as refused:
        find_batch_axes(lambda a: a, inputs((4, 3)), told=told)

    assert words in str(refused.value)


def test_state_kept_between_calls_is_refused() -> None:
    class Counting(nn.Module):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return x + self.calls

    with pytest.raises(CaptureError, match="state that it keeps between calls"):
        find_batch_axes(Counting(), {"x": torch.ones(4, 3)})


def test_one_row_does_not_tell_that_an_output_is_shared() -> None:
    with pytest.raises(PublishError, match="give two rows that differ"):
        find_batch_axes(lambda x: (x, x.max()), {"x": torch.ones(1, 3)})


def test_rows_are_repeated_along_their_axes() -> None:
    given = {"x": torch.tensor([[1.0], [2.0]]), "state": torch.tensor([[1.0, 2.0]])}

    found = repeated(given, {"x": 0, "state": 1}, 3)

    assert found["x"].ravel().tolist() == found["state"].ravel().tolist() == [1, 2, 1]
