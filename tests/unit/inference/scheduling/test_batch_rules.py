"""Batching rules of a signature: compatible requests, by shapes or by lengths alone."""

from collections.abc import Sequence

import numpy as np
import pytest

from flambeau.protocol.signature import Padding, Signature, TensorSpec
from services.inference.scheduling.batch_rules import BatchRules, batch_rules
from services.inference.scheduling.batcher import Batcher
from services.inference.scheduling.latency import LatencyModel
from services.queueing.memory_queue import Entry
from services.queueing.records import InferRequest, Lane

PADDING = Padding(inputs={"x": 1}, buckets=(4, 8), mask="mask")


def signature(shape: tuple[int, ...], padding: Padding | None = None) -> Signature:
    inputs = [TensorSpec(name="x", datatype="FP32", shape=shape)]
    if padding is not None:
        inputs.append(TensorSpec(name="mask", datatype="BOOL", shape=(-1, -1)))
    return Signature(
        inputs=tuple(inputs),
        outputs=(TensorSpec(name="y", datatype="FP32", shape=(-1, 2)),),
        max_batch_size=4,
        padding=padding,
    )


def batches(rules: BatchRules, shapes: Sequence[tuple[int, ...]]) -> list[list[tuple[int, ...]]]:
    """Batches of requests of one row each, whose second dimension is the length."""
    batcher = Batcher(rules, LatencyModel(rules.max_rows))
    for number, shape in enumerate(shapes):
        request = InferRequest(
            request_id=str(number),
            lane=Lane("m", 1),
            inputs={"x": np.zeros((1, *shape), np.float32)},
            rows=1,
            deadline=1e6,
            length=shape[0] if rules.padding is not None else None,
        )
        batcher.add(Entry(request, 0.0, lambda _: None))
    found = []
    while batch := batcher.next_batch(1.0):
        found.append([one.request.inputs["x"].shape[1:] for one in batch.entries])
    return found


def test_shapes_are_not_looked_at_where_the_signature_fixes_them() -> None:
    rules = batch_rules(signature((-1, 3, 4)), preferred_rows=(16, 4, 2), wait_s=0.5)
    assert rules == BatchRules(max_rows=4, preferred_rows=(2, 4), wait_s=0.5, row_elements=12)
    assert batches(rules, [(3, 4), (9, 9)]) == [[(3, 4), (9, 9)]]


def test_a_length_tells_its_bucket_where_nothing_else_varies() -> None:
    rules = batch_rules(signature((-1, -1, 3), PADDING))
    assert rules.only_lengths_vary
    assert not rules.sizes_free
    shapes = [(3, 3), (5, 3), (4, 3), (8, 3), (3, 3)]
    assert batches(rules, shapes) == [[(3, 3), (4, 3), (3, 3)], [(5, 3), (8, 3)]]


@pytest.mark.parametrize("padding", [None, PADDING])
def test_what_else_varies_separates_requests_of_one_length(padding: Padding | None) -> None:
    rules = batch_rules(signature((-1, -1, -1), padding))
    assert not rules.only_lengths_vary
    assert rules.sizes_free
    shapes = [(4, 1), (4, 2), (4, 1)]
    assert batches(rules, shapes) == [[(4, 1), (4, 1)], [(4, 2)]]
