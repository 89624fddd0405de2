"""Steps for rows and for items: what they run for, and where their outputs come to be."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from flambeau.protocol.signature import Signature, TensorSpec
from flambeau.protocol.tensors import Array
from model_store.pipelines.graph import Pipeline
from model_store.pipelines.items import (
    MAX_COPIED_BYTES,
    MAX_ITEMS,
    MAX_PLACES,
    ItemsError,
    Selection,
    Sliced,
    TooManyItemsError,
    put_back,
    select,
    taken,
)
from model_store.pipelines.run_steps import run_steps
from model_store.pipelines.step_types import check_types


def finished(work: Sliced[Array]) -> tuple[Array, int]:
    """Returns the result of some work, and the number of its slices."""
    slices = 1
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value, slices
        slices += 1


@given(st.data())
def test_what_is_taken_is_put_back_in_its_place(data: st.DataObject) -> None:
    rows, items = data.draw(st.integers(1, 4)), data.draw(st.integers(0, 5))
    tail = data.draw(array_shapes(min_dims=1, max_dims=2, max_side=3))
    numbers = np.arange(rows * items * np.prod(tail), dtype=np.float32).reshape(rows, items, *tail)
    marks = data.draw(arrays(np.bool_, (rows, items)))
    selection = select(rows, numbers, marks)
    chosen, _ = finished(taken(numbers, selection, by_item=True))
    np.testing.assert_array_equal(chosen, numbers[marks])
    if not len(chosen):
        return
    cut = data.draw(st.integers(1, len(chosen)))
    parts = [chosen[start : start + cut] for start in range(0, len(chosen), cut)]
    back, _ = finished(put_back(parts, selection))
    expected = np.where(marks.reshape(rows, items, *(1 for _ in tail)), numbers, 0)
    np.testing.assert_array_equal(back, expected)


def test_rows_are_repeated_for_each_of_their_items() -> None:
    items = np.zeros((2, 3, 1))
    selection = select(2, items, np.array([[True, False, True], [False, True, False]]))
    rows = np.array([[1.0], [2.0]])
    found, _ = finished(taken(rows, selection, by_item=False))
    assert found.ravel().tolist() == [1, 1, 2]
    found, _ = finished(taken(rows, select(2, items, None), by_item=False))
    assert found.ravel().tolist() == [1, 1, 1, 2, 2, 2]


def test_items_may_be_told_by_their_number() -> None:
    selection = select(3, np.zeros((3, 2, 1)), np.array([0, 1, 9]))
    assert selection.positions is not None
    assert selection.positions.tolist() == [2, 4, 5]


def test_what_is_selected_completely_is_not_copied() -> None:
    items = np.ones((2, 3, 4))
    selection = select(2, items, np.ones((2, 3), np.bool_))
    assert selection == Selection(2, 3, None)
    chosen, slices = finished(taken(items, selection, by_item=True))
    assert np.shares_memory(chosen, items)
    assert slices == 1
    back, _ = finished(put_back([chosen], selection))
    assert np.shares_memory(back, items)
    assert back.shape == (2, 3, 4)


def test_a_long_copy_is_made_in_slices() -> None:
    items = np.ones((1, 64, 2**15), np.float32)  # 8 MiB
    marks = np.ones((1, 64), np.bool_)
    marks[0, 5] = False
    selection = select(1, items, marks)
    chosen, slices = finished(taken(items, selection, by_item=True))
    assert slices == 32  # of two items
    _, slices = finished(put_back([chosen], selection))
    assert slices == 32


def test_text_that_is_not_selected_is_empty() -> None:
    words = np.array([[b"a", b"b"]], object)[..., None]
    selection = select(1, words, np.array([[False, True]]))
    chosen, _ = finished(taken(words, selection, by_item=True))
    back, _ = finished(put_back([chosen], selection))
    assert back.ravel().tolist() == [b"", b"b"]


@pytest.mark.parametrize(
    ("for_each", "where"),
    [
        (np.zeros((2, 3, 1)), None),
        (np.zeros((1, 3, 1)), np.zeros((1, 4), np.bool_)),
        (None, np.zeros(2, np.bool_)),
    ],
)
def test_tensors_of_other_rows_or_items_are_refused(
    for_each: Array | None, where: Array | None
) -> None:
    with pytest.raises(ItemsError):
        select(1, for_each, where)


def test_too_many_items_are_refused() -> None:
    select(1, np.zeros((1, MAX_ITEMS, 1)), None)
    with pytest.raises(TooManyItemsError, match="1,025 items"):
        select(1, np.zeros((1, MAX_ITEMS + 1, 1)), None)
    few = np.zeros((1, MAX_ITEMS + 1), np.bool_)
    few[0, 0] = True
    assert select(1, np.zeros((1, MAX_ITEMS + 1, 1)), few).count == 1


@pytest.mark.parametrize("count", [MAX_ITEMS + 1, 2**40, -(2**40)])
def test_a_count_of_items_is_limited_by_those_that_there_are(count: int) -> None:
    each = MAX_PLACES // 2
    items, counts = np.zeros((2, each, 0), np.float32), np.array([count, 3])
    if count < 0:
        selection = select(2, items, counts)
        assert selection.positions is not None
        assert selection.positions.tolist() == [each, each + 1, each + 2]
        return
    with pytest.raises(TooManyItemsError, match=f"{min(count, each) + 3:,} items"):
        select(2, items, counts)


def test_items_without_bytes_that_nobody_selects_are_counted() -> None:
    items = np.zeros((2, MAX_PLACES // 2 + 1, 0), np.float32)
    with pytest.raises(TooManyItemsError, match=f"2 rows of {MAX_PLACES // 2 + 1:,} items"):
        select(2, items, np.array([0, 0]))


def test_too_many_bytes_are_refused_before_they_are_copied() -> None:
    image = np.zeros((1, MAX_COPIED_BYTES // MAX_ITEMS + 1), np.uint8)
    selection = select(1, np.zeros((1, MAX_ITEMS, 1)), None)
    with pytest.raises(TooManyItemsError, match="bytes would be copied"):
        finished(taken(image, selection, by_item=False))


def test_batches_of_different_shape_are_refused() -> None:
    selection = Selection(2, None, None)
    with pytest.raises(ItemsError, match="cannot be joined"):
        finished(put_back([np.zeros((1, 2)), np.zeros((1, 3))], selection))


def tensor(name: str, *shape: int, datatype: str = "FP32") -> TensorSpec:
    return TensorSpec(name=name, datatype=datatype, shape=(-1, *shape))


def run(graph: Mapping[str, Any], models: Mapping[str, Any], **inputs: Array) -> dict[str, Array]:
    """Runs a graph of models, each a signature and a function."""
    pipeline = Pipeline.model_validate(graph)
    types = check_types(pipeline, {text: signature for text, (signature, _) in models.items()})
    return run_steps(pipeline, types, {text: call for text, (_, call) in models.items()}, inputs)


ROUTE = Signature(
    inputs=(tensor("x", 1),),
    outputs=(tensor("low", datatype="BOOL"), tensor("high", datatype="BOOL")),
    max_batch_size=8,
)
SCALE = Signature(inputs=(tensor("x", 1),), outputs=(tensor("y", 1),), max_batch_size=2)
BRANCHES = {
    "steps": [
        {"name": "route", "model": "route@1", "inputs": {"x": "input.x"}},
        {"name": "low", "model": "low@1", "inputs": {"x": "input.x"}, "where": "route.low"},
        {"name": "high", "model": "high@1", "inputs": {"x": "input.x"}, "where": "route.high"},
        {"name": "last", "model": "last@1", "inputs": {"x": ["low.y", "high.y"]}},
    ],
    "outputs": {"y": "last.y", "joined": ["low.y", "high.y"], "low": "low.y"},
}
"""Two branches of which each row takes one, or none; and their join."""


def test_a_row_takes_its_branch_and_the_branches_join() -> None:
    ran: list[int] = []

    def low(inputs: Mapping[str, Array]) -> dict[str, Array]:
        ran.append(len(inputs["x"]))
        return {"y": inputs["x"] * 10}

    models = {
        "route@1": (ROUTE, lambda i: {"low": i["x"][:, 0] < 3, "high": i["x"][:, 0] > 4}),
        "low@1": (SCALE, low),
        "high@1": (SCALE, lambda i: {"y": i["x"] * 100}),
        "last@1": (SCALE, lambda i: {"y": i["x"] + 1}),
    }
    found = run(BRANCHES, models, x=np.array([[1], [5], [2], [3], [0]], np.float32))
    assert found["joined"].ravel().tolist() == [10, 500, 20, 0, 0]
    assert found["y"].ravel().tolist() == [11, 501, 21, 1, 1]
    assert found["low"].ravel().tolist() == [10, 0, 20, 0, 0]
    assert ran == [2, 1]  # three rows of the five, two at most at once
    found = run(BRANCHES, models, x=np.array([[3]], np.float32))
    assert found["joined"].tolist() == [[0]]
    assert ran == [2, 1]
