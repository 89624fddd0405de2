"""Example inputs as callers give them."""

import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from flambeau.publishing.errors import ExampleError
from flambeau.publishing.examples import by_dependence, read_examples
from flambeau.publishing.python_files import example_arrays


class Pair(nn.Module):
    """Takes two inputs."""

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        """Returns the sum."""
        return left + right


ROWS = np.ones((4, 3), np.float32)


@pytest.mark.parametrize(
    "given",
    [
        {"left": ROWS, "right": ROWS},
        {"right": torch.ones(4, 3), "left": ROWS},
        (ROWS, torch.ones(4, 3)),
        [{"left": ROWS, "right": ROWS}],
    ],
)
def test_every_form_gives_the_arguments_in_order(given: Any) -> None:
    examples = read_examples(Pair(), given)

    assert examples.names == ["left", "right"]
    assert all(tensor.shape == (4, 3) for tensor in examples.inputs.values())
    assert examples.sizes({"left": 0, "right": 0}) == {}


def test_a_single_array_has_the_name_of_the_argument() -> None:
    assert read_examples(lambda image: image, ROWS).names == ["image"]


def test_names_that_are_no_arguments_are_taken_in_order() -> None:
    assert read_examples(Pair(), {"b": ROWS, "a": ROWS}).names == ["b", "a"]


def test_numbers_of_python_are_single_precision_and_arrays_keep_theirs() -> None:
    found = read_examples(Pair(), {"left": [[1.0]], "right": np.ones((1, 1))}).inputs

    assert found["left"].dtype == torch.float32
    assert found["right"].dtype == torch.float64


def test_axes_that_differ_between_examples_vary() -> None:
    parts = [{"x": np.ones((2, size, 8), np.float32)} for size in (5, 3, 9)]

    examples = read_examples(lambda x: x, parts, {"x": {2: (4, 8)}})

    assert examples.sizes({"x": 0}) == {"x": {1: (3, 9), 2: (4, 8)}}
    assert len(examples.others) == 2


def test_sizes_of_the_batch_axis_do_not_vary() -> None:
    parts = [{"x": np.ones((5, rows), np.float32)} for rows in (2, 3)]

    examples = read_examples(Pair(), parts)

    assert examples.sizes({"x": 1}) == {}
    assert examples.sizes({"x": None}) == {"x": {1: (2, 3)}}
    assert [len(part) for part in examples.by_size({"x": 1})] == [2, 0]
    assert [len(part) for part in examples.by_size({"x": None})] == [1, 1]
    with pytest.raises(ExampleError, match="names axis 1, which is the batch"):
        read_examples(Pair(), parts, {"x": {1: (1, 4)}}).sizes({"x": 1})


def test_axes_of_several_inputs_with_the_same_limits_vary_together() -> None:
    sizes = {"ids": {1: (3, 9)}, "mask": {1: (3, 9)}, "image": {2: (4, 8), 3: (4, 8)}}

    assert by_dependence(sizes) == (
        {"image": {2: (4, 8), 3: (4, 8)}},
        {"ids": {1: (3, 9)}, "mask": {1: (3, 9)}},
    )


def test_arguments_that_are_left_out_are_told() -> None:
    def call(x: Tensor, mask: Tensor | None = None, *, scale: Tensor | None = None) -> Tensor:
        return x

    in_order = read_examples(call, {"x": ROWS})
    by_name = read_examples(call, {"x": ROWS, "scale": ROWS})

    assert (in_order.by_name, by_name.by_name) == (False, True)
    assert "no input mask, scale" in in_order.notes({})[0]
    assert "no input mask:" in by_name.notes({})[0]


@pytest.mark.parametrize(
    ("given", "dynamic", "words"),
    [
        ({}, None, "examples is empty"),
        ((ROWS, ROWS, ROWS), None, "3 arrays and the model takes 2 (left, right)"),
        ({"left": "text", "right": ROWS}, None, "examples['left'] is 'text', a str"),
        ({"left": np.ones((0, 3), np.float32), "right": ROWS}, None, "has no rows"),
        ([{"left": ROWS}, {"right": ROWS}], None, "different inputs"),
        ([{"left": ROWS}, {"left": ROWS.astype(int)}], None, "differ in more than size"),
        ({"left": ROWS, "right": ROWS}, {"lift": {1: (1, 3)}}, "did you mean 'left'"),
        ({"left": ROWS, "right": ROWS}, {"left": {1: (5, 2)}}, "the smallest and a larger size"),
        ({"left": ROWS, "right": ROWS}, {"left": {1: (4, 9)}}, "the example has size 3"),
        ({"left": ROWS, "right": ROWS}, {"left": {1: (3, 3)}}, "one size; leave out an axis"),
        ({"left": ROWS, "right": ROWS}, {"left": {1: (2, 8, 2)}}, "give multiples of 2, the third"),
        ({"left": ROWS, "right": ROWS}, {"left": {1: (3, 9, 0)}}, "as in (8, 64, 2)"),
        ({"left": ROWS, "right": ROWS}, {"left": {1: (3, 1e999)}}, "as in (8, 64, 2)"),
        ({"left": ROWS, "right": ROWS}, {"left": {2: (1, 9)}}, "names axis 2"),
        ({"left": torch.ones(2, dtype=torch.cfloat)}, None, "examples['left'] is torch.complex64"),
        ({"left": torch.ones(2, dtype=torch.bfloat16)}, None, "is torch.bfloat16"),
        ({"left": torch.ones(2, device="meta")}, None, "on the device meta"),
        ({"left": torch.zeros(1).expand(4, 10**13)}, None, "takes 149,011.6 GiB of memory, and"),
        ({"left": np.broadcast_to(ROWS[0, 0], (4, 10**13))}, None, "GiB of memory, and"),
    ],
)
def test_what_does_not_fit_is_refused_in_words(given: Any, dynamic: Any, words: str) -> None:
    with pytest.raises(ExampleError) as refused:
        read_examples(Pair(), given, dynamic)

    assert words in str(refused.value)


def test_the_user_is_told_limits_that_examples_set_and_not_those_of_dynamic() -> None:
    given = [{"ids": torch.ones(4, n), "image": torch.ones(4, n, 2)} for n in (5, 9)]

    found = read_examples(lambda ids, image: ids, given, {"image": {1: (1, 64)}})

    (note,) = found.notes(found.sizes({"ids": 0, "image": 0}))
    assert note.startswith("axis 1 of input 'ids' may have 5 to 9")
    assert "dynamic={'ids': {1: (smallest, largest)}}" in note


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("abc", "examples['x'] is 'abc', a str that is no array of numbers (text, or objects)"),
        ([{"x": [[1.0]]}, 5], "examples has 5 among mappings; give mappings alone"),
    ],
)
def test_examples_that_are_no_arrays_are_refused_with_the_value(given: Any, message: str) -> None:
    with pytest.raises(ExampleError, match=re.escape(message)):
        read_examples(lambda x: x, given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("abc", "examples is 'abc', a str; give arrays by input name"),
        ({"text": "abc"}, "examples['text'] is 'abc', a text without rows; give a list"),
        ({"text": None}, "examples['text']: a BYTES element is a NoneType"),
    ],
)
def test_examples_of_a_class_that_have_no_rows_are_refused(given: Any, message: str) -> None:
    with pytest.raises(ExampleError, match=re.escape(message)):
        example_arrays(given)
