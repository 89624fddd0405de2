"""Measures of outputs: their formulas, bounds and symmetry, and values that are no numbers."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from flambeau.protocol.tensors import Array, object_array
from model_store.arrays.measures import (
    MAX_MATCHED_BOXES,
    MAX_TEXT,
    edit_distance,
    equal_share,
    figures,
    least_cosine,
    max_abs_difference,
    mean_iou,
    relative_difference,
    top1,
)
from model_store.arrays.parity import compare, over_rows, worst
from model_store.gates import AT_LEAST, MEASURES, Gate

FINITE = st.floats(-1e6, 1e6, width=32)
TEXTS = st.lists(st.text("abcé", max_size=8), min_size=1, max_size=4)


def arrays(shape: Any) -> Any:
    return hnp.arrays(np.float32, shape, elements=FINITE)


def pairs(ndim: int = 2) -> Any:
    shapes = hnp.array_shapes(min_dims=ndim, max_dims=ndim + 1, min_side=1, max_side=5)
    return shapes.flatmap(lambda shape: st.tuples(arrays(shape), arrays(shape)))


def texts(*values: str) -> Array:
    return object_array([value.encode() for value in values])


@given(pairs())
def test_symmetric_measures_do_not_depend_on_which_side_is_the_reference(
    pair: tuple[Array, Array],
) -> None:
    one, other = pair
    for measure in (least_cosine, max_abs_difference, equal_share):
        assert measure(one, other) == pytest.approx(measure(other, one))


@given(pairs())
def test_shares_are_shares_and_equal_outputs_agree(pair: tuple[Array, Array]) -> None:
    one, other = pair
    assert 0 <= top1(one, other) <= 1
    assert 0 <= equal_share(one, other) <= 1
    assert -1 - 1e-9 <= least_cosine(one, other) <= 1 + 1e-9
    assert top1(one, one) == equal_share(one, one) == 1
    assert least_cosine(one, one) == pytest.approx(1)
    assert max_abs_difference(one, one) == relative_difference(one, one) == 0


@given(pairs(), st.floats(0, 1), st.floats(0, 10))
def test_relative_and_absolute_together_are_what_numpy_means(
    pair: tuple[Array, Array], relative: float, absolute: float
) -> None:
    one, other = pair
    value = relative_difference(one, other, absolute)
    assume(not math.isclose(value, relative, rel_tol=1e-6, abs_tol=1e-12))
    close = np.allclose(other.astype(float), one.astype(float), rtol=relative, atol=absolute)
    assert (value <= relative) is close


@given(hnp.array_shapes(min_dims=2, max_dims=4, max_side=4).flatmap(arrays), st.data())
def test_top1_is_along_any_axis(array: Array, data: Any) -> None:
    axis = data.draw(st.integers(1, array.ndim - 1))
    moved = np.moveaxis(array, axis, -1)
    other = array[::-1]
    assert top1(array, other, axis) == top1(moved, moved[::-1])


def test_top1_counts_positions_and_ties_agree() -> None:
    one = np.array([[1.0, 2.0], [2.0, 1.0], [1.0, 1.0], [0.0, 5.0]], np.float32)
    other = np.array([[1.0, 2.0], [1.0, 2.0], [0.0, 9.0], [0.0, 5.0]], np.float32)
    assert top1(one, other) == 0.75


def boxes(most: int) -> Any:
    corner = st.floats(0, 100, width=32)
    box = st.tuples(corner, corner, corner, corner).map(
        lambda b: (min(b[0], b[2]), min(b[1], b[3]), max(b[0], b[2]), max(b[1], b[3]))
    )
    return st.lists(box, max_size=most).map(
        lambda found: np.array(found, np.float32).reshape(1, len(found), 4)
    )


@given(boxes(5), boxes(5))
def test_boxes_overlap_symmetrically_and_at_most_wholly(one: Array, other: Array) -> None:
    found = mean_iou(one, other)
    assert 0 <= found <= 1 + 1e-9
    assert found == pytest.approx(mean_iou(other, one))


@given(boxes(6), st.randoms(use_true_random=False))
def test_the_order_of_boxes_does_not_matter(found: Array, random: Any) -> None:
    order = list(range(found.shape[1]))
    random.shuffle(order)
    assert mean_iou(found, found[:, order]) == pytest.approx(1)


def test_the_overlap_of_two_boxes_is_the_shared_area_by_the_whole() -> None:
    one, other = np.array([[0, 0, 2, 2]], np.float32), np.array([[1, 1, 3, 3]], np.float32)
    assert mean_iou(one, other) == pytest.approx(1 / 7)
    assert mean_iou(one[:, np.newaxis], other[:, np.newaxis]) == pytest.approx(1 / 7)
    two = np.concatenate([one, other])[np.newaxis]
    assert mean_iou(two, two[:, :1]) == pytest.approx(0.5), "a box without a partner counts 0"
    assert mean_iou(two, two[:, :0]) == 0
    assert mean_iou(two[:, :0], two[:, :0]) == 1
    line = np.array([[5, 5, 5, 9]], np.float32)
    assert (mean_iou(line, line), mean_iou(line, one)) == (1, 0)


def test_many_boxes_are_compared_by_their_place() -> None:
    many = np.zeros((1, MAX_MATCHED_BOXES + 1, 4), np.float32)
    many[..., 2:] = 1
    many[0, 0] += 5
    assert mean_iou(many, many) == 1
    assert mean_iou(many, many[:, ::-1]) == pytest.approx(1 - 2 / (MAX_MATCHED_BOXES + 1))
    assert mean_iou(many, many[:, 1:]) == 0


def test_masks_of_booleans_logits_and_probabilities() -> None:
    one = np.array([[1, 1, 0], [0, 0, 0]], np.bool_)
    other = np.array([[1, 0, 0], [0, 0, 0]], np.bool_)
    assert mean_iou(one, other) == 0.75
    logits = np.where(one, 3.0, -3.0), np.where(other, 0.1, -0.1)
    assert mean_iou(*logits) == 0.75
    assert mean_iou(np.where(one, 0.9, 0.1), np.where(other, 0.6, 0.4)) == 0.75


def plain_distance(one: str, other: str) -> int:
    """Returns the edit distance by its definition."""
    if not one or not other:
        return len(one) + len(other)
    return min(
        plain_distance(one[1:], other) + 1,
        plain_distance(one, other[1:]) + 1,
        plain_distance(one[1:], other[1:]) + (one[0] != other[0]),
    )


@given(st.text("ab", max_size=5), st.text("ab", max_size=5))
def test_the_edit_distance_is_the_fewest_changes(one: str, other: str) -> None:
    expected = plain_distance(one, other) / max(len(one), 1)
    assert edit_distance(texts(one), texts(other)) == pytest.approx(expected)


@given(TEXTS)
def test_equal_texts_have_no_distance(found: list[str]) -> None:
    assert edit_distance(texts(*found), texts(*found)) == 0
    assert equal_share(texts(*found), texts(*found)) == 1


def test_texts_are_counted_in_characters_and_the_worst_counts() -> None:
    assert edit_distance(texts("kitten", "été"), texts("sitting", "ete")) == pytest.approx(2 / 3)
    assert edit_distance(texts(""), texts("ab")) == 2
    assert edit_distance(object_array([b"\xff"]), object_array([b"\xfe"])) == 1
    long = "a" * (MAX_TEXT + 1)
    assert edit_distance(texts(long), texts(long)) == 0
    assert edit_distance(texts(long), texts(long[1:])) == 1


EVERY = {"top1": 1.0, "cosine": 1.0, "iou": 1.0, "absolute": 0.0, "exact": 1.0}


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("measure", sorted({*EVERY, "relative"}))
@pytest.mark.parametrize("sides", [(True, False), (False, True), (True, True)])
def test_what_is_no_number_never_passes(bad: float, measure: str, sides: tuple[bool, bool]) -> None:
    one, other = (np.ones((2, 3, 4), np.float32) for _ in range(2))
    for array, is_bad in zip((one, other), sides, strict=True):
        array[1, 0, 0] = bad if is_bad else 1
    limit = 1e-9 if measure in AT_LEAST else 1.0
    found = figures("y", Gate.model_validate({measure: limit}), one, other)
    assert found[0].measure == measure
    assert not found[0].holds


def test_empty_outputs_are_equal() -> None:
    for shape in ((0, 3), (0, 3, 4), (2, 0, 4), (2, 0)):
        empty = np.zeros(shape, np.float32)
        gate = Gate.model_validate({**EVERY, "relative": 0.0})
        assert all(one.holds for one in figures("y", gate, empty, empty)), shape
    none = object_array([])
    assert all(f.holds for f in figures("y", Gate(edit_distance=0.0, exact=1.0), none, none))


@pytest.mark.parametrize(
    ("gate", "array"),
    [
        ({"top1": 0.5, "axis": 5}, np.zeros((2, 3), np.float32)),
        ({"top1": 0.5, "axis": -3}, np.zeros((2, 3), np.float32)),
        ({"top1": 0.5, "axis": 0}, np.zeros((2, 3), np.float32)),
        ({"top1": 0.5}, np.zeros(2, np.float32)),
        ({"cosine": 0.5}, np.zeros(2, np.float32)),
        ({"edit_distance": 0.5}, np.zeros(2, np.float32)),
        ({"absolute": 1.0}, object_array([b"a"])),
        ({"iou": 0.5}, object_array([b"a"])),
    ],
)
def test_a_measure_that_an_output_does_not_allow_fails_in_words(
    gate: dict[str, float], array: Array
) -> None:
    found = compare({"y": array}, {"y": array}, {"y": Gate.model_validate(gate)})
    assert found.broken is not None
    assert "cannot be measured for output 'y'" in found.broken.text()
    assert worst([found, found]).broken is not None


def test_shares_of_single_rows_are_their_mean_and_differences_their_worst() -> None:
    gates = {"y": Gate(top1=0.5, cosine=0.0)}
    right, wrong = np.array([[1.0, 2.0]], np.float32), np.array([[2.0, 1.0]], np.float32)
    found = [compare({"y": right}, {"y": other}, gates) for other in (right, right, right, wrong)]
    values = {figure.measure: figure.value for figure in over_rows(found).figures}
    assert values == {"top1": 0.75, "cosine": pytest.approx(0.8), "absolute": 1.0}
    assert over_rows(found).broken is None
    assert worst(found).broken is not None


def test_boxes_may_differ_in_number_and_other_outputs_not() -> None:
    three, two = np.ones((2, 3, 4), np.float32), np.ones((2, 2, 4), np.float32)
    assert not compare({"y": three}, {"y": two}, {"y": Gate(iou=0.5)}).unlike
    for gate in ({}, {"y": Gate(absolute=1.0)}, {"y": Gate(iou=0.5, exact=0.0)}):
        assert compare({"y": three}, {"y": two}, gate).unlike


def test_every_measure_has_a_formula() -> None:
    numbers, text = np.ones((2, 3), np.float32), object_array([b"a"])
    for measure in MEASURES:
        array = text if measure == "edit_distance" else numbers
        (found, *_) = figures("y", Gate.model_validate({measure: 0.5}), array, array)
        assert not math.isnan(found.value), measure
