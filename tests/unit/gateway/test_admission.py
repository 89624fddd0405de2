"""Admission: checks each request against its model's signature, also with cached checks."""

import re
import weakref
from collections.abc import Sequence
from unittest.mock import patch

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flambeau.protocol.called_signature import for_callers
from flambeau.protocol.sequence_spec import Sequences
from flambeau.protocol.signature import Padding, Signature, SignatureError, TensorSpec
from flambeau.protocol.tensors import DATATYPES
from services.errors import InvalidRequestError, UnsupportedError
from services.gateway import admission
from services.gateway.admission import Admission, InferCall, InputTensor
from services.queueing.memory_queue import MemoryQueue
from services.queueing.records import Lane, SequenceStep, ServedVersion
from services.telemetry.metrics import Metrics
from tests.fixtures.queue_ends import Shelf
from tests.fixtures.served_directory import serving
from tests.fixtures.signatures import one_to_one

LANE = Lane("m", 1)
PADDED = Signature(
    inputs=(
        TensorSpec(name="x", datatype="INT64", shape=(-1, -1)),
        TensorSpec(name="mask", datatype="BOOL", shape=(-1, -1)),
    ),
    outputs=(TensorSpec(name="y", datatype="FP32", shape=(-1, 2)),),
    max_batch_size=2,
    padding=Padding(inputs={"x": 1}, buckets=(2, 3), mask="mask"),
)
FIXED = Signature(
    inputs=(
        TensorSpec(name="x", datatype="INT64", shape=(-1, 2)),
        TensorSpec(name="mask", datatype="BOOL", shape=(-1, 2)),
    ),
    outputs=PADDED.outputs,
    max_batch_size=2,
)

Given = list[tuple[str, str, tuple[int, ...]]]
TENSORS = st.tuples(
    st.sampled_from(["x", "mask", "z"]),
    st.sampled_from(["INT64", "BOOL", "INT32"]),
    st.lists(st.integers(0, 4), min_size=0, max_size=3).map(tuple),
)
RIGHT: Sequence[Given] = [
    [("x", "INT64", (1, 2)), ("mask", "BOOL", (1, 2))],
    [("mask", "BOOL", (2, 2)), ("x", "INT64", (2, 2))],
    [("x", "INT64", (2, 3))],
]
NEARLY_RIGHT = st.tuples(st.sampled_from(RIGHT), TENSORS).map(lambda two: [two[0][0], two[1]])
INPUTS = st.sampled_from(RIGHT) | NEARLY_RIGHT | st.lists(TENSORS, max_size=3)
CALLS = st.lists(st.tuples(INPUTS, st.lists(st.text("yz"))), min_size=1, max_size=12)


class Place:
    """Admission over a queue whose entries stay on a shelf."""

    def __init__(self, signature: Signature) -> None:
        directory, queue, self.shelf = serving(signature, LANE), MemoryQueue(1000), Shelf()
        queue.open(LANE, self.shelf)
        self.admission = Admission(
            directory, queue, Metrics("0"), max_in_flight_requests=1000, request_timeout_s=60
        )

    def ask(self, given: Given, outputs: Sequence[str] = ()) -> tuple[int, int | None]:
        """Returns the rows and the length of the admitted request."""
        inputs = [
            InputTensor(name=name, datatype=datatype, array=np.zeros(shape, DATATYPES[datatype]))
            for name, datatype, shape in given
        ]
        call = InferCall(request_id="r", model="m", version="", inputs=inputs, outputs=outputs)
        request = self.admission.infer(call, lambda _: None).request
        assert {name: array.shape for name, array in request.inputs.items()} == {
            name: shape for name, _, shape in given
        }
        return request.rows, request.length


def judged(
    signature: Signature, given: Given, outputs: Sequence[str]
) -> tuple[int, int | None] | str:
    """Returns the same from the signature alone; or its error."""
    names = [name for name, _, _ in given]
    if len(set(names)) < len(names):
        return (
            f"input '{next(n for n in names if names.count(n) > 1)}' occurs twice; give each once"
        )
    try:
        rows = signature.check_inputs({name: (kind, shape) for name, kind, shape in given})
        signature.check_outputs(outputs)
    except SignatureError as error:
        return str(error)
    return rows, signature.length_of({name: shape for name, _, shape in given})


@pytest.mark.parametrize("signature", [PADDED, FIXED], ids=["padded", "fixed"])
@settings(max_examples=200, deadline=None)
@given(calls=CALLS)
async def test_a_request_is_judged_by_its_signature_whatever_came_before(
    signature: Signature, calls: list[tuple[Given, list[str]]]
) -> None:
    with patch.object(admission, "MAX_KINDS", 2):
        place = Place(signature)
        for inputs, outputs in [*calls, *calls]:
            expected = judged(signature, inputs, outputs)
            if isinstance(expected, str):
                words = re.escape(f"model 'm' version 1: {expected}")
                with pytest.raises(InvalidRequestError, match=f"^{words}$"):
                    place.ask(inputs, outputs)
            else:
                assert place.ask(inputs, outputs) == expected


async def test_kinds_of_requests_that_are_remembered_are_limited() -> None:
    wide = PADDED.model_copy(update={"padding": Padding(inputs={"x": 1}, buckets=(99,))})
    place = Place(wide)
    lengths = range(1, 50)
    with (
        patch.object(admission, "MAX_KINDS", 5),
        patch.object(Signature, "check_inputs", autospec=True, return_value=1) as check,
    ):
        for length in [*lengths, *reversed(lengths)]:
            mask = ("mask", "BOOL", (1, length))
            assert place.ask([("x", "INT64", (1, length)), mask]) == (1, length)
    remembered = 2 * len(lengths) - check.call_count
    assert 1 <= remembered <= 5


async def test_a_signature_that_is_served_no_more_is_forgotten() -> None:
    place = Place(PADDED)
    place.ask([("x", "INT64", (1, 3))])
    directory = place.admission.directory
    served = []
    for _ in range(3):
        fresh = PADDED.model_copy(deep=True)
        served.append(weakref.ref(fresh))
        directory.announce(ServedVersion(lane=LANE, state="ready", signature=fresh))
        directory.make_live(LANE)
        place.ask([("x", "INT64", (1, 3))])
        assert [found() for found in served] == [None] * (len(served) - 1) + [fresh]


def step_call(step: SequenceStep | None = None) -> InferCall:
    x = InputTensor(name="x", datatype="FP32", array=np.zeros((1, 1), np.float32))
    return InferCall(request_id="r", model="m", version="", inputs=[x], sequence=step)


async def test_step_takes_the_limit_of_its_model() -> None:
    place = Place(for_callers(one_to_one((1,), sequence=Sequences(max_idle_s=7))))
    step = SequenceStep("s", is_start=True)
    entry = place.admission.infer(step_call(step), lambda _: None)
    assert entry.request.sequence == msgspec.structs.replace(step, idle_s=7)


async def test_step_to_a_model_without_sequences_is_a_request_by_itself() -> None:
    place = Place(one_to_one((1,)))
    entry = place.admission.infer(step_call(SequenceStep("s")), lambda _: None)
    assert entry.request.sequence is None


async def test_model_with_sequences_takes_no_jobs() -> None:
    place = Place(for_callers(one_to_one((1,), sequence=Sequences())))
    with pytest.raises(UnsupportedError, match="jobs run in any order"):
        place.admission.checked(step_call())
