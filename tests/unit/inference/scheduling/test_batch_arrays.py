"""The arrays of a batch: every row returns to its request, whatever was padded or filled in."""

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flambeau.protocol.signature import Padding, Signature, TensorSpec
from flambeau.protocol.tensors import DATATYPES, Array
from services.errors import BackendError
from services.inference.scheduling.batch_arrays import (
    COPIED_BYTES,
    QUIET_ELEMENTS,
    QUIET_PART_BYTES,
    BatchArrays,
)
from services.inference.scheduling.batch_rules import Batch
from services.inference.scheduling.latency import LatencyCurve
from services.queueing.memory_queue import Entry
from services.queueing.records import InferRequest, Lane

LANE = Lane("m", 1)
FIXED = Signature(
    inputs=(
        TensorSpec(name="x", datatype="FP32", shape=(-1, 2)),
        TensorSpec(name="k", datatype="INT64", shape=(-1,)),
    ),
    outputs=(TensorSpec(name="y", datatype="FP32", shape=(-1, 2)),),
    max_batch_size=64,
)
PADDED = Signature(
    inputs=(
        TensorSpec(name="tokens", datatype="INT64", shape=(-1, -1)),
        TensorSpec(name="waves", datatype="FP32", shape=(-1, 3, -1)),
        TensorSpec(name="mask", datatype="BOOL", shape=(-1, -1)),
        TensorSpec(name="count", datatype="INT32", shape=(-1,)),
        TensorSpec(name="scale", datatype="FP32", shape=(-1, 2)),
    ),
    outputs=(
        TensorSpec(name="labels", datatype="INT64", shape=(-1, -1)),
        TensorSpec(name="logits", datatype="FP32", shape=(-1, 2)),
    ),
    max_batch_size=64,
    padding=Padding(
        inputs={"tokens": 1, "waves": 2},
        outputs={"labels": 1},
        buckets=(4, 16),
        values={"tokens": -1},
        mask="mask",
        lengths="count",
    ),
)


class Buffers:
    """Memory for inputs, with a number in it that nothing may rely on."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def __call__(self, name: str, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> Array:
        self.names.append(name)
        array: Array = np.full(shape, 113, dtype)
        return array


def entry(inputs: Mapping[str, Array], rows: int, length: int | None = None) -> Entry:
    request = InferRequest(
        request_id="r", lane=LANE, inputs=inputs, rows=rows, deadline=1e9, length=length
    )
    return Entry(request, 0.0, lambda _: None)


def fixed(number: int, rows: int) -> Entry:
    x = np.arange(rows * 2, dtype=np.float32).reshape(rows, 2) + 100 * number
    return entry({"x": x, "k": np.full(rows, number)}, rows)


def padded(number: int, rows: int, length: int, *, filled_in: bool = False) -> Entry:
    """Returns all inputs of a request, or omits the mask and the lengths, to be filled in."""
    inputs: dict[str, Array] = {
        "tokens": np.arange(rows * length).reshape(rows, length) + 1000 * number,
        "waves": np.full((rows, 3, length), number, np.float32),
        "scale": np.full((rows, 2), number, np.float32),
    }
    if filled_in:
        inputs["mask"] = np.ones((rows, length), np.bool_)
        inputs["count"] = np.full(rows, length, np.int32)
    return entry(inputs, rows, length)


def batch(
    entries: Sequence[Entry], padded_rows: int | None = None, length: int | None = None
) -> Batch:
    rows = sum(one.request.rows for one in entries)
    return Batch(list(entries), rows, padded_rows or rows, length, LatencyCurve(64, {}))


def test_a_request_alone_is_handed_over_as_it_came() -> None:
    buffers, one = Buffers(), fixed(1, 3)
    joined = BatchArrays(LANE, FIXED).join(batch([one]), buffers)
    assert joined is one.request.inputs
    assert not buffers.names


def test_rows_are_joined_in_order_in_the_backend_s_memory() -> None:
    buffers = Buffers()
    joined = BatchArrays(LANE, FIXED).join(batch([fixed(1, 2), fixed(2, 1)]), buffers)
    assert buffers.names == ["x", "k"]
    assert joined["x"].tolist() == [[100, 101], [102, 103], [200, 201]]
    assert joined["k"].tolist() == [1, 1, 2]
    assert joined["x"].dtype == np.float32
    assert joined["k"].dtype == np.int64


@pytest.mark.parametrize("at", range(6))
def test_large_rows_are_joined_whichever_way_they_are_copied(at: int) -> None:
    """Two of more than `QUIET_COPY_BYTES` together, of any memory, or too large to be quiet."""
    width = QUIET_ELEMENTS + 1 if at < 5 else QUIET_PART_BYTES
    many = Signature(
        inputs=(TensorSpec(name="x", datatype="FP32", shape=(-1, width)),),
        outputs=(TensorSpec(name="y", datatype="FP32", shape=(-1,)),),
        max_batch_size=4096,
    )
    rows = {0: [1, 2, 1], 1: [130] * 12}.get(at, [2, 3])
    parts = [
        np.random.default_rng(number).normal(size=(count, width)).astype(np.float32)
        for number, count in enumerate(rows)
    ]
    if at == 2:
        parts[0] = np.frombuffer(parts[0].tobytes(), np.float32).reshape(parts[0].shape)
    elif at == 3:
        parts[1] = np.asfortranarray(parts[1])
    elif at == 4:
        parts[1] = parts[1].astype(np.float16)
    entries = [entry({"x": part}, len(part)) for part in parts]
    joined = BatchArrays(LANE, many).join(batch(entries, padded_rows=sum(rows) + 1), Buffers())
    assert np.array_equal(joined["x"][:-1], np.concatenate(parts).astype(np.float32))
    assert np.array_equal(joined["x"][-1], joined["x"][-2])


@pytest.mark.parametrize("entries", [[fixed(1, 1), fixed(2, 1)], [fixed(2, 2)]])
def test_missing_rows_repeat_the_last_real_one(entries: list[Entry]) -> None:
    joined = BatchArrays(LANE, FIXED).join(batch(entries, padded_rows=4), Buffers())
    assert joined["k"].tolist()[2:] == [2, 2]
    assert joined["x"].tolist()[1:] == [joined["x"].tolist()[1]] * 3


def test_each_request_gets_its_own_rows_and_none_that_were_added() -> None:
    made, whole = BatchArrays(LANE, FIXED), batch([fixed(1, 2), fixed(2, 1)], padded_rows=8)
    y = np.arange(16, dtype=np.float32).reshape(8, 2)
    parts = made.split({"y": y}, whole)
    assert [part["y"].tolist() for part in parts] == [[[0, 1], [2, 3]], [[4, 5]]]
    assert all(np.shares_memory(part["y"], y) for part in parts)


def test_large_rows_do_not_keep_the_whole_batch() -> None:
    made, whole = BatchArrays(LANE, FIXED), batch([fixed(1, 2), fixed(2, 1)])
    y = np.arange(3 * COPIED_BYTES, dtype=np.float32).reshape(3, COPIED_BYTES)
    parts = made.split({"y": y}, whole)
    assert [part["y"].tolist() for part in parts] == [y[:2].tolist(), y[2:].tolist()]
    assert not any(np.shares_memory(part["y"], y) for part in parts)


@pytest.mark.parametrize(("others", "is_writable"), [(0, False), (0, True), (1, False)])
def test_an_input_that_is_given_back_is_not_copied(others: int, is_writable: bool) -> None:
    x = np.arange(2 * COPIED_BYTES, dtype=np.float32).reshape(COPIED_BYTES, 2)
    entries = [entry({"x": x, "k": np.arange(COPIED_BYTES)}, COPIED_BYTES)]
    entries += [fixed(2, 1)] * others
    y = np.concatenate([x, x[:1]]) if others else x.view()
    y.flags.writeable = is_writable
    part = BatchArrays(LANE, FIXED).split({"y": y}, batch(entries))[0]
    assert np.shares_memory(part["y"], y) is not bool(others or is_writable)


@pytest.mark.parametrize(("rows", "padded_rows", "copied"), [(2, 2, False), (2, 4, True)])
def test_an_output_of_its_own_is_copied_only_if_others_would_stay_with_it(
    rows: int, padded_rows: int, copied: bool
) -> None:
    made, whole = BatchArrays(LANE, FIXED), batch([fixed(1, rows)], padded_rows=padded_rows)
    y = np.arange(padded_rows * COPIED_BYTES, dtype=np.float32).reshape(padded_rows, COPIED_BYTES)
    (part,) = made.split({"y": y}, whole, owned=True)
    assert part["y"].tolist() == y[:rows].tolist()
    assert np.shares_memory(part["y"], y) is not copied
    (part,) = made.split({"y": y}, whole)
    assert not np.shares_memory(part["y"], y)


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ({}, r"returned no output 'y'; its signature has it"),
        ({"y": np.zeros((2, 2))}, r"'y' of shape \[2, 2\] for a batch of 3 rows"),
        ({"y": np.zeros(())}, r"'y' of shape \[\] for a batch of 3 rows"),
    ],
)
def test_outputs_unlike_the_signature_are_named(outputs: dict[str, Array], message: str) -> None:
    with pytest.raises(BackendError, match=message):
        BatchArrays(LANE, FIXED).split(outputs, batch([fixed(1, 2), fixed(2, 1)]))


def test_outputs_nobody_asked_for_are_left_out() -> None:
    y = np.zeros((1, 2))
    (part,) = BatchArrays(LANE, FIXED).split({"y": y, "more": y}, batch([fixed(1, 1)]))
    assert list(part) == ["y"]


def test_lengths_are_padded_and_mask_and_lengths_filled_in() -> None:
    entries = [padded(1, 1, 2), padded(2, 2, 3)]
    joined = BatchArrays(LANE, PADDED).join(batch(entries, padded_rows=4, length=4), Buffers())
    assert joined["tokens"].tolist() == [
        [1000, 1001, -1, -1],
        [2000, 2001, 2002, -1],
        [2003, 2004, 2005, -1],
        [2003, 2004, 2005, -1],
    ]
    assert joined["mask"].tolist() == [
        [True, True, False, False],
        *[[True, True, True, False]] * 3,
    ]
    assert joined["count"].tolist() == [2, 3, 3, 3]
    assert joined["waves"][:, 0].tolist() == [[1, 1, 0, 0], *[[2, 2, 2, 0]] * 3]
    assert joined["scale"].tolist() == [[1, 1], [2, 2], [2, 2], [2, 2]]
    for spec in PADDED.inputs:
        assert joined[spec.name].dtype == DATATYPES[spec.datatype]


def test_what_a_request_gave_itself_is_kept() -> None:
    one, other = padded(1, 1, 2, filled_in=True), padded(2, 1, 3)
    masked = {**one.request.inputs, "mask": np.array([[True, False]]), "count": np.array([1])}
    one = entry(masked, 1, 2)
    joined = BatchArrays(LANE, PADDED).join(batch([one, other], length=3), Buffers())
    assert joined["mask"].tolist() == [[True, False, False], [True, True, True]]
    assert joined["count"].tolist() == [1, 3]


def test_a_request_alone_that_left_something_out_gets_it_filled_in() -> None:
    joined = BatchArrays(LANE, PADDED).join(batch([padded(1, 1, 2)], length=2), Buffers())
    assert joined["mask"].tolist() == [[True, True]]
    assert joined["count"].tolist() == [2]


def test_a_full_request_alone_is_copied_only_where_its_length_is_padded() -> None:
    one, made = padded(1, 1, 3, filled_in=True), BatchArrays(LANE, PADDED)
    assert made.join(batch([one], length=3), Buffers()) is one.request.inputs
    joined = made.join(batch([one], length=4), Buffers())
    assert joined["mask"].tolist() == [[True, True, True, False]]


@given(
    st.lists(
        st.tuples(st.integers(1, 3), st.integers(1, 4), st.booleans()), min_size=1, max_size=6
    ),
    st.integers(0, 5),
    st.booleans(),
)
def test_what_goes_in_comes_out_cut_to_its_own_length(
    requests: list[tuple[int, int, bool]], extra_rows: int, static: bool
) -> None:
    made = BatchArrays(LANE, PADDED)
    entries = [
        padded(n, rows, length, filled_in=given) for n, (rows, length, given) in enumerate(requests)
    ]
    longest = 4 if static else max(length for _, length, _ in requests)
    rows = sum(one.request.rows for one in entries)
    whole = batch(entries, padded_rows=rows + extra_rows, length=longest)
    joined = made.join(whole, Buffers())
    assert {array.shape[0] for array in joined.values()} == {whole.padded_rows}
    parts = made.split({"labels": joined["tokens"], "logits": joined["scale"]}, whole)
    for one, part in zip(entries, parts, strict=True):
        np.testing.assert_array_equal(part["labels"], one.request.inputs["tokens"])
        np.testing.assert_array_equal(part["logits"], one.request.inputs["scale"])
