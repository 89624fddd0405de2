"""The digits in other forms: the same images in the same splits, nothing lost."""

import numpy as np
import pytest

from flambeau.protocol.tensors import Array
from training.data_sets.digits import as_columns, as_ink, as_numbers, as_raw, at_sizes, enlarge
from training.datasets import IGNORED_LABEL, digits

SEED = 3


@pytest.fixture(scope="module")
def images() -> tuple[Array, Array]:
    inputs, labels = digits(SEED)["test"]
    return inputs["image"], labels


def test_columns_are_the_image_without_its_empty_edges(images: tuple[Array, Array]) -> None:
    inputs, labels = as_columns(SEED)["test"]
    np.testing.assert_array_equal(labels, images[1])
    for columns, length, image in zip(
        inputs["columns"], inputs["lengths"], images[0][:, 0], strict=True
    ):
        assert columns[0].any()
        assert columns[length - 1].any()
        assert not columns[length:].any()
        assert columns.sum() == pytest.approx(image.sum())
    assert len(set(inputs["lengths"].tolist())) > 3


def test_ink_is_where_the_image_is_dark(images: tuple[Array, Array]) -> None:
    inputs, _ = as_ink(SEED)["test"]
    for tokens, mask, image in zip(inputs["tokens"], inputs["mask"], images[0], strict=True):
        np.testing.assert_array_equal(mask, tokens > 0)
        places = (tokens[mask] - 1) % 64
        np.testing.assert_array_equal(places, np.flatnonzero(image.ravel() >= 0.25))
    assert inputs["tokens"].max() <= 128


def test_a_digit_on_a_canvas_is_whole_and_of_many_sizes() -> None:
    inputs, labels = at_sizes(SEED, canvas=20, copies=2)["train"]
    assert inputs["image"].shape == (len(labels), 1, 20, 20)
    assert len(labels) == 2 * len(digits(SEED)["train"][1])
    heights = {int(image[0].any(axis=1).sum()) for image in inputs["image"]}
    assert max(heights) == 20
    assert min(heights) <= 9


def test_enlarging_keeps_the_corners() -> None:
    image = np.arange(64, dtype=np.float32).reshape(8, 8)
    found = enlarge(image, 15)
    assert found[::2, ::2].tolist() == image.tolist()
    assert enlarge(image, 8).tolist() == image.tolist()


def test_numbers_are_digits_side_by_side_and_end() -> None:
    found = as_numbers(SEED, rows=64, longest=3)
    inputs, labels = found["test"]
    assert inputs["columns"].shape == (8, 24, 8)
    assert labels.shape == (8, 4)
    for row in labels:
        (end,) = np.flatnonzero(row == 10)
        assert ((row[:end] >= 0) & (row[:end] < 10)).all()
        assert (row[end + 1 :] == IGNORED_LABEL).all()
    again = as_numbers(SEED, rows=64, longest=3)["test"]
    np.testing.assert_array_equal(again[0]["columns"], inputs["columns"])


def test_a_scan_holds_the_image_in_whole_numbers(images: tuple[Array, Array]) -> None:
    inputs, labels = as_raw(SEED, side=15)["test"]
    np.testing.assert_array_equal(labels, images[1])
    assert inputs["image"].dtype == np.uint8
    assert inputs["image"].shape[1:] == (1, 15, 15)
    found = inputs["image"][:, :, ::2, ::2]
    np.testing.assert_array_equal(found, np.asarray(images[0], np.float32) * 16)
