"""Comparisons of answers, by task."""

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from flambeau.protocol.tensors import Array, object_array
from services.gateway.traffic.answer_comparison import (
    FEW_ELEMENTS,
    Task,
    compared,
    has_nan,
    output_of,
)

FLOATS = npst.arrays(np.float32, npst.array_shapes(max_dims=3), elements=st.floats(-8, 8, width=32))
CLASSES = Task("classes", 3)
SCORES = Task("scores")
SPREAD = Task(spreads={"y": 5.0})
TASKS = [Task(), CLASSES, SCORES, SPREAD]


@given(FLOATS, st.sampled_from(TASKS))
def test_answer_agrees_with_itself(array: Array, task: Task) -> None:
    found = compared({"y": array}, {"y": array.copy()}, task)
    assert found == (0.0, 0.0, False)


@given(FLOATS, st.sampled_from(TASKS), st.data())
def test_disagreement_is_between_0_and_1(array: Array, task: Task, data: st.DataObject) -> None:
    any_floats = st.floats(allow_nan=True, allow_infinity=True, width=32)
    other = data.draw(npst.arrays(np.float32, array.shape, elements=any_floats))
    found = compared({"y": array}, {"y": other}, task)
    assert 0 <= found.disagreement <= 1 + 1e-9
    assert np.isfinite(found.difference)
    assert found.nan == bool((~np.isfinite(other)).any())


@given(
    npst.array_shapes(min_dims=2, max_dims=3, max_side=3),
    st.sampled_from(TASKS),
    st.data(),
)
def test_few_elements_are_judged_like_many(
    shape: tuple[int, ...], task: Task, data: st.DataObject
) -> None:
    if task is SPREAD:
        task = Task(spreads={"y": data.draw(st.floats(0, 1e6, exclude_min=True))})
    numbers = st.floats(-1e6, 1e6, width=32) | st.sampled_from([0.0, np.nan, np.inf])
    live, other = (data.draw(npst.arrays(np.float64, shape, elements=numbers)) for _ in "12")
    many: list[dict[str, Array]] = [{"y": x.repeat(100, axis=0)} for x in (live, other)]
    few = compared({"y": live}, {"y": other}, task)
    assert compared(many[0], many[1], task) == pytest.approx(few, abs=1e-9)
    assert output_of({"y": live}, task) == output_of(many[0], task)
    assert has_nan({"y": live}) == has_nan(many[0])


@pytest.mark.parametrize("rows", [1, 100])
def test_equal_elements_count_in_the_lengths(rows: int) -> None:
    live, other = (np.array([[a, 1.0]]).repeat(rows, axis=0) for a in (1.0, 0.0))
    found = compared({"y": live}, {"y": other}, Task())
    assert found.disagreement == pytest.approx(1 / (2**0.5 + 1))


def test_classes_differ_by_the_place_of_the_largest() -> None:
    live = {"y": np.array([[0.1, 0.9, 0], [0.5, 0.4, 0.1]], np.float32)}
    other = {"y": np.array([[0.3, 0.7, 0], [0.4, 0.5, 0.1]], np.float32)}
    found = compared(live, other, CLASSES)
    assert found.disagreement == 0.5
    assert found.difference == pytest.approx(0.2)


def test_outputs_beside_classes_do_not_count() -> None:
    logits = np.array([[0.1, 0.9, 0]], np.float32)
    live = {"y": logits, "features": np.ones((1, 5), np.float32)}
    other = {"y": logits, "features": -np.ones((1, 5), np.float32)}
    assert compared(live, other, CLASSES).disagreement == 0
    assert compared(live, other, Task()).disagreement == pytest.approx(1)


def test_scores_disagree_by_their_difference() -> None:
    live, other = ({"y": np.array([[a], [0.5]], np.float32)} for a in (0.001, 0.201))
    assert compared(live, other, SCORES).disagreement == pytest.approx(0.1)


def test_numbers_disagree_by_their_relative_distance() -> None:
    live, other = ({"y": np.array([a, 5.0])} for a in (1.0, 3.0))
    assert compared(live, other, Task()).disagreement == pytest.approx(0.25)
    row = [3.0, 4.0]  # equal elements of a row count in its length
    for rows in (1, 100):
        live, other = ({"y": np.array([[a, *row]] * rows)} for a in (0.0, 12.0))
        assert compared(live, other, Task()).disagreement == pytest.approx(12 / (5 + 13))


@given(npst.arrays(np.float64, (8, 3), elements=st.floats(-1e3, 1e3)), st.floats(-1e4, 1e4))
def test_offset_changes_nothing_where_the_spread_is_known(
    live: npt.NDArray[np.float64], offset: float
) -> None:
    both = [compared({"y": x}, {"y": x[::-1]}, SPREAD) for x in (live, live + offset)]
    assert both[1].disagreement == pytest.approx(both[0].disagreement, abs=1e-6)


@pytest.mark.parametrize(("apart", "wanted"), [(0.0, 0.0), (0.1, 0.01), (10.0, 0.5), (1e300, 1.0)])
@pytest.mark.parametrize("rows", [1, FEW_ELEMENTS])
def test_numbers_disagree_by_their_distance_beside_the_spread(
    apart: float, wanted: float, rows: int
) -> None:
    live = np.full((rows, 2), 290.0)
    found = compared({"y": live}, {"y": live + np.array([0, apart])}, SPREAD)
    assert found.disagreement == pytest.approx(wanted, rel=0.02)


def test_spread_of_another_output_is_none_of_this_one() -> None:
    live, other = ({"y": np.array([[a]])} for a in (1.0, 3.0))
    assert compared(live, other, Task(spreads={"z": 5.0})).disagreement == pytest.approx(0.5)


@pytest.mark.parametrize("task", [Task(), SPREAD])
@pytest.mark.parametrize("rows", [1, 100])
def test_distance_that_overflows_is_a_disagreement(task: Task, rows: int) -> None:
    live, other = ({"y": np.array([[1.0], [a]]).repeat(rows, axis=0)} for a in (1.7e308, -1.7e308))
    assert compared(live, other, task).disagreement == pytest.approx(0.5)
    assert compared(live, live | {"y": live["y"].copy()}, task).disagreement == 0


def test_texts_and_whole_numbers_differ_or_not() -> None:
    live, other = ({"y": object_array([b"a", last])} for last in (b"b", b"c"))
    assert compared(live, other, Task()).disagreement == 0.5
    ids: list[dict[str, Array]] = [{"y": np.array([1, last])} for last in (2, 9)]
    assert compared(ids[0], ids[1], Task()) == (0.5, 7.0, False)


@pytest.mark.parametrize(
    "other", [{}, {"y": np.zeros((2, 2))}, {"y": np.zeros(3), "z": np.zeros(1)}]
)
def test_other_names_or_shapes_disagree(other: dict[str, Array]) -> None:
    assert compared({"y": np.zeros(3)}, other, Task()).disagreement == 1


def test_output_is_the_class_or_the_score_of_the_first_row() -> None:
    assert output_of({"y": np.array([[0.1, 0.2, 0.7], [1, 0, 0]], np.float32)}, CLASSES) == 2
    assert output_of({"y": np.array([[0.25]], np.float32)}, SCORES) == 250
    assert output_of({"y": np.array([[0.25, 1]], np.float32)}, CLASSES) is None
    assert output_of({"y": np.array([[0.25, 1]], np.float32)}, Task()) is None


def bf16_of(numbers: Array) -> Array:
    """Returns the bit patterns of numbers."""
    return (numbers.astype("<f4").view("<u4") >> 16).astype("<u2")


def test_nan_is_found_in_large_answers_too() -> None:
    large = np.zeros(100_000, np.float32)
    others: dict[str, Array] = {
        "y": large,
        "ids": np.zeros(3, np.int64),
        "texts": object_array([b"nan"]),
    }
    assert not has_nan(others)
    large[:] = np.nan
    assert has_nan(others)
    assert has_nan({"y": np.array([1, np.inf], np.float16)})
    assert has_nan({"y": bf16_of(large)}, ["y"])
    assert has_nan({"y": large.reshape(250, 400).T})


@contextmanager
def takes_at_most(most_bytes: int) -> Iterator[None]:
    """Checks the memory that is allocated meanwhile."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < most_bytes
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("task", [Task(), CLASSES, SCORES])
def test_large_answers_are_looked_at_without_a_copy(task: Task) -> None:
    """A copy of 16 MiB keeps the event loop for 10 ms or more."""
    patterns = np.ones((2**21, 3), "<u2") if task is CLASSES else np.ones((2**22, 1), "<u2")
    answers: list[dict[str, Array]] = [{"y": patterns}, {"y": np.ones((3, 2**20), "<f4").T}]
    with takes_at_most(2**20):
        for answer, bf16 in zip(answers, (["y"], []), strict=True):
            assert not has_nan(answer, bf16)
            output_of(answer, task, bf16)


@pytest.mark.parametrize("shape", [(2, 2**21), (2**22,), (2**20, 4)])
@pytest.mark.parametrize("task", [Task(), Task("classes", 4), SCORES, SPREAD])
def test_large_answers_are_compared_in_pieces(shape: tuple[int, ...], task: Task) -> None:
    rng = np.random.default_rng(0)
    live, other = (rng.standard_normal(shape, np.float32) for _ in range(2))
    with takes_at_most(16 * 2**20):
        found = compared({"y": live}, {"y": other}, task)
    one, two = (x.astype(np.float64).reshape(shape[0], -1) for x in (live, other))
    lengths = np.linalg.norm(one, axis=1) + np.linalg.norm(two, axis=1)
    distance = np.linalg.norm(one - two, axis=1)
    wanted = float((distance / (distance + 10 if task is SPREAD else lengths)).mean())
    if task.kind == "classes" and shape[-1] == 4:
        wanted = float((one.argmax(1) != two.argmax(1)).mean())
    if task.kind == "scores" and len(shape) == 1:
        wanted = float(np.clip(np.abs(one - two), 0, 1).mean())
    assert found.disagreement == pytest.approx(wanted)
    assert found.difference == pytest.approx(float(np.abs(one - two).max()))


def test_bit_patterns_are_compared_as_numbers() -> None:
    numbers = np.array([[1.0, 2.0, 4.0]], np.float32)
    live, other = {"y": bf16_of(numbers)}, {"y": numbers}
    assert compared(live, other, Task(), ["y"]) == (0.0, 0.0, False)
    assert compared(other, live, CLASSES, (), ["y"]) == (0.0, 0.0, False)
    assert output_of(live, CLASSES, ["y"]) == 2


def test_numbers_and_texts_of_one_shape_disagree() -> None:
    texts = {"y": object_array([b"a"])}
    assert compared({"y": np.zeros(1)}, texts, Task()).disagreement == 1
