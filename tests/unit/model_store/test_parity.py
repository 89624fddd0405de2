"""Differences of outputs, exact to the number, and their check against a tolerance."""

from dataclasses import replace

import numpy as np
import pytest

from flambeau.protocol.tensors import Array, object_array
from model_store.arrays.measures import beyond_rounding
from model_store.arrays.parity import (
    Parity,
    compare,
    compare_rows,
    first_failure,
    worst,
)
from model_store.tolerance import Tolerance

EXPECTED = np.array([[0.0, 1.0], [3.0, 2.0]], np.float32)


def is_infinitely_far(parity: Parity) -> bool:
    return replace(parity, unlike="") == Parity(float("inf"), 0.0, 1.0) and bool(parity.unlike)


def compare_logits(found: Array) -> Parity:
    return compare({"logits": EXPECTED}, {"logits": found})


def test_equal_outputs() -> None:
    assert compare_logits(EXPECTED.copy()) == Parity(0.0, 1.0)


def test_the_largest_difference_counts_whatever_its_sign() -> None:
    found = EXPECTED + np.array([[0.25, 0.0], [0.0, -0.5]], np.float32)
    assert compare_logits(found).max_abs_difference == 0.5


def test_agreement_is_the_share_of_rows_with_the_same_top_class() -> None:
    swapped = np.array([[0.0, 1.0], [2.0, 3.0]], np.float32)
    assert compare_logits(swapped).agreement == 0.5


def test_classes_that_differ_by_rounding_tie() -> None:
    near, step = np.float32(0.7), np.float32(0.7) + np.float32(6e-8)
    right = {"wide": np.array([[0.1, near, step], [3.0, 1.0, 2.0]], np.float32)}
    swapped = {"wide": np.array([[0.1, step, near], [3.0, 1.0, 2.0]], np.float32)}
    assert compare(right, swapped).agreement == 1
    other = {"wide": np.array([[0.1, near, step], [2.999, 1.0, 3.0]], np.float32)}
    found = compare_rows("golden rows", right, other)
    assert found.parity.agreement == 0.5
    limits = Tolerance(max_abs_difference=2.0, min_agreement=0.9)
    assert str(found.failure(limits)).endswith("first in row 1 of 'wide'")
    shifted = Tolerance(max_abs_difference=2.0, min_agreement=0.5, max_probability_shift=0.01)
    assert str(found.failure(shifted)).endswith("most in row 1 of 'wide'")


def test_integers_tie_only_where_they_are_equal() -> None:
    right = {"counts": np.array([[7, 7, 1], [2**40, 2**40 - 1, 0]])}
    other = {"counts": np.array([[1, 7, 1], [0, 2**40, 0]])}
    assert compare(right, other).agreement == 0.5


def test_the_shift_is_that_of_the_probability_that_moved_most() -> None:
    even, uneven = np.zeros((2, 2), np.float32), np.zeros((2, 2), np.float32)
    uneven[1, 0] = np.log(3)  # a half becomes three quarters
    found = compare({"logits": even}, {"logits": uneven})
    assert found.max_probability_shift == pytest.approx(0.25)
    far = compare({"logits": even + 1000}, {"logits": uneven + 2000})
    assert far.max_probability_shift == pytest.approx(0.25, abs=1e-4)


def test_the_worst_output_counts() -> None:
    expected = {"a": EXPECTED, "b": EXPECTED}
    found = {"a": EXPECTED + np.float32(2), "b": EXPECTED[:, ::-1]}
    worse = compare(expected, found)
    assert (worse.max_abs_difference, worse.agreement) == (2.0, 0.0)
    assert worse.max_probability_shift == pytest.approx(0.4621, abs=1e-4)


def test_the_worst_of_several_comparisons() -> None:
    found = worst([Parity(1.0, 0.9, 0.1), Parity(0.5, 0.8, 0.3)])
    assert found == Parity(1.0, 0.8, 0.3)


@pytest.mark.parametrize("found", [{}, {"logits": EXPECTED[:1]}, {"logits": EXPECTED.ravel()}])
def test_a_missing_output_or_another_shape_is_infinitely_far(found: dict[str, Array]) -> None:
    assert is_infinitely_far(compare({"logits": EXPECTED}, found))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_number_that_is_not_finite_is_infinitely_far(bad: float) -> None:
    found = EXPECTED.copy()
    found[0, 0] = bad
    assert compare_logits(found).max_abs_difference == float("inf")


def test_unsigned_numbers_do_not_wrap() -> None:
    expected = {"pixel": np.array([1], np.uint8)}
    assert compare(expected, {"pixel": np.array([2], np.uint8)}).max_abs_difference == 1.0


def test_outputs_without_classes_agree_by_definition() -> None:
    scores = np.array([1.0, 2.0], np.float32)
    assert compare({"s": scores}, {"s": scores[::-1]}) == Parity(1.0, 1.0)
    column = scores[:, None]
    assert compare({"s": column}, {"s": column[::-1]}) == Parity(1.0, 1.0)


def test_text_is_equal_or_infinitely_far() -> None:
    expected = {"label": object_array([b"seven"])}
    assert compare(expected, {"label": object_array([b"seven"])}) == Parity(0.0, 1.0)
    found = compare(expected, {"label": object_array([b"one"])})
    assert found.max_abs_difference == float("inf")


def test_no_rows_are_equal() -> None:
    empty = np.zeros((0, 2), np.float32)
    assert compare({"logits": empty}, {"logits": empty}) == Parity(0.0, 1.0)


@pytest.mark.parametrize(
    ("parity", "failure"),
    [
        (Parity(0.1, 0.99), None),
        (Parity(0.11, 1.0), "largest difference 0.11 is above 0.1"),
        (Parity(0.0, 0.98), "agreement 0.9800 is below 0.9900"),
        (Parity(0.0, 1.0, 0.3), "largest probability shift 0.3 is above 0.2"),
        (Parity(float("nan"), 1.0), "largest difference nan is above 0.1"),
        (Parity(float("inf"), 0.0, 1.0), "largest difference inf is above 0.1"),
    ],
)
def test_a_tolerance_is_kept_up_to_its_limits(parity: Parity, failure: str | None) -> None:
    limits = {"max_abs_difference": 0.1, "min_agreement": 0.99, "max_probability_shift": 0.2}
    assert parity.failure(Tolerance.model_validate(limits)) == failure


def test_a_failure_names_the_row_that_lies_farthest_off() -> None:
    found = EXPECTED + np.array([[0.25, 0.0], [0.0, -0.5]], np.float32)
    compared = compare_rows("golden rows", {"logits": EXPECTED}, {"logits": found})
    tolerance = Tolerance(max_abs_difference=0.1, min_agreement=0.0)
    assert first_failure([compared], tolerance) == (
        "golden rows: largest difference 0.5 is above 0.1, most in row 1 of 'logits'"
    )


def test_a_row_without_numbers_lies_farthest_off() -> None:
    found = EXPECTED + np.float32(1)
    found[1, 0] = np.nan
    compared = compare_rows("rows", {"logits": EXPECTED}, {"logits": found})
    assert compared.place == "row 1 of 'logits'"


VECTORS = np.array([[3.0, 4.0], [0.0, 0.0]], np.float32)
DIRECTED = Tolerance(
    max_abs_difference=0.0, min_agreement=1.0, max_probability_shift=0.0,
    embeddings=("vector",), min_cosine=0.99,
)  # fmt: skip
BY_COSINE = DIRECTED.single_gates


def compare_vectors(found: Array) -> Parity:
    logits = {"logits": EXPECTED}
    return compare({**logits, "vector": VECTORS}, {**logits, "vector": found}, BY_COSINE)


@pytest.mark.parametrize(
    ("first", "cosine"),
    [
        ([3.0, 4.0], 1.0),
        ([4.0, 3.0], 24 / 25),
        ([-3.0, -4.0], -1.0),
        ([6.0, 8.0], 0.5),
        ([1.5, 2.0], 0.5),
        ([0.0, 0.0], 0.0),
        ([np.nan, 4.0], 0.0),
        ([np.inf, 4.0], 0.0),
    ],
)
def test_embeddings_are_compared_by_their_direction_and_length(
    first: list[float], cosine: float
) -> None:
    found = compare_vectors(np.array([first, [0.0, 0.0]], np.float32))
    assert found == Parity(0.0, 1.0, 0.0, found.figures)
    assert found.cosine(("vector",)) == pytest.approx(cosine)
    assert (found.failure(DIRECTED) is None) is (cosine == 1.0)


def test_the_places_of_small_numbers_of_an_embedding_mean_nothing() -> None:
    near = VECTORS + np.array([[0.02, -0.01], [0.0, 0.0]], np.float32)
    assert compare_vectors(near).failure(DIRECTED) is None
    assert compare({"vector": VECTORS}, {"vector": near}).failure(DIRECTED) is not None
    far = compare_vectors(np.array([[4.0, 3.0], [0.0, 0.0]], np.float32))
    assert far.failure(DIRECTED) == "cosine of 'vector' 0.96 is below 0.99"
    assert worst([far, compare_vectors(near)]).cosine(("vector",)) == far.cosine(("vector",))


def test_an_embedding_of_another_shape_or_a_missing_one_is_infinitely_far() -> None:
    for found in ({}, {"vector": VECTORS[:1]}):
        assert is_infinitely_far(compare({"vector": VECTORS}, found, BY_COSINE))


def test_the_farthest_row_is_one_of_what_is_not_an_embedding() -> None:
    right = {"logits": EXPECTED, "vector": VECTORS}
    found = {
        "logits": EXPECTED + np.array([[0], [1]], np.float32),
        "vector": VECTORS + np.array([[9], [0]], np.float32),
    }
    assert compare_rows("rows", right, found, BY_COSINE).place == "row 1 of 'logits'"
    alone = compare_rows("rows", {"vector": VECTORS}, {"vector": found["vector"]}, BY_COSINE)
    assert alone.place == "row 0 of 'vector'"


def test_a_tolerance_without_embeddings_reads_as_it_always_did() -> None:
    plain = {"max_abs_difference": 0.1, "min_agreement": 0.9, "max_probability_shift": 1.0}
    assert Tolerance.model_validate(plain).model_dump(mode="json") == plain
    told = DIRECTED.model_dump(mode="json")
    assert (told["embeddings"], told["min_cosine"]) == (["vector"], 0.99)
    assert Tolerance.model_validate(told) == DIRECTED


@pytest.mark.parametrize("value", [0.0, 6e-8, 0.1, 0.4998, 0.5, -1.0, 8.0, 65504.0, -65504.0])
@pytest.mark.parametrize("steps", [1, 2])
def test_one_rounding_step_of_fp16_is_no_difference(value: float, steps: int) -> None:
    right = found = np.array([[value]], np.float16)
    for _ in range(steps):
        found = np.nextafter(found, np.float16(0.25))
    for one, other in ((right, found), (found, right)):
        difference = compare({"y": one}, {"y": other}).max_abs_difference
        assert (difference == 0) == (steps == 1)
        assert beyond_rounding(one, one) == one
    wide = compare({"y": right.astype(np.float32)}, {"y": found.astype(np.float32)})
    assert wide.max_abs_difference > 0


def test_fp16_that_lies_far_off_is_told_by_how_much() -> None:
    right = np.array([[0.5, 0.25]], np.float16)
    found = compare_rows("here", {"y": right}, {"y": right + np.float16(0.125)})
    assert found.parity.max_abs_difference == pytest.approx(0.125, rel=5e-3)
    assert found.place == "row 0 of 'y'"


def test_logits_of_fp16_that_rounding_swaps_agree() -> None:
    right = np.array([[8.0, 7.996]], np.float16)
    found = compare({"logits": right}, {"logits": right[:, ::-1].copy()})
    assert found == Parity(0.0, 1.0)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_fp16_that_is_no_number_is_infinitely_far(bad: float) -> None:
    right, found = np.array([[1.0]], np.float16), np.array([[bad]], np.float16)
    for one, other in ((right, found), (found, right)):
        assert compare({"y": one}, {"y": other}).max_abs_difference == np.inf


def test_an_output_of_another_shape_is_named() -> None:
    expected = {"logits": EXPECTED, "two": np.ones(5, np.float32)}
    found = compare_rows("here", expected, {"logits": EXPECTED + 1, "two": np.ones(8, np.float32)})
    tolerance = Tolerance(max_abs_difference=1.0, min_agreement=0.0)
    unlike = "output 'two' has the shape [8], the checkpoint's has [5]"
    assert found.failure(tolerance) == f"here: {unlike}"
    both = worst([compare(expected, expected), found.parity])
    assert both.failure(tolerance) == unlike
    missing = compare_rows("here", expected, {"two": expected["two"]})
    assert missing.failure(tolerance) == (
        "here: output 'logits' is missing, the checkpoint's has [2, 2]"
    )


WORDS = {"words": object_array([b"a", b"bc"]).reshape(2, 1)}


def test_texts_are_equal_as_bytes_or_as_text() -> None:
    assert compare(WORDS, {"words": np.array([["a"], ["bc"]], object)}) == Parity(0.0, 1.0)


@pytest.mark.parametrize(
    ("other", "said"), [("bd", "'bd' in row 1"), (b"", "b'' in row 1"), (7, "7 in row 1")]
)
def test_other_texts_are_never_within_a_tolerance(other: object, said: str) -> None:
    found = compare(WORDS, {"words": np.array([[b"a"], [other]], object)})
    assert is_infinitely_far(found)
    assert said in found.unlike
    everything = Tolerance(max_abs_difference=1e30, min_agreement=0.0)
    assert "the checkpoint's has b'bc'" in str(found.failure(everything))


def test_long_texts_are_cut_in_messages() -> None:
    right = {"words": object_array([b"x" * 10_000])}
    assert len(compare(right, {"words": object_array([b"y" * 10_000])}).unlike) < 300
