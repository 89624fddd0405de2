"""Requests of any batch axes: what shares a batch, and that each gets what it gets alone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flambeau.protocol.signature import Signature
from flambeau.protocol.tensors import DATATYPES, Array, object_array
from services.errors import BackendError
from services.inference.scheduling.axis_arrays import AxisArrays
from services.inference.scheduling.batch_arrays import COPIED_BYTES
from services.inference.scheduling.batch_rules import Batch, batch_rules
from services.inference.scheduling.batcher import MAX_SHARED_BYTES, Batcher, shared_values
from services.inference.scheduling.latency import LatencyModel
from services.queueing.memory_queue import Entry
from services.queueing.records import InferRequest, Lane
from tests.fixtures.shaped_models import BIASED, SCALED, STATEFUL, WHOLE, spec

LANE = Lane("m", 1)
FOREVER_S = 1e6


def entry(signature: Signature, number: int, inputs: dict[str, Array]) -> Entry:
    shapes = {one.name: one.datatype for one in signature.inputs}
    rows = signature.check_inputs({n: (shapes[n], a.shape) for n, a in inputs.items()})
    request = InferRequest(
        request_id=f"{number}", lane=LANE, inputs=inputs, rows=rows, deadline=FOREVER_S
    )
    return Entry(request, 0.0, lambda _: None)


def batches(
    signature: Signature, entries: list[Entry], preferred: tuple[int, ...] = ()
) -> list[Batch]:
    rules = batch_rules(signature, preferred_rows=preferred)
    batcher = Batcher(rules, LatencyModel(rules.max_rows))
    for one in entries:
        batcher.add(one)
    found = []
    while (batch := batcher.next_batch(0.0)) is not None:
        found.append(batch)
    return found


def buffer(name: str, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> Array:
    return np.empty(shape, dtype)


@st.composite
def signatures(draw: st.DrawFn) -> Signature:
    """Returns a signature with any batch axes; its first input has one and is required."""

    def tensor(name: str, batched: bool, is_input: bool):  # type: ignore[no-untyped-def]
        rank = draw(st.integers(1, 3)) if batched else draw(st.integers(0, 2))
        axis = draw(st.integers(0, rank - 1)) if batched else None
        shape = [draw(st.sampled_from((1, 2, -1))) for _ in range(rank)]
        if axis is not None:
            shape[axis] = -1
        optional = is_input and name != "i0" and draw(st.booleans())
        return spec(name, "FP32", *shape, batch=axis, optional=optional)

    inputs = [tensor("i0", True, True)]
    inputs += [
        tensor(f"i{n}", draw(st.booleans()), True) for n in range(1, draw(st.integers(1, 4)))
    ]
    outputs = [tensor(f"o{n}", draw(st.booleans()), False) for n in range(draw(st.integers(1, 3)))]
    return Signature(inputs=tuple(inputs), outputs=tuple(outputs), max_batch_size=16)


def model(signature: Signature, inputs: dict[str, Array]) -> dict[str, Array]:
    """Computes each row of each output from that row of the batched inputs, and the shared ones."""
    axes = {one.name: one.batch_axis for one in signature.inputs}
    shared = sum(float(a.sum()) * (1 + len(n)) for n, a in inputs.items() if axes[n] is None)
    shared += len(inputs)
    rows = 0
    for name, array in inputs.items():
        if (axis := axes[name]) is not None:
            rest = tuple(i for i in range(array.ndim) if i != axis)
            rows = rows + array.sum(axis=rest, dtype=np.float64)
    found: dict[str, Array] = {}
    for one in signature.outputs:
        shape = [2 if size == -1 else size for size in one.shape]
        if one.batch_axis is None:
            found[one.name] = np.full(shape, shared, np.float64)
        else:
            shape[one.batch_axis] = 1
            lines = np.expand_dims(rows, tuple(range(1, len(shape))))
            tail = [size for axis, size in enumerate(shape) if axis != one.batch_axis]
            whole = np.broadcast_to(lines, (len(lines), *tail)) + shared
            found[one.name] = np.moveaxis(whole, 0, one.batch_axis)
    return found


@st.composite
def requests(draw: st.DrawFn, signature: Signature) -> list[dict[str, Array]]:
    found = []
    for _ in range(draw(st.integers(1, 8))):
        rows = draw(st.integers(1, 3))
        inputs: dict[str, Array] = {}
        for one in signature.inputs:
            if one.optional and draw(st.booleans()):
                continue
            shape = [draw(st.integers(1, 2)) if size == -1 else size for size in one.shape]
            if one.batch_axis is not None:
                shape[one.batch_axis] = rows
                first = draw(st.integers(0, 100))
                steps = np.arange(first, first + np.prod(shape)).reshape(shape)
                inputs[one.name] = steps.astype(np.float32)
            else:
                inputs[one.name] = np.full(shape, draw(st.integers(0, 1)), np.float32)
        found.append(inputs)
    return found


@given(st.data())
def test_requests_batched_together_get_what_each_gets_alone(data: st.DataObject) -> None:
    signature = data.draw(signatures())
    asked = data.draw(requests(signature))
    preferred = data.draw(st.sampled_from(((), (4,), (2, 16))))
    entries = [entry(signature, number, inputs) for number, inputs in enumerate(asked)]
    arrays, answered = AxisArrays(LANE, signature), []
    for batch in batches(signature, entries, preferred):
        joined = dict(arrays.join(batch, buffer))
        parts = arrays.split(model(signature, joined), batch)
        for one, part in zip(batch.entries, parts, strict=True):
            right = model(signature, dict(one.request.inputs))
            assert part.keys() == right.keys()
            for name, array in right.items():
                assert (name, part[name].tolist()) == (name, array.tolist())
            answered.append(one)
    assert len(answered) == len(entries)


def scaled(factor: float, rows: int = 1) -> dict[str, Array]:
    return {"x": np.ones((rows, 4), np.float32), "factor": np.array(factor, np.float32)}


def test_equal_scalars_share_a_batch_and_others_do_not() -> None:
    entries = [entry(SCALED, n, scaled(f)) for n, f in enumerate((1, 2, 1, float("nan"), 2))]
    found = [
        [one.request.request_id for one in batch.entries] for batch in batches(SCALED, entries)
    ]
    assert sorted(found) == [["0", "2"], ["1", "4"], ["3"]]


def test_requests_with_and_without_an_optional_input_do_not_share_a_batch() -> None:
    x: Array = np.ones((1, 3), np.float32)
    bias: Array = np.ones(3, np.float32)
    asked: list[dict[str, Array]] = [
        {"x": x},
        {"x": x, "bias": bias},
        {"x": x},
        {"bias": bias, "x": x},
    ]
    entries = [entry(BIASED, number, inputs) for number, inputs in enumerate(asked)]
    found = [
        [one.request.request_id for one in batch.entries] for batch in batches(BIASED, entries)
    ]
    assert sorted(found) == [["0", "2"], ["1", "3"]]


def test_a_model_without_a_batch_runs_one_request_at_a_time() -> None:
    inputs: dict[str, Array] = {
        "matrix": np.ones((2, 3), np.float32),
        "scale": np.array(1, np.float32),
    }
    found = batches(WHOLE, [entry(WHOLE, number, inputs) for number in range(3)])
    assert [batch.rows for batch in found] == [1, 1, 1]


def test_a_waiting_request_of_any_shape_can_be_removed() -> None:
    whole: dict[str, Array] = {
        "matrix": np.ones((2, 3), np.float32), "scale": np.array(1, np.float32),
    }  # fmt: skip
    for signature, inputs in ((SCALED, scaled(1)), (WHOLE, whole)):
        rules = batch_rules(signature)
        batcher = Batcher(rules, LatencyModel(rules.max_rows))
        one = entry(signature, 1, inputs)
        batcher.add(one)
        assert batcher.remove(one)
        assert batcher.waiting == 0


LARGE = Signature(
    inputs=(spec("x", "FP32", -1), spec("table", "FP32", -1, batch=None)),
    outputs=(spec("y", "FP32", -1),),
    max_batch_size=8,
)


def test_large_shared_inputs_are_not_compared_and_run_alone() -> None:
    def asked(elements: int) -> dict[str, Array]:
        return {"x": np.ones(1, np.float32), "table": np.zeros(elements, np.float32)}

    most = MAX_SHARED_BYTES // 4
    small = batches(LARGE, [entry(LARGE, 0, asked(most)) for _ in range(3)])
    assert [batch.rows for batch in small] == [3]
    # Clients choose the ids of requests, so equal ids mean nothing.
    large = batches(LARGE, [entry(LARGE, 0, asked(most + 1)) for _ in range(3)])
    assert [batch.rows for batch in large] == [1, 1, 1]


def test_shared_texts_are_compared_by_their_bytes_and_count_by_them() -> None:
    signature = Signature(
        inputs=(spec("x", "FP32", -1), spec("words", "BYTES", -1, batch=None)),
        outputs=(spec("y", "FP32", -1),),
        max_batch_size=8,
    )

    def asked(*words: bytes) -> InferRequest:
        inputs: dict[str, Array] = {"x": np.ones(1, np.float32), "words": object_array(words)}
        return entry(signature, 0, inputs).request

    axes = {"x": 0, "words": None}
    assert shared_values(asked(b"a", b"bc"), axes) == shared_values(asked(b"a", b"bc"), axes)
    assert shared_values(asked(b"ab", b"c"), axes) != shared_values(asked(b"a", b"bc"), axes)
    large = b"x" * MAX_SHARED_BYTES
    assert shared_values(asked(large), axes) != shared_values(asked(large), axes)


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ({"level": np.ones((3, 1))}, "returned no output 'next'"),
        (
            {"level": np.ones((3, 1)), "next": np.ones((2, 4, 3))},
            "its dimension 1 must be the batch",
        ),
        ({"level": np.ones(3), "next": np.ones((2, 3, 3))}, r"its signature has \[-1, 1\]"),
    ],
)
def test_outputs_that_do_not_fit_are_the_models_fault(
    outputs: dict[str, Array], message: str
) -> None:
    inputs: dict[str, Array] = {
        "sound": np.ones((3, 2), np.float32),
        "state": np.ones((2, 3, 3), np.float32),
        "rate": np.array(1),
    }
    (batch,) = batches(STATEFUL, [entry(STATEFUL, 0, inputs)])
    with pytest.raises(BackendError, match=message):
        AxisArrays(LANE, STATEFUL).split(outputs, batch)


def test_large_parts_keep_no_batch_in_memory() -> None:
    rows = COPIED_BYTES
    inputs: dict[str, Array] = {"x": np.ones((1, 4), np.float32), "factor": np.array(1, np.float32)}
    (batch,) = batches(SCALED, [entry(SCALED, 0, inputs)])
    y = np.ones((1, 4 * rows), DATATYPES["FP32"])
    (part,) = AxisArrays(LANE, SCALED).split({"y": y, "twice": np.array(2.0)}, batch)
    assert not np.shares_memory(part["y"], y)
    (part,) = AxisArrays(LANE, SCALED).split({"y": y, "twice": np.array(2.0)}, batch, owned=True)
    assert np.shares_memory(part["y"], y)
