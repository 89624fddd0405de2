"""Comparisons of answers, by task."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from flambeau.protocol.tensors import Array, object_array
from services.gateway.traffic.answer_comparison import Task, compared, has_nan, output_of

FLOATS = npst.arrays(np.float32, npst.array_shapes(max_dims=3), elements=st.floats(-8, 8, width=32))
CLASSES = Task("classes", 3)
SCORES = Task("scores")


@given(FLOATS, st.sampled_from([Task(), CLASSES, SCORES]))
def test_answer_agrees_with_itself(array: Array, task: Task) -> None:
    found = compared({"y": array}, {"y": array.copy()}, task)
    assert found == (0.0, 0.0, False)


@given(FLOATS, st.sampled_from([Task(), CLASSES, SCORES]), st.data())
def test_disagreement_is_between_0_and_1(array: Array, task: Task, data: st.DataObject) -> None:
    any_floats = st.floats(allow_nan=True, allow_infinity=True, width=32)
    other = data.draw(npst.arrays(np.float32, array.shape, elements=any_floats))
    found = compared({"y": array}, {"y": other}, task)
    assert 0 <= found.disagreement <= 1 + 1e-9
    assert np.isfinite(found.difference)
    assert found.nan == bool((~np.isfinite(other)).any())


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


def test_nan_is_found_in_large_answers_too() -> None:
    large = np.zeros(100_000, np.float32)
    assert not has_nan([large, np.zeros(3, np.int64), object_array([b"nan"])])
    large[:] = np.nan
    assert has_nan([large])
    assert has_nan([np.array([1, np.inf], np.float16)])
