"""The batcher's invariants under any arrivals, cancellations and missed deadlines."""

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flambeau.protocol.signature import Padding
from services.inference.scheduling.batch_rules import Batch, BatchRules
from services.inference.scheduling.batcher import (
    HORIZON_S,
    MAX_BATCH_BYTES,
    PRIORITY_STEP_S,
    Batcher,
    urgency,
)
from services.inference.scheduling.latency import PROBE_EVERY, LatencyModel
from services.queueing.memory_queue import Entry
from services.queueing.records import (
    DEFAULT_PRIORITY,
    HIGHEST_PRIORITY,
    LOWEST_PRIORITY,
    InferRequest,
    Lane,
)

MAX_ROWS = 8
FOREVER_S = 1e6
CNN_MS = {1: 14.0, 4: 44.0, 16: 161.0, 64: 864.0}
"""Measured once on a small machine: most rows a second, 99, at batch 16; 74 at 64."""
LINEAR_S = {1: 0.010, 8: 0.080}
"""A run takes 10 ms a row; 12 ms with the safety margin."""


def rules(
    max_rows: int = MAX_ROWS,
    preferred_rows: tuple[int, ...] = (),
    wait_s: float = 0.0,
    padding: Padding | None = None,
) -> BatchRules:
    return BatchRules(
        max_rows=max_rows,
        preferred_rows=preferred_rows,
        wait_s=wait_s,
        padding=padding,
        shapes_vary=True,
    )


def batcher(
    given_rules: BatchRules | None = None, seeds_s: Mapping[int, float] | None = None
) -> Batcher:
    chosen = given_rules or rules()
    return Batcher(chosen, LatencyModel(chosen.max_rows, seeds_s))


def entry(
    number: int,
    rows: int = 1,
    *,
    at: float = 0.0,
    deadline: float = FOREVER_S,
    priority: int = DEFAULT_PRIORITY,
    width: int = 1,
    length: int | None = None,
    alone: bool = False,
    **more_inputs: int,
) -> Entry:
    """Returns one request with an input `x` [rows, width], and others of the given widths."""
    widths = {"x": length or width, **more_inputs}
    request = InferRequest(
        request_id=str(number),
        lane=Lane("m", 1),
        inputs={name: np.zeros((rows, w), np.float32) for name, w in widths.items()},
        rows=rows,
        deadline=deadline,
        priority=priority,
        length=length,
        alone=alone,
    )
    return Entry(request, at, lambda _: None)


def filled(made: Batcher, *entries: Entry) -> Batcher:
    for one in entries:
        made.add(one)
    return made


def ids(entries: Sequence[Entry]) -> list[int]:
    return [int(e.request.request_id) for e in entries]


def drained(made: Batcher, now: float = 0.0) -> list[Batch]:
    batches = []
    while batch := made.next_batch(now):
        batches.append(batch)
    assert (made.waiting, made.rows) == (0, 0)
    return batches


def numbers(batches: Sequence[Batch]) -> list[list[int]]:
    return [ids(batch.entries) for batch in batches]


@pytest.mark.parametrize("shapes_vary", [True, False])
def test_what_must_run_alone_shares_no_batch_and_can_be_removed(shapes_vary: bool) -> None:
    made = batcher(BatchRules(max_rows=MAX_ROWS, shapes_vary=shapes_vary))
    suspect, other = entry(2, alone=True), entry(4, alone=True)
    filled(made, entry(1), suspect, entry(3), other)
    assert made.remove(other)
    assert not made.remove(other)
    assert sorted(numbers(drained(made))) == [[1, 3], [2]]


def test_a_batch_that_may_wait_is_no_longer_than_it_may_take() -> None:
    made = filled(batcher(seeds_s=LINEAR_S), *(entry(n) for n in range(8)))
    batch = made.next_batch(0.0, within_s=0.05)  # 12 ms a row, with caution
    assert batch is not None
    assert 1 <= batch.rows <= 4
    assert made.next_batch(0.0, within_s=0.005) is None
    assert made.waiting == 8 - batch.rows


def test_a_request_of_many_rows_that_may_wait_is_as_long_as_all_of_them() -> None:
    made = filled(batcher(seeds_s=LINEAR_S), entry(0, rows=4))
    assert made.next_batch(0.0, within_s=0.03) is None
    assert made.next_batch(0.0, within_s=0.06) is not None


SEEDS = st.sampled_from(
    [{}, {1: 0.1}, {1: 0.1, 4: 0.2, 8: 0.9}, {1: 0.5, 8: 0.5}, {1: 0.2, 4: 0.6, 8: 0.3}]
)
ARRIVALS = st.lists(
    st.tuples(
        st.integers(1, MAX_ROWS),  # rows
        st.integers(1, 3),  # width: which requests may share a batch
        st.floats(0.0, 4.0),  # time to the deadline
        st.integers(HIGHEST_PRIORITY, LOWEST_PRIORITY),
        st.sampled_from(["stays", "stays", "dies", "is removed"]),
        st.floats(0.0, 0.5),  # seconds until the next arrival
        st.booleans(),  # whether a batch is taken right after this arrival
    ),
    max_size=40,
)
Arrivals = list[tuple[int, int, float, int, str, float, bool]]


@given(ARRIVALS, SEEDS)
def test_whatever_happens_the_laws_hold(arrivals: Arrivals, seeds_s: dict[int, float]) -> None:
    made, now = batcher(seeds_s=seeds_s), 0.0
    expected = LatencyModel(MAX_ROWS, seeds_s)
    waiting: dict[int, Entry] = {}
    gone: list[int] = []

    def take() -> bool:
        batch = made.next_batch(now)
        for hopeless in made.take_hopeless():
            width = hopeless.request.inputs["x"].shape[1]
            curve = expected.curve(width, width)
            assert now + curve.expected_s(hopeless.request.rows) > hopeless.request.deadline
            del waiting[ids([hopeless])[0]]
        if batch is None:
            return False
        check_batch(batch, list(waiting.values()), now)
        for number in ids(batch.entries):
            del waiting[number]
        return True

    for number, (rows_, width, slack_s, priority, fate, pause_s, takes) in enumerate(arrivals):
        one = entry(number, rows_, at=now, deadline=now + slack_s, priority=priority, width=width)
        made.add(one)
        if fate == "dies":
            one.cancel()
            gone.append(number)
        elif fate == "is removed":
            assert made.remove(one)
            assert not made.remove(one)
        else:
            waiting[number] = one
        if takes:
            take()
        now += pause_s
    while take():
        pass
    assert not waiting, "an entry was neither run nor handed back"
    assert (made.waiting, made.rows) == (0, 0)
    assert made.ready_at(now) is None


def check_batch(batch: Batch, waiting: list[Entry], now: float) -> None:
    """The laws of one batch, given the live entries that waited for it."""
    entries = batch.entries
    assert not any(one.dead for one in entries)
    assert batch.rows == sum(one.request.rows for one in entries) <= MAX_ROWS
    assert len({one.request.inputs["x"].shape[1] for one in entries}) == 1
    assert len(entries) == 1 or batch.rows <= batch.curve.best_rows
    # The most urgent of all is in it, and in its group nobody was overtaken.
    assert entries[0].order == min(one.order for one in waiting)
    width = entries[0].request.inputs["x"].shape[1]
    behind = [
        one for one in waiting if one not in entries and one.request.inputs["x"].shape[1] == width
    ]
    assert all(one.order >= entries[-1].order for one in behind)
    # It ends before the earliest deadline.
    takes_s = batch.curve.cautious_s if len(entries) > 1 else batch.curve.expected_s
    assert now + takes_s(batch.padded_rows) <= min(one.request.deadline for one in entries)


@given(
    st.floats(0, 1000), st.floats(0, 1e6), st.integers(1, 10),
    st.floats(0, 1000), st.floats(0, 1e6), st.integers(1, 10),
)  # fmt: skip
def test_nothing_is_overtaken_by_what_arrives_much_later(
    first_at: float, first_slack_s: float, first_priority: int,
    gap_s: float, second_slack_s: float, second_priority: int,
) -> None:  # fmt: skip
    much_later = first_at + HORIZON_S + 9 * PRIORITY_STEP_S + gap_s
    first = entry(1, deadline=first_at + first_slack_s, priority=first_priority)
    second = entry(2, deadline=much_later + second_slack_s, priority=second_priority)
    assert urgency(first.request, first_at) <= urgency(second.request, much_later)


def test_an_idle_batcher_gives_nothing() -> None:
    made = batcher()
    assert made.next_batch(0.0) is None
    assert made.ready_at(0.0) is None
    assert not made.remove(entry(0))


def test_what_is_there_goes_together_up_to_the_maximum() -> None:
    made = filled(batcher(), *(entry(n) for n in range(10)))
    assert numbers(drained(made)) == [[*range(8)], [8, 9]]


def test_inputs_that_are_joined_take_no_more_than_a_large_request() -> None:
    width = MAX_BATCH_BYTES // 4 // 3
    made = filled(batcher(), *(entry(number, width=width) for number in range(4)))
    assert [len(batch.entries) for batch in drained(made)] == [3, 1]
    made = filled(batcher(), *(entry(number, width=4 * width) for number in range(2)))
    assert [len(batch.entries) for batch in drained(made)] == [1, 1], "a larger one runs alone"


def test_the_earliest_deadline_goes_first() -> None:
    made = filled(batcher(rules(max_rows=1)), *(entry(n, deadline=9.0 - n) for n in range(4)))
    assert numbers(drained(made)) == [[3], [2], [1], [0]]


def test_deadlines_beyond_the_horizon_are_all_alike() -> None:
    made = filled(
        batcher(rules(max_rows=1)),
        entry(0, at=0.0, deadline=FOREVER_S),
        entry(1, at=0.1, deadline=2 * HORIZON_S),
        entry(2, at=0.2, deadline=0.2 + HORIZON_S / 2),
    )
    assert numbers(drained(made)) == [[2], [0], [1]]


def test_priorities_go_first_but_not_for_ever() -> None:
    patient = 0.5 + (LOWEST_PRIORITY - HIGHEST_PRIORITY) * PRIORITY_STEP_S
    made = filled(
        batcher(rules(max_rows=1)),
        entry(0, at=0.0, priority=LOWEST_PRIORITY),
        entry(1, at=0.0, priority=DEFAULT_PRIORITY),
        entry(2, at=patient - 1.0, priority=HIGHEST_PRIORITY),
        entry(3, at=patient, priority=HIGHEST_PRIORITY),
    )
    assert numbers(drained(made)) == [[1], [2], [0], [3]]


def test_equals_go_in_the_order_they_came() -> None:
    made = filled(batcher(rules(max_rows=2)), *(entry(n) for n in range(5)))
    assert numbers(drained(made)) == [[0, 1], [2, 3], [4]]


def test_a_large_request_is_not_overtaken_by_later_small_ones() -> None:
    made = filled(batcher(), entry(0, 5), entry(1, 6), entry(2, 1))
    assert numbers(drained(made)) == [[0], [1, 2]]


def test_other_shapes_wait_without_blocking_those_behind_them() -> None:
    made = filled(batcher(), entry(0, width=1), entry(1, width=2), entry(2, width=1))
    assert numbers(drained(made)) == [[0, 2], [1]]


def test_requests_that_give_other_inputs_do_not_share_a_batch() -> None:
    made = filled(batcher(), entry(0), entry(1, extra=1), entry(2))
    assert numbers(drained(made)) == [[0, 2], [1]]


PADDING = Padding(inputs={"x": 1}, buckets=(4, 8, 16), mask="mask")


@pytest.mark.parametrize(
    ("lengths", "batches", "padded_to"),
    [
        ([1, 4, 3], [[0, 1, 2]], [4]),
        ([3, 2], [[0, 1]], [3]),
        ([4, 5, 2, 8], [[0, 2], [1, 3]], [4, 8]),
        ([16, 9, 8], [[0, 1], [2]], [16, 8]),
    ],
)
@pytest.mark.parametrize("static", [False, True])
def test_lengths_of_one_bucket_share_a_batch_padded_to_the_longest_or_to_the_bucket(
    lengths: list[int], batches: list[list[int]], padded_to: list[int], static: bool
) -> None:
    padding = PADDING.model_copy(update={"static": static})
    made = batcher(rules(padding=padding))
    for n, length in enumerate(lengths):
        made.add(entry(n, length=length))
    found = drained(made)
    assert numbers(found) == batches
    buckets = [padding.bucket_of(length) for length in padded_to]
    assert [batch.length for batch in found] == (buckets if static else padded_to)


def test_whether_a_mask_was_given_separates_nobody() -> None:
    made = filled(batcher(rules(padding=PADDING)), entry(0, length=3), entry(1, length=4, mask=4))
    assert numbers(drained(made)) == [[0, 1]]


@pytest.mark.parametrize(("rows", "padded"), [(1, 2), (2, 2), (3, 6), (6, 6), (7, 7), (8, 8)])
def test_a_batch_is_padded_up_to_a_preferred_size(rows: int, padded: int) -> None:
    made = filled(batcher(rules(preferred_rows=(2, 6))), entry(0, rows))
    (batch,) = drained(made)
    assert (batch.rows, batch.padded_rows) == (rows, padded)


def test_an_entry_alone_keeps_its_own_length_unless_shapes_are_static() -> None:
    for static, length in ((False, 3), (True, 8)):
        chosen = rules(preferred_rows=(4,), padding=PADDING.model_copy(update={"static": static}))
        batch = Batch([], 5, 8, 8, LatencyModel(8).curve("any", 1))
        alone = chosen.alone(entry(7, 2, length=3), batch)
        assert ids(alone.entries) == [7]
        assert (alone.rows, alone.padded_rows, alone.length) == (2, 4, length)


def test_no_batch_grows_past_the_size_with_the_most_rows_a_second() -> None:
    seeds_s = {rows: ms / 1000 for rows, ms in CNN_MS.items()}
    made = filled(batcher(rules(max_rows=64), seeds_s), *(entry(n) for n in range(40)))
    assert [batch.rows for batch in drained(made)] == [16, 16, 8]


def test_a_request_larger_than_the_best_size_runs_alone() -> None:
    seeds_s = {rows: ms / 1000 for rows, ms in CNN_MS.items()}
    made = filled(batcher(rules(max_rows=64), seeds_s), entry(0, 40), entry(1), entry(2, 40))
    assert numbers(drained(made)) == [[0], [1], [2]]


def test_a_size_beside_the_best_is_tried_when_it_is_due() -> None:
    seeds_s = {size: ms / 1000 for size, ms in CNN_MS.items()}
    chosen, latency = rules(max_rows=64), LatencyModel(64, seeds_s)
    made = filled(Batcher(chosen, latency), *(entry(n) for n in range(64)))
    latency.curve((("x", (1,)),), 1).runs = PROBE_EVERY
    assert [batch.rows for batch in drained(made)] == [32, 16, 16]


def test_a_batch_stops_growing_where_its_earliest_deadline_would_be_missed() -> None:
    # A run takes 10 ms a row, and 20 % are added for caution.
    entries = [entry(0, deadline=0.050), *(entry(n) for n in range(1, 8))]
    made = filled(batcher(seeds_s=LINEAR_S), *entries)
    assert numbers(drained(made)) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_a_deadline_counts_even_where_a_smaller_batch_is_thought_to_take_longer() -> None:
    # So it is with what was learned of sizes that seldom run: 8 rows take 10 ms, 4 rows 20 ms.
    entries = [entry(0, 2, deadline=0.022), entry(1, 2), entry(2, 4)]
    made = filled(batcher(seeds_s={1: 0.009, 2: 0.009, 4: 0.020, 8: 0.010}), *entries)
    assert numbers(drained(made)) == [[0], [1, 2]]


def test_what_preferred_sizes_add_counts_against_the_deadline() -> None:
    entries = [entry(0, deadline=0.050), entry(1), entry(2)]
    made = filled(batcher(rules(preferred_rows=(2, 8)), LINEAR_S), *entries)
    assert numbers(drained(made)) == [[0, 1], [2]]


def test_what_cannot_make_its_deadline_any_more_is_handed_back_and_not_run() -> None:
    made = batcher(seeds_s=LINEAR_S)
    filled(made, entry(0, deadline=0.029), entry(1, deadline=0.031), entry(2))
    assert made.take_hopeless() == []
    assert numbers(drained(made, now=0.020)) == [[1], [2]]
    assert ids(made.take_hopeless()) == [0]
    assert made.take_hopeless() == []


def test_before_anything_is_known_only_passed_deadlines_are_hopeless() -> None:
    made = filled(batcher(), entry(0, deadline=1.0), entry(1, deadline=0.9))
    assert numbers(drained(made, now=0.95)) == [[0]]
    assert ids(made.take_hopeless()) == [1]


def test_the_dead_are_dropped_without_being_handed_back() -> None:
    first, second = entry(0), entry(1)
    made = filled(batcher(), first, second)
    first.cancel()
    assert numbers(drained(made)) == [[1]]
    assert made.take_hopeless() == []


def test_of_equals_the_right_one_is_removed() -> None:
    entries = [entry(n) for n in range(4)]
    made = filled(batcher(), *entries)
    assert made.remove(entries[2])
    assert not made.remove(entries[2])
    assert not made.remove(entry(9))
    assert numbers(drained(made)) == [[0, 1, 3]]


def test_the_first_entry_waits_for_company_and_no_longer() -> None:
    made = filled(batcher(rules(wait_s=0.5)), entry(0, at=1.0), entry(1, at=1.2))
    assert made.ready_at(1.2) == 1.5
    assert made.next_batch(1.49) is None
    assert numbers(drained(made, now=1.5)) == [[0, 1]]


def test_a_full_batch_waits_for_nothing() -> None:
    made = filled(batcher(rules(wait_s=0.5)), *(entry(n) for n in range(MAX_ROWS)))
    assert made.ready_at(0.1) == 0.1
    assert len(drained(made, now=0.1)) == 1


def test_half_of_what_the_run_leaves_of_a_deadline_ends_the_wait_for_company() -> None:
    made = batcher(rules(wait_s=0.5), {1: 0.100, 8: 0.100})
    filled(made, entry(0, deadline=0.300), entry(1, at=0.05))
    assert made.ready_at(0.05) == pytest.approx((0.300 - 0.120) / 2)
    assert made.next_batch(0.05) is None
    assert numbers(drained(made, now=0.09)) == [[0, 1]]


def test_a_group_that_is_ready_does_not_wait_for_one_that_is_not() -> None:
    made = batcher(rules(max_rows=2, wait_s=0.5))
    filled(made, entry(0, width=1), entry(1, width=2, at=0.1), entry(2, width=2, at=0.1))
    assert numbers([batch for batch in [made.next_batch(0.1)] if batch]) == [[1, 2]]
    assert made.next_batch(0.1) is None
    assert made.ready_at(0.1) == 0.5


def test_what_waits_ahead_counts_until_a_new_request_would_be_done() -> None:
    made = filled(batcher(seeds_s=LINEAR_S), *(entry(n) for n in range(16)))
    assert made.finish_s(entry(99).request, 0.0) == pytest.approx(0.192 + 0.096)
    assert made.finish_s(entry(99).request, 0.0, runs_at_once=2) == pytest.approx(0.096 + 0.096)
    # What is less urgent does not stand ahead.
    assert made.finish_s(entry(99, deadline=1.0).request, 0.0) == pytest.approx(0.096)


@pytest.mark.parametrize(
    ("deadline", "rows"), [(0.2, 8), (0.1, 4), (0.05, 2), (0.04, 1), (0.001, 1)]
)
def test_a_request_is_judged_with_as_much_company_as_half_its_time_leaves_room_for(
    deadline: float, rows: int
) -> None:
    asked = entry(0, deadline=deadline).request
    assert batcher(seeds_s=LINEAR_S).finish_s(asked, 0.0) == pytest.approx(0.012 * rows)


@given(st.lists(st.integers(1, MAX_ROWS), max_size=20), st.integers(1, MAX_ROWS))
def test_a_request_takes_the_time_of_all_ahead_and_of_its_batch(
    ahead: list[int], rows: int
) -> None:
    made = filled(batcher(seeds_s=LINEAR_S), *(entry(n, r) for n, r in enumerate(ahead)))
    found = made.finish_s(entry(99, rows).request, 0.0)
    assert 0.012 * (sum(ahead) + rows) <= found + 1e-9
    assert found <= 0.012 * (sum(ahead) + MAX_ROWS) + 1e-9


@pytest.mark.parametrize("varies", [False, True])
def test_a_deadline_that_is_far_is_one_that_would_be_made(varies: bool) -> None:
    chosen = BatchRules(max_rows=MAX_ROWS, shapes_vary=varies)
    made = batcher(chosen, {1: 0.5, 8: 0.6})
    filled(made, *(entry(n) for n in range(50)))
    request = entry(99).request
    need_s = made.finish_s(request, 0.0)
    assert [made.is_far(request, n * need_s) for n in (1, 1.5, 8)] == [False, False, True]


def test_a_batch_that_runs_makes_deadlines_behind_it_nearer() -> None:
    made = filled(batcher(rules(), LINEAR_S), *(entry(n) for n in range(8)))
    request = entry(99).request
    assert made.next_batch(0.0) is not None
    assert not made.is_far(request, 1.6)
    assert made.is_far(request, 1.7)


def test_doubt_makes_a_refused_request_look_shorter() -> None:
    made, refused = batcher(seeds_s={1: 1.0, 8: 8.0}), entry(0, deadline=1.1).request
    before_s = made.finish_s(refused, 0.0)
    made.decay_estimate(refused)
    assert made.finish_s(refused, 0.0) == pytest.approx(0.9 * before_s)
