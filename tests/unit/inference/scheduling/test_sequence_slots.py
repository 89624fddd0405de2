"""The table of open sequences: places, limits and idle ends, in every history."""

import math
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flambeau.protocol.signature import Signature, TensorSpec
from services.errors import InvalidRequestError, QueueFullError, SequenceLostError
from services.inference.scheduling.sequence_slots import (
    ENDED_AT_ONCE,
    FREED_AT_ONCE_BYTES,
    OpenSequence,
    SequenceSlots,
    initial_row,
    sequence_rules,
)
from services.queueing.records import InferRequest, SequenceStep
from services.telemetry.metrics import Metrics
from tests.fixtures.running_worker import LANE
from tests.fixtures.signatures import one_to_one

START = SequenceStep("", is_start=True)


@dataclass(frozen=True)
class Ran:
    """An entry that was run."""

    request: InferRequest


def request_of(step: SequenceStep) -> InferRequest:
    return InferRequest(
        request_id="r", lane=LANE, inputs={}, rows=1, deadline=1e9, sequence=step
    )  # fmt: skip


def slots(count: int = 2, *, rows: int = 8, **sequence: Any) -> SequenceSlots:
    """The table of a model that keeps its state itself."""
    rules = sequence_rules(one_to_one((1,), rows=rows, sequence=sequence))
    return SequenceSlots(LANE, rules, count, lambda: range(count), Metrics(""))


def with_state(count: int = 2, *, rows: int = 8, size: int = 1, **sequence: Any) -> SequenceSlots:
    """The table of a model whose state the server keeps."""
    row = [
        TensorSpec(name=name, datatype="FP32", shape=(-1, size))
        for name in ("x", "h", "y", "h_out")
    ]
    signature = Signature.model_validate(
        {
            "inputs": row[:2],
            "outputs": row[2:],
            "max_batch_size": rows,
            "sequence": {"states": {"h": "h_out"}, **sequence},
        }
    )
    return SequenceSlots(LANE, sequence_rules(signature), count, lambda: range(count), Metrics(""))


def begin(table: SequenceSlots, name: str, now: float = 0.0) -> OpenSequence:
    found = table.bind(msgspec.structs.replace(START, id=name), now)
    found.under_way = False
    return found


def go_on(table: SequenceSlots, name: str, now: float = 0.0) -> OpenSequence:
    found = table.bind(SequenceStep(name), now)
    found.under_way = False
    return found


def end(table: SequenceSlots, name: str, now: float = 0.0) -> None:
    step = SequenceStep(name, is_end=True)
    table.bind(step, now)
    table.ran([Ran(request_of(step))], now)  # type: ignore[list-item]


def test_sequences_of_a_model_that_keeps_its_state_are_spread_over_the_instances() -> None:
    table = slots(3)
    assert sorted(begin(table, str(n)).slot or 0 for n in range(9)) == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_sequences_whose_state_the_server_keeps_are_bound_to_no_instance() -> None:
    table = with_state()
    assert begin(table, "a").slot is None
    assert not table.lose(0)
    assert not table.begin_anew(1)
    assert go_on(table, "a").slot is None


def test_direct_sequences_have_rows_of_their_own_and_leave_them() -> None:
    table = with_state(2, rows=2, strategy="direct")
    found = [begin(table, name) for name in "abcd"]
    assert {(one.slot, one.row) for one in found} == {(0, 0), (0, 1), (1, 0), (1, 1)}
    with pytest.raises(QueueFullError, match="4 sequences of model"):
        begin(table, "e")
    end(table, "b")
    assert (begin(table, "e").slot, begin(table, "e").row) == (found[1].slot, found[1].row)


def test_idle_sequence_ends_and_makes_room() -> None:
    table = slots(max_sequences=2, max_idle_s=60)
    for n, name in enumerate("ab"):
        begin(table, name, float(n))
    with pytest.raises(QueueFullError, match="2 sequences"):
        begin(table, "c", 2.0)
    go_on(table, "a", 10.0)
    begin(table, "c", 62.0)
    with pytest.raises(SequenceLostError, match="had no step for 60 s"):
        go_on(table, "b", 62.0)
    go_on(table, "a", 62.0)


def test_sequence_with_a_step_under_way_is_not_idle() -> None:
    table = slots(max_idle_s=5)
    found = table.bind(msgspec.structs.replace(START, id="a"), 0.0)
    assert table.forget_over(100.0) == 105.0
    found.under_way = False
    assert table.forget_over(104.0) == 105.0
    assert table.forget_over(106.0) is None


def test_sequence_is_idle_from_the_end_of_its_run() -> None:
    table, step = slots(max_idle_s=5), msgspec.structs.replace(START, id="a")
    table.bind(step, 0.0)
    table.ran([Ran(request_of(step))], 10.0)  # type: ignore[list-item]
    go_on(table, "a", 14.0)
    with pytest.raises(SequenceLostError, match="had no step for 5 s"):
        go_on(table, "a", 20.0)


def test_a_step_that_may_start_begins_a_sequence_that_is_not_open() -> None:
    table, step = slots(max_idle_s=5), SequenceStep("a", may_start=True)
    first = table.bind(step, 0.0)
    assert table.bind(step, 4.0) is first
    assert table.bind(step, 9.5) is not first
    assert len(table) == 1
    with pytest.raises(SequenceLostError):
        go_on(table, "b")


def test_a_sequence_in_use_ends_with_its_lifetime() -> None:
    table = slots(max_idle_s=5, max_lifetime_s=8)
    begin(table, "a", 0.0)
    begin(table, "b", 1.0)
    go_on(table, "a", 4.0)
    go_on(table, "a", 7.5)
    assert table.forget_over(7.9) == 8.0
    assert len(table) == 1
    with pytest.raises(SequenceLostError, match="has lasted 8 s"):
        go_on(table, "a", 8.0)
    first = table.bind(SequenceStep("a", may_start=True), 8.0)
    assert first.ends_at == 16.0
    assert table.bind(SequenceStep("a", may_start=True), 12.0) is first


def test_a_step_under_way_is_the_last_one_of_a_lifetime() -> None:
    table, step = slots(max_lifetime_s=8), msgspec.structs.replace(START, id="a")
    table.bind(step, 0.0)
    assert table.forget_over(9.0) == 69.0
    assert len(table) == 1
    table.ran([Ran(request_of(step))], 10.0)  # type: ignore[list-item]
    assert len(table) == 0


def test_sequences_whose_lifetime_is_over_make_room() -> None:
    table = slots(max_sequences=2, max_lifetime_s=8)
    begin(table, "a", 0.0)
    begin(table, "b", 1.0)
    table.lose(0)
    begin(table, "c", 2.0)
    begin(table, "d", 9.0)
    assert len(table) == 2


def test_many_idle_sequences_end_some_at_a_time() -> None:
    table = slots(max_idle_s=5)
    for n in range(ENDED_AT_ONCE + 1):
        begin(table, str(n))
    assert table.forget_over(6.0) == 6.0
    assert len(table) == 1
    assert table.forget_over(6.0) is None


def test_large_states_are_freed_some_at_a_time() -> None:
    table = with_state(size=FREED_AT_ONCE_BYTES // 8, max_idle_s=5)
    for n in range(5):
        begin(table, str(n))
    assert table.forget_over(6.0) == 6.0
    assert len(table) == 3
    table.end_all("unloaded")
    assert len(table) == 0
    assert [table.free(), table.free()] == [True, False]


def test_idle_sequences_make_room_although_the_oldest_has_a_step_under_way() -> None:
    table = slots(max_sequences=2, max_idle_s=5)
    table.bind(msgspec.structs.replace(START, id="a"), 0.0)
    begin(table, "b")
    begin(table, "c", 6.0)
    assert len(table) == 2


def test_states_of_all_sequences_have_a_limit_of_bytes() -> None:
    table = with_state(size=2**24)
    for n in range(8):
        begin(table, str(n))
    with pytest.raises(QueueFullError, match="8 sequences"):
        begin(table, "9")


def test_sequence_that_begins_anew_has_the_initial_state() -> None:
    table = with_state()
    begin(table, "a").states = (np.ones((1, 1), np.float32),)
    assert go_on(table, "a").states[0].tolist() == [[1]]
    assert begin(table, "a").states[0].tolist() == [[0]]


@pytest.mark.parametrize("name", ["abc", "-1", "4294967296", "٣", "1.0", ""])
def test_id_that_the_model_cannot_take(name: str) -> None:
    inputs = [
        TensorSpec(name="x", datatype="FP32", shape=(-1,)),
        TensorSpec(name="id", datatype="UINT32", shape=(-1,)),
    ]
    signature = Signature.model_validate(
        {"inputs": inputs, "outputs": inputs[:1], "max_batch_size": 2, "sequence": {"id": "id"}}
    )
    table = SequenceSlots(LANE, sequence_rules(signature), 1, lambda: (), Metrics(""))
    begin(table, "4294967295")
    with pytest.raises(InvalidRequestError, match="numbers up to 4294967295 as ids"):
        begin(table, name)


@pytest.mark.parametrize(
    ("datatype", "initial", "row"),
    [
        ("FP32", 0.5, [[0.5] * 2] * 3),
        ("INT64", [1, 2, 3, 4, 5, 6], [[1, 2], [3, 4], [5, 6]]),
        ("BOOL", True, [[True] * 2] * 3),
        ("BF16", 1.0, [[0x3F80] * 2] * 3),
    ],
)
def test_initial_values(datatype: str, initial: object, row: list[list[float]]) -> None:
    spec = TensorSpec(name="h", datatype=datatype, shape=(3, -1, 2), batch_axis=1)
    assert initial_row(spec, initial).squeeze(1).tolist() == row


EVENTS = st.lists(
    st.tuples(
        st.sampled_from("abcdef"),
        st.sampled_from(["start", "step", "end", "lose", "wait"]),
        st.floats(0, 4),
    ),
    max_size=60,
)


@settings(max_examples=300)
@given(
    EVENTS, st.sampled_from(["oldest", "direct"]), st.booleans(), st.integers(1, 3),
    st.integers(1, 4), st.sampled_from([None, 2, 7]),
)  # fmt: skip
def test_every_history(
    events: list[tuple[str, str, float]], strategy: str, has_state: bool, count: int, rows: int,
    lifetime: float | None,
) -> None:  # fmt: skip
    """Against a model of the rules: who is open, and where."""
    make = with_state if has_state else slots
    rules: dict[str, Any] = {"strategy": strategy, "max_idle_s": 3, "max_sequences": 5}
    table = make(count, rows=rows, max_lifetime_s=lifetime, **rules)
    most = min(5, count * rows) if strategy == "direct" else 5
    model: dict[str, tuple[int | None, int]] = {}
    used: dict[str, float] = {}
    begun: dict[str, float] = {}
    most_s = math.inf if lifetime is None else lifetime
    now = 0.0
    for name, event, pause in events:
        now += pause
        if event == "wait":
            continue
        if event == "lose":
            slot = ord(name) % count
            if table.lose(slot):
                model = {one: place for one, place in model.items() if place[0] != slot}
            continue
        over = {one for one in model if now - used[one] > 3 or now >= begun[one] + most_s}
        model = {one: place for one, place in model.items() if one not in over}
        if event == "start":
            model.pop(name, None)
            if len(model) >= most:
                with pytest.raises(QueueFullError):
                    begin(table, name, now)
                continue
            found = begin(table, name, now)
            model[name] = found.slot, found.row
            begun[name] = now
        elif name not in model:
            with pytest.raises(SequenceLostError, match=f"'{name}'"):
                go_on(table, name, now)
            continue
        else:
            found = go_on(table, name, now)
            assert (found.slot, found.row) == model[name]
            if event == "end":
                end(table, name, now)
                del model[name]
        used[name] = now
        places = [place for place in model.values() if place[1] >= 0]
        assert len(set(places)) == len(places), "two sequences have one row"
        assert all(place[1] < rows for place in places)
        assert (strategy == "direct") == bool(places) or not model
        table.forget_over(now)
        assert len(table) == len(model)
