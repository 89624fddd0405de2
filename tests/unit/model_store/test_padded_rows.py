"""Rows cut to their own length and padded again: nothing real is lost, nothing else is left."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flambeau.protocol.signature import Padding, Signature, SignatureError, TensorSpec
from flambeau.protocol.tensors import Array
from model_store.arrays.padded_rows import cut_back, own_lengths, padded_rows, shortened

FULL = 9
PADDING = Padding(
    inputs={"tokens": 1, "sound": 2},
    outputs={"each": 2},
    buckets=(3, 6, 12),
    values={"tokens": 7},
    mask="mask",
    lengths="count",
)
SIGNATURE = Signature(
    inputs=(
        TensorSpec(name="tokens", datatype="INT64", shape=(-1, -1)),
        TensorSpec(name="sound", datatype="FP32", shape=(-1, 2, -1)),
        TensorSpec(name="mask", datatype="FP32", shape=(-1, -1)),
        TensorSpec(name="count", datatype="INT32", shape=(-1,)),
    ),
    outputs=(TensorSpec(name="each", datatype="FP32", shape=(-1, 5, -1)),),
    max_batch_size=3,
    padding=PADDING,
)


def rows(lengths: list[int]) -> dict[str, Array]:
    random = np.random.default_rng(0)
    count = np.array(lengths, np.int32)
    return {
        "tokens": random.integers(10, 99, (len(lengths), FULL)),
        "sound": random.random((len(lengths), 2, FULL), np.float32),
        "mask": (np.arange(FULL) < count[:, None]).astype(np.float32),
        "count": count,
    }


@given(st.lists(st.integers(1, FULL), min_size=1, max_size=12).filter(lambda n: {*n} - {3, 6}))
def test_each_row_is_there_alone_and_padded_to_its_bucket(lengths: list[int]) -> None:
    inputs = rows(lengths)
    found = padded_rows(inputs, SIGNATURE)
    assert found.lengths == lengths
    assert sorted(row for numbers, _ in found.batches for row in numbers) == [*range(len(lengths))]
    for row, length in enumerate(lengths):
        alone = found.alone[row]
        assert np.array_equal(alone["tokens"], inputs["tokens"][row : row + 1, :length])
        assert np.array_equal(alone["sound"], inputs["sound"][row : row + 1, :, :length])
        assert (alone["mask"] == 1).all()
        assert alone["count"].tolist() == [length]
    for numbers, batch in found.batches:
        assert len(numbers) <= SIGNATURE.max_batch_size
        bucket = batch["tokens"].shape[1]
        for position, row in enumerate(numbers):
            length = lengths[row]
            assert bucket == PADDING.bucket_of(length)
            assert (batch["tokens"][position, length:] == 7).all()
            assert (batch["sound"][position, :, length:] == 0).all()
            assert batch["mask"][position].tolist() == [1] * length + [0] * (bucket - length)
            for name, array in found.alone[row].items():
                inner = tuple(slice(size) for size in array.shape[1:])
                assert np.array_equal(batch[name][position][inner], array[0])


def test_every_array_keeps_its_type() -> None:
    inputs = rows([2, 5, 9])
    found = padded_rows(inputs, SIGNATURE)
    for arrays in (*found.alone, *(batch for _, batch in found.batches)):
        assert {n: a.dtype for n, a in arrays.items()} == {n: a.dtype for n, a in inputs.items()}


def test_outputs_are_cut_back_along_the_named_axis_only() -> None:
    outputs: dict[str, Array] = {
        "each": np.arange(2 * 5 * 4).reshape(2, 5, 4),
        "logits": np.arange(8).reshape(2, 4),
    }
    short, long = cut_back(outputs, [1, 4], PADDING)
    assert np.array_equal(short["each"], outputs["each"][:1, :, :1])
    assert np.array_equal(long["each"], outputs["each"][1:])
    assert np.array_equal(short["logits"], outputs["logits"][:1])


def test_rows_that_all_fill_their_bucket_prove_nothing() -> None:
    with pytest.raises(SignatureError, match=r"each of the 2 golden rows fills its bucket"):
        padded_rows(rows([3, 6]), SIGNATURE)


def changed(name: str, value: Any) -> dict[str, Array]:
    inputs = rows([2, 5, 9])
    inputs[name] = np.asarray(value, inputs[name].dtype)
    return inputs


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (changed("mask", np.eye(3, FULL)), "row 1 of 'mask' is not ones followed by zeros"),
        (changed("mask", np.full((3, FULL), 2)), "row 0 of 'mask' is not ones followed by zeros"),
        (changed("count", [2, 4, 9]), "row 1 has 5 ones in 'mask' and 'count' says 4"),
        (
            {**changed("mask", np.zeros((3, FULL))), "count": np.zeros(3, np.int32)},
            "a row has length 0..0; give 1 to 9",
        ),
    ],
)
def test_a_mask_or_lengths_that_contradict_themselves_are_named(
    inputs: dict[str, Array], message: str
) -> None:
    with pytest.raises(SignatureError) as refused:
        own_lengths(inputs, PADDING)
    assert message in str(refused.value)


def test_lengths_alone_say_how_long_a_row_is() -> None:
    padding = PADDING.model_copy(update={"mask": None})
    assert own_lengths(rows([2, 5, 9]), padding).tolist() == [2, 5, 9]
    with pytest.raises(SignatureError, match=r"length 2\.\.10; give 1 to 9"):
        own_lengths(changed("count", [2, 5, 10]), padding)


def test_without_mask_and_lengths_every_length_is_tried() -> None:
    padding = PADDING.model_copy(update={"mask": None, "lengths": None})
    assert set(own_lengths(rows([9] * 64), padding).tolist()) == set(range(1, FULL + 1))


def test_rows_to_export_by_are_short_and_their_lengths_agree() -> None:
    axes = {"x": 1}
    spec = [
        TensorSpec(name="x", datatype="FP32", shape=(-1, -1, 3)),
        TensorSpec(name="lengths", datatype="INT64", shape=(-1,)),
        TensorSpec(name="age", datatype="FP32", shape=(-1, 9)),
    ]
    output = TensorSpec(name="y", datatype="FP32", shape=(-1, 2))
    signature = Signature(
        inputs=tuple(spec),
        outputs=(output,),
        max_batch_size=4,
        padding=Padding(inputs=axes, lengths="lengths", buckets=(9,)),
    )
    inputs: dict[str, Array] = {
        "x": np.arange(54.0).reshape(2, 9, 3),
        "lengths": np.array([2, 9]),
        "age": np.zeros((2, 9)),
    }
    found = shortened(inputs, signature)
    assert found["x"].tolist() == inputs["x"][:, :4].tolist()
    assert found["lengths"].tolist() == [2, 4]
    assert found["age"].shape == (2, 9)
    plain = signature.model_copy(update={"padding": None})
    assert shortened(inputs, plain)["x"] is inputs["x"]
