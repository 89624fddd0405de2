"""Augmentation: the effect of each change, which depends on a row's position alone."""

from typing import Any

import numpy as np
import pytest

from training.errors import DataError, RecipeError, TargetError
from training.loading.augmentation import Augmentation, Draws
from training.recipe.parts.loading_parts import AugmentStep

IMAGES = np.random.default_rng(0).random((64, 2, 6, 5), np.float32) + 1
PLACES = np.arange(64)


def shaken(row: np.ndarray, random: np.random.Generator, by: float = 1.0) -> np.ndarray:
    return row + np.float32(by * random.random())


def widened(row: np.ndarray, random: np.random.Generator) -> np.ndarray:
    return row.astype(np.float64)


def made(*steps: dict[str, Any], seed: int = 0, **inputs: np.ndarray) -> Augmentation:
    parts = [AugmentStep.model_validate(step) for step in steps]
    return Augmentation(parts, seed, inputs or {"image": IMAGES})


def changed(*steps: dict[str, Any], images: np.ndarray = IMAGES) -> np.ndarray:
    found: np.ndarray = made(*steps, image=images).change({"image": images}, 0, PLACES)["image"]
    assert (found.shape, found.dtype) == (images.shape, images.dtype)
    return found


ALL: tuple[dict[str, Any], ...] = (
    {"random_crop": {"padding": 2}},
    {"random_flip": {}},
    {"random_erase": {}},
    {"noise": {"deviation": 0.5}},
    {"random_scale": {}},
    {
        "function": {
            "target": "tests.unit.training.loading.test_augmentation:shaken",
            "args": {"by": 2},
        }
    },
)


@pytest.mark.parametrize("steps", [*[(each,) for each in ALL], ALL])
def test_a_row_is_changed_by_its_place_and_not_by_its_batch(steps: tuple[Any, ...]) -> None:
    augmentation, given = made(*steps), {"image": IMAGES.copy()}
    whole = augmentation.change(given, 1, PLACES)["image"]
    part = {"image": IMAGES[5::3]}
    assert (augmentation.change(part, 1, PLACES[5::3])["image"] == whole[5::3]).all()
    assert (augmentation.change(given, 1, PLACES)["image"] == whole).all()
    assert (augmentation.change(given, 2, PLACES)["image"] != whole).any()
    assert (made(*steps, seed=1).change(given, 1, PLACES)["image"] != whole).any()
    assert (given["image"] == IMAGES).all()


def test_a_crop_moves_the_image_by_whole_pixels() -> None:
    found = changed(ALL[0])
    padded = np.pad(IMAGES, ((0, 0), (0, 0), (2, 2), (2, 2)))
    moves = set()
    for row in range(64):
        fits = [
            (down, right)
            for down in range(5)
            for right in range(5)
            if (padded[row, :, down : down + 6, right : right + 5] == found[row]).all()
        ]
        assert len(fits) == 1
        moves.add(fits[0])
    assert {down for down, _ in moves} == {right for _, right in moves} == set(range(5))


def test_a_flip_turns_its_share_of_the_rows() -> None:
    found = changed({"random_flip": {"share": 0.25}})
    turned = (found == IMAGES[..., ::-1]).all(axis=(1, 2, 3))
    assert (found[~turned] == IMAGES[~turned]).all()
    assert 6 <= turned.sum() <= 26
    upside_down = changed({"random_flip": {"share": 1, "axis": 2}})
    assert (upside_down == IMAGES[:, :, ::-1]).all()


def test_erasing_blots_out_a_rectangle_of_all_channels() -> None:
    found = changed({"random_erase": {"share": 1, "largest": 0.6, "value": -1}})
    gone = found == -1
    assert (found[~gone] == IMAGES[~gone]).all()
    assert (gone[:, 0] == gone[:, 1]).all()
    for each in gone[:, 0]:
        rows, columns = each.any(axis=1), each.any(axis=0)
        assert (each == rows[:, None] & columns).all()
        assert 1 <= rows.sum() <= 4
        assert 1 <= columns.sum() <= 3
        assert abs(np.diff(rows.astype(int))).sum() <= 2  # in one piece


def test_erasing_leaves_the_other_share_of_the_rows() -> None:
    found = changed({"random_erase": {"share": 0.25, "value": -1}})
    assert 6 <= (found == -1).any(axis=(1, 2, 3)).sum() <= 26


def test_noise_is_normal_and_factors_are_uniform() -> None:
    images = np.full((64, 1, 50, 50), 2, np.float32)
    noise = changed({"noise": {"deviation": 0.5}}, images=images) - 2
    assert noise.mean() == pytest.approx(0, abs=0.01)
    assert noise.std() == pytest.approx(0.5, rel=0.01)
    assert (abs(noise) < 0.5).mean() == pytest.approx(0.6827, abs=0.005)
    scaled = changed({"random_scale": {"least": 0.5, "most": 1.5}}, images=images) / 2
    assert (scaled == scaled[:, :, :1, :1]).all()
    factors = scaled[:, 0, 0, 0]
    assert 0.5 <= factors.min() < 0.6 < 1.4 < factors.max() <= 1.5


def test_draws_are_uniform_and_of_their_own() -> None:
    drawn = Draws(0, 0, 0, np.arange(2000)).uniform(20)
    assert 0 <= drawn.min() < drawn.max() < 1
    assert np.histogram(drawn, 10, (0, 1))[0] == pytest.approx(4000, abs=300)
    assert len(np.unique(drawn)) == drawn.size
    near = np.corrcoef(np.vstack([drawn[:-1, 0], drawn[1:, 0], drawn[:-1, 1]]))
    assert abs(near - np.eye(3)).max() < 0.1


def splitmix64(seed: int, number: int) -> int:
    """Its output after `number` others, in Python's integers."""
    z = (seed + (number + 1) * 0x9E3779B97F4A7C15) % 2**64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % 2**64
    return z ^ (z >> 31)


def test_draws_are_those_of_splitmix64() -> None:
    assert splitmix64(1234567, 1) == 3203168211198807973  # as published
    (key,) = np.random.SeedSequence((3, 4, 5)).generate_state(1, "u8").tolist()
    expected = [
        [(splitmix64(splitmix64(key, place - 1), number) >> 11) / 2**53 for number in range(3)]
        for place in (0, 7)
    ]
    assert Draws(3, 4, 5, np.array([0, 7])).uniform(3).tolist() == expected


TWO = {"a": IMAGES, "b": np.zeros((64, 3), np.int64)}


@pytest.mark.parametrize(
    ("step", "inputs", "words"),
    [
        ({"noise": {"deviation": 1}}, TWO, r"which of \['a', 'b'\] it changes"),
        ({"noise": {"deviation": 1, "input": "c"}}, TWO, "names input 'c'"),
        ({"noise": {"deviation": 1, "input": "b"}}, TWO, r"needs floats .* is int64 \[64, 3\]"),
        ({"random_crop": {"padding": 1, "input": "b"}}, TWO, "needs rows of 3 dimensions"),
        ({"random_flip": {"axis": 4, "input": "a"}}, TWO, "needs rows of 5 dimensions"),
        ({"function": {"target": "no:x", "input": "a"}}, TWO, "cannot import 'no'"),
        ({"function": {"target": f"{__name__}:widened"}}, {}, "returned float64"),
        ({"function": {"target": f"{__name__}:shaken", "args": {"z": 1}}}, {}, "fails: TypeError"),
    ],
)
def test_a_change_that_does_not_fit_is_refused_before_training(
    step: dict[str, Any], inputs: dict[str, np.ndarray], words: str
) -> None:
    with pytest.raises((RecipeError, TargetError, DataError), match=words):
        Augmentation([AugmentStep.model_validate(step)], 0, inputs or {"image": IMAGES})
