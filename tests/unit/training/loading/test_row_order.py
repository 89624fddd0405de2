"""The order of rows: a function of the seed, the epoch, and the sampler."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.errors import RecipeError
from training.loading.row_order import bucketed, checked_weights, class_weights, drawn, shuffled


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    first = shuffled(50, 1, 0)
    assert sorted(first) == list(range(50))
    assert (shuffled(50, 1, 0) == first).all()
    assert (shuffled(50, 1, 1) != first).any()
    assert (shuffled(50, 2, 0) != first).any()


def test_classes_are_drawn_equally_often() -> None:
    labels = np.array([0] * 9_000 + [1] * 900 + [2] * 100)
    found = np.bincount(labels[drawn(class_weights(labels, "d"), 3, 0)])
    assert found.sum() == 10_000
    assert abs(found - 10_000 / 3).max() < 250  # more than 5 deviations


def test_a_weight_of_0_is_never_drawn() -> None:
    weights = np.array([0.0, 1.0, 0.0, 3.0, 0.0])
    found = np.concatenate([drawn(weights, 0, epoch) for epoch in range(400)])
    assert set(found) == {1, 3}
    assert 0.7 < (found == 3).mean() < 0.8


@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=120),
    batch=st.integers(1, 9),
    window=st.integers(2, 6),
    epoch=st.integers(0, 3),
)
def test_buckets_hold_every_row_once(
    lengths: list[int], batch: int, window: int, epoch: int
) -> None:
    found = bucketed(np.array(lengths), batch, window, 7, epoch)
    assert sorted(found) == list(range(len(lengths)))


def test_rows_of_like_length_share_a_batch_in_any_order() -> None:
    lengths = np.random.default_rng(0).integers(1, 100, 1600)

    def padded(order: np.ndarray) -> int:
        return int(lengths[order].reshape(100, 16).max(axis=1).sum() * 16)

    found = bucketed(lengths, 16, 50, 0, 0)
    assert padded(found) < 1.1 * lengths.sum()
    assert padded(shuffled(1600, 0, 0)) > 1.7 * lengths.sum()
    longest = lengths[found].reshape(100, 16).max(axis=1)
    assert abs(np.corrcoef(longest, np.arange(100))[0, 1]) < 0.3


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (None, "give the data set of d an attribute `labels`"),
        (np.zeros(3, np.float32), r"the labels of d are float32 \[3\]; take plain or weighted"),
        (np.zeros((3, 2), np.int64), r"int64 \[3, 2\]"),
    ],
)
def test_what_has_no_classes_cannot_be_balanced(labels: np.ndarray | None, words: str) -> None:
    with pytest.raises(RecipeError, match=words):
        class_weights(labels, "d")


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ([1, 2], r"shape \[2\]; return one weight for each of the 3"),
        ([1, -2, 3], "-2.0 for row 1"),
        ([1, np.nan, 3], "nan for row 1"),
        ([0, 0, 0], "0 for every row"),
    ],
)
def test_weights_that_make_no_sense_are_named(weights: list[float], words: str) -> None:
    with pytest.raises(RecipeError, match=words):
        checked_weights(weights, 3, "t")
