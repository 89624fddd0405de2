"""The spread of golden answers: an offset is no part of it, and it has their scale."""

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from flambeau.protocol.tensors import Array
from model_store.rollouts.golden_spreads import PIECE_ELEMENTS, spread_of

ROWS = npst.arrays(np.float64, npst.array_shapes(max_dims=3), elements=st.floats(-8, 8, width=16))


def bf16_of(numbers: Array) -> Array:
    """Returns the bit patterns of numbers."""
    return (numbers.astype("<f4").view("<u4") >> 16).astype("<u2")


@given(ROWS, st.integers(-1000, 1000), st.sampled_from([0.5, 1.0, 4.0]))
def test_spread_follows_the_scale_and_no_offset(
    rows: npt.NDArray[np.float64], offset: int, scale: float
) -> None:
    """Offset and scale are exact in double precision."""
    found, moved = spread_of(rows, "FP64"), spread_of(rows * scale + offset, "FP64")
    if found is None:
        assert np.ptp(rows, axis=0).max() == pytest.approx(0)
    else:
        assert found <= np.sqrt((rows.reshape(len(rows), -1) ** 2).sum(1).mean()) * (1 + 1e-9)
        assert moved == pytest.approx(found * scale)


def test_rows_are_summed_in_pieces() -> None:
    rows = np.random.default_rng(1).random((3, PIECE_ELEMENTS), np.float32)
    wanted = np.sqrt(((rows - rows.mean(0)) ** 2).sum(1).mean())
    assert spread_of(rows, "FP32") == pytest.approx(float(wanted))


def test_bit_patterns_are_numbers() -> None:
    assert spread_of(bf16_of(np.array([[-1.0], [1.0]])), "BF16") == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("rows", "datatype"),
    [
        (np.array([[290.0]]), "FP64"),
        (np.array([290.0, np.nextafter(np.float32(290), 291)], np.float32), "FP32"),
        (np.array([290.0, 291.0], np.float16), "FP16"),
        (np.array([[1.0], [np.inf]]), "FP64"),
        (np.array([[1.0], [np.nan]]), "FP64"),
        (np.array([[1e300], [-1e300]]), "FP64"),
        (np.zeros((3, 0)), "FP64"),
    ],
)
def test_rows_that_are_alike_or_not_finite_have_none(rows: Array, datatype: str) -> None:
    assert spread_of(rows, datatype) is None
