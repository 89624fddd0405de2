"""States that the server keeps: gathered for each batch, changed by a run that succeeds, and only
then; whichever instance runs the steps."""

import asyncio
import math
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flambeau.protocol.sequence_spec import Sequences
from flambeau.protocol.signature import Signature, TensorSpec
from flambeau.protocol.tensors import Array
from services.errors import BackendError, QueueFullError, SequenceLostError, WorkerProcessDiedError
from services.inference.scheduling.batch_rules import Batch
from services.inference.scheduling.latency import LatencyModel
from services.inference.scheduling.sequence_slots import SequenceSlots, sequence_rules
from services.inference.scheduling.sequence_worker import SequenceWorker
from services.inference.scheduling.stateful_arrays import arrays_of
from services.queueing.memory_queue import Entry, StepEntry
from services.queueing.records import InferReply, InferRequest, SequenceStep
from services.telemetry.metrics import SEQUENCE_ENDS, Metrics
from tests.fixtures.fake_backends import POISON, DoublingBackend
from tests.fixtures.redis_servers import until
from tests.fixtures.running_worker import LANE, Call, Running, values_of
from tests.fixtures.running_worker import running as running_any

MAX_ROWS = 4


def signature_of(axis: int = 0, **sequence: Any) -> Signature:
    """y = x + total; of a model that also adds up what its controls say."""
    total = [2, 1]
    total.insert(axis, -1)
    controls = {"start": "first", "end": "last", "ready": "on", "id": "who"}
    return Signature(
        inputs=(
            TensorSpec(name="x", datatype="FP32", shape=(-1, 1)),
            TensorSpec(name="total", datatype="FP32", shape=tuple(total), batch_axis=axis),
            TensorSpec(name="first", datatype="BOOL", shape=(-1,)),
            TensorSpec(name="last", datatype="INT32", shape=(-1, 1)),
            TensorSpec(name="on", datatype="FP32", shape=(-1, 1)),
            TensorSpec(name="who", datatype="UINT64", shape=(-1, 1)),
        ),
        outputs=(
            TensorSpec(name="y", datatype="FP32", shape=(-1, 1)),
            TensorSpec(name="after", datatype="FP32", shape=tuple(total), batch_axis=axis),
        ),
        max_batch_size=MAX_ROWS,
        sequence=Sequences.model_validate({"states": {"total": "after"}, **controls, **sequence}),
    )


class SummingBackend(DoublingBackend):
    """`after = total + x`, `y` its first element; records what it was given."""

    def __init__(self, *failures: BaseException, axis: int = 0) -> None:
        super().__init__(*failures)
        self.axis = axis
        self.given: list[dict[str, list[Any]]] = []

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        super().run(inputs)
        x, total = np.asarray(inputs["x"], np.float32), np.asarray(inputs["total"], np.float32)
        total = np.moveaxis(total, self.axis, 0)
        assert total.shape[1:] == (2, 1)
        after = total + x[:, None]
        self.given.append({name: array.ravel().tolist() for name, array in inputs.items()})
        return {
            "y": np.array(after[:, 0]),
            "after": np.ascontiguousarray(np.moveaxis(after, 0, self.axis)),
        }


running = partial(running_any, signature=signature_of())


def step(made: Running, name: object, value: float, control: str = "", **further: Any) -> Call:
    """Sends a step."""
    request = InferRequest(
        request_id=f"{name}-{value}",
        lane=LANE,
        inputs={"x": np.array([[value]], np.float32)},
        rows=1,
        deadline=time.monotonic() + 60,
        sequence=SequenceStep(str(name), "start" in control, "end" in control),
        **further,
    )
    return Call(made.queue, request)


async def behind(made: Running, *calls: tuple[int, float, str]) -> list[Any]:
    """Returns the answers to steps that wait together for the first backend."""
    backend = made.backends[0]
    backend.gate.clear()
    backend.started.clear()
    busy = step(made, 99, 0, "start end")
    await asyncio.to_thread(backend.started.wait)
    waiting = [step(made, *call) for call in calls]
    backend.gate.set()
    await busy.values()
    outcomes = [await call.outcome() for call in waiting]
    return [values_of(one) if isinstance(one, InferReply) else one for one in outcomes]


@pytest.mark.parametrize("strategy", ["oldest", "direct"])
@pytest.mark.parametrize("axis", [0, 1])
async def test_steps_of_several_sequences_share_a_batch_and_no_state(
    axis: int, strategy: str
) -> None:
    backend = SummingBackend(axis=axis)
    async with running(backend, signature=signature_of(axis, strategy=strategy)) as made:
        for name in (1, 2, 3):
            assert await step(made, name, name, "start").values() == [name]
        found = await behind(made, (1, 10, ""), (3, 30, "end"), (2, 20, ""))
        assert found == [[11], [33], [22]]
        assert sorted(backend.given[-1]["x"])[-3:] == [10, 20, 30]
        assert await step(made, 1, 100).values() == [111]
        assert isinstance(await step(made, 3, 1).error(), SequenceLostError)


async def test_answer_has_the_outputs_of_callers_alone() -> None:
    async with running(SummingBackend()) as made:
        outcome = await step(made, 1, 5, "start").outcome()
        assert isinstance(outcome, InferReply)
        assert list(outcome.outputs) == ["y"]
        outcome = await step(made, 1, 5, outputs=["y"]).outcome()
        assert isinstance(outcome, InferReply)
        assert outcome.outputs["y"].tolist() == [[10]]


async def test_controls_say_what_kind_of_step_it_is() -> None:
    backend = SummingBackend()
    async with running(backend) as made:
        await step(made, 2**64 - 1, 0, "start").values()
        await step(made, 2**64 - 1, 0).values()
        await step(made, 2**64 - 1, 0, "end").values()
    kinds = [(one["first"], one["last"], one["on"], one["who"]) for one in backend.given]
    assert kinds == [
        ([True], [0], [1], [2**64 - 1]),
        ([False], [0], [1], [2**64 - 1]),
        ([False], [1], [1], [2**64 - 1]),
    ]


async def test_direct_sequence_keeps_its_row_and_others_are_not_ready() -> None:
    backend = SummingBackend()
    async with running(backend, signature=signature_of(strategy="direct")) as made:
        for name in (1, 2, 3):
            await step(made, name, name, "start").values()
        assert await step(made, 3, 30).values() == [33]
        assert backend.given[-1]["on"] == [0, 0, 1]
        assert backend.given[-1]["who"] == [0, 0, 3]
        assert await step(made, 1, 10, "end").values() == [11]
        await step(made, 4, 4, "start").values()
        assert backend.given[-1]["who"] == [4]
        await step(made, 5, 5, "start").values()
        error = await step(made, 6, 6, "start").error()
        assert isinstance(error, QueueFullError)


async def test_failed_step_changes_no_state_and_its_batch_mates_are_answered() -> None:
    backend = SummingBackend()
    async with running(backend) as made:
        for name in (1, 2):
            await step(made, name, name, "start").values()
        found = await behind(made, (1, 10, ""), (2, POISON, ""))
        assert found[0] == [11]
        assert isinstance(found[1], BackendError)
        assert await step(made, 1, 100).values() == [111]
        assert await step(made, 2, 100).values() == [102]


async def test_states_outlive_their_instance() -> None:
    blocked, reopened, exchanged = (SummingBackend() for _ in range(3))
    async with running(blocked, reopened=[reopened], execution_timeout_s=0.3) as made:
        assert await step(made, 1, 1, "start").values() == [1]
        blocked.gate.clear()
        hanging, following = step(made, 1, 5), step(made, 1, 10)
        assert isinstance(await hanging.error(), BackendError)
        assert await following.values() == [11]
        blocked.gate.set()  # what it gives now comes too late
        assert await step(made, 1, 100).values() == [111]
        made.backends.append(exchanged)
        made.worker.replace_backends([exchanged], lambda: exchanged, {}, 1)
        assert await step(made, 1, 1000).values() == [1111]
        assert exchanged.given


async def test_states_outlive_a_process_that_dies() -> None:
    dying, reopened = SummingBackend(), SummingBackend()
    async with running(dying, reopened=[reopened]) as made:
        assert await step(made, 1, 1, "start").values() == [1]
        dying.failures.append(WorkerProcessDiedError("it died"))
        assert await step(made, 1, 10).values() == [11]
        assert reopened.given


async def test_step_whose_caller_left_changes_no_state() -> None:
    backend = SummingBackend()
    async with running(backend) as made:
        await step(made, 1, 1, "start").values()
        backend.gate.clear()
        backend.started.clear()
        left = step(made, 1, 5)
        await asyncio.to_thread(backend.started.wait)
        left.entry.cancel()
        backend.gate.set()
        assert await step(made, 1, 10).values() == [11]


async def test_state_of_another_shape_is_named() -> None:
    class Wrong(SummingBackend):
        def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
            found = super().run(inputs)
            return {**found, "after": found["after"].astype(np.float64)}

    async with running(Wrong()) as made:
        error = await step(made, 1, 1, "start").error()
        assert "float64 [1, 2, 1] as state 'after'; its signature has FP32 [1, 2, 1]" in str(error)


async def test_idle_sequences_end_without_a_further_step() -> None:
    async with running(SummingBackend(), signature=signature_of(max_idle_s=0.05)) as made:
        worker = made.worker
        assert isinstance(worker, SequenceWorker)
        await step(made, 1, 1, "start").values()
        assert worker.open_sequences == 1
        await until(lambda: not worker.open_sequences)
        assert isinstance(await step(made, 1, 1).error(), SequenceLostError)


def ended(made: Running) -> dict[str, float | None]:
    """Returns the number of sequences that ended, by reason, of those with any."""
    name = "flambeau_ended_sequences_total"
    found = {reason: made.counted(name, reason=reason) for reason in SEQUENCE_ENDS}
    return {reason: count for reason, count in found.items() if count != 0}


async def test_sequences_are_counted_until_they_end_and_by_why() -> None:
    async with running(SummingBackend()) as made:
        assert (made.counted("flambeau_open_sequences"), ended(made)) == (0, {})
        for name, control in ((1, "start"), (2, "start"), (3, "start end"), (1, "start")):
            await step(made, name, 1, control).values()
        assert made.counted("flambeau_open_sequences") == 2
        assert ended(made) == {"ended": 1, "restarted": 1}
    assert made.counted("flambeau_open_sequences") == 0
    assert ended(made) == {"ended": 1, "restarted": 1, "unloaded": 2}


async def test_idle_sequences_are_counted_as_such() -> None:
    async with running(SummingBackend(), signature=signature_of(max_idle_s=0.05)) as made:
        await step(made, 1, 1, "start").values()
        await until(lambda: not made.counted("flambeau_open_sequences"))
        assert ended(made) == {"idle": 1}


STEPS = st.lists(st.tuples(st.integers(1, 5), st.booleans(), st.integers(1, 9)), max_size=30)


@settings(max_examples=40, deadline=None)
@given(STEPS, st.sampled_from(["oldest", "direct"]), st.integers(1, 3), st.booleans())
def test_every_history_sums_up_as_if_each_step_ran_alone(
    steps: list[tuple[int, bool, int]], strategy: str, instances: int, fails: bool
) -> None:
    async def history() -> None:
        backends = [SummingBackend() for _ in range(instances)]
        if fails:
            backends[0].failures.append(ValueError("once"))
        signature = signature_of(1 if fails else 0, strategy=strategy)
        for backend in backends:
            backend.axis = 1 if fails else 0
        async with running(*backends, signature=signature) as made:
            totals: dict[int, float] = {}
            calls: list[tuple[Call, float | None]] = []
            for name, starts, value in steps:
                if starts or name in totals:
                    most = MAX_ROWS * instances if strategy == "direct" else 5
                    if starts and name not in totals and len(totals) >= most:
                        continue
                    totals[name] = (0 if starts else totals[name]) + value
                    expected: float | None = totals[name]
                else:
                    expected = None
                calls.append((step(made, name, value, "start" if starts else ""), expected))
            for call, expected in calls:
                outcome = await call.outcome()
                if fails and isinstance(outcome, BackendError):
                    return  # it ran alone, so its sequence lacks its value
                if expected is None:
                    assert isinstance(outcome, SequenceLostError)
                else:
                    assert isinstance(outcome, InferReply), outcome
                    assert outcome.outputs["y"].tolist() == [[expected]]

    asyncio.run(history())


@pytest.mark.parametrize("axis", [0, 1])
def test_rows_that_fill_up_a_batch_are_not_ready_and_no_step(axis: int) -> None:
    signature = signature_of(axis)
    arrays, rules = arrays_of(LANE, signature, lambda rows: 4), sequence_rules(signature)
    slots = SequenceSlots(LANE, rules, 1, lambda: (), Metrics(""))
    entries: list[Entry] = []
    for name in (5, 6):
        step = SequenceStep(str(name), is_start=True, is_end=True)
        request = InferRequest(
            request_id="r", lane=LANE, inputs={"x": np.full((1, 1), name, np.float32)}, rows=1,
            deadline=math.inf, sequence=step,
        )  # fmt: skip
        entry = StepEntry(request, 0.0, lambda _: None)
        entry.place = slots.bind(step, 0.0)
        entries.append(entry)
    batch = Batch(entries, 2, 4, None, LatencyModel(4).curve((), 1))
    backend = SummingBackend(axis=axis)
    inputs = arrays.join(batch, backend.buffer)
    outputs = backend.run(inputs)
    assert [part["y"].tolist() for part in arrays.split(outputs, batch)] == [[[5]], [[6]]]
    given = backend.given[0]
    assert given["x"] == [5, 6, 6, 6]
    assert (given["on"], given["who"]) == ([1, 1, 0, 0], [5, 6, 0, 0])
    assert (given["first"], given["last"]) == ([True, True, False, False], [1, 1, 0, 0])
