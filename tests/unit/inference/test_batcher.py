"""The batcher's laws, whatever arrives, dies or expires."""

import asyncio
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.inference.batcher import Batcher
from services.queueing.memory_queue import Entry
from services.queueing.records import InferReply, InferRequest, Lane

LANE = Lane("m", 1)
MAX_ROWS = 8


@pytest.fixture(scope="module", autouse=True)
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """Futures need a loop to belong to, though it never runs here."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield loop
    asyncio.set_event_loop(None)
    loop.close()


def entry(number: int, rows: int = 1, width: int = 2, deadline: float = 100.0) -> Entry:
    request = InferRequest(
        request_id=str(number),
        lane=LANE,
        inputs={"x": np.zeros((rows, width), np.float32)},
        rows=rows,
        deadline=deadline,
    )
    return Entry(request, asyncio.get_event_loop().create_future(), 0.0)


def ids(batch: list[Entry]) -> list[int]:
    return [int(e.request.request_id) for e in batch]


def drain(batcher: Batcher) -> list[list[Entry]]:
    batches = []
    while batch := batcher.next_batch():
        batches.append(batch)
    return batches


arrivals = st.lists(
    st.tuples(
        st.integers(1, MAX_ROWS),  # rows
        st.integers(1, 3),  # width: which requests may share a batch
        st.sampled_from(["alive", "dead", "expired"]),
        st.booleans(),  # whether a batch is taken right after this arrival
    ),
    max_size=40,
)


@given(arrivals)
def test_every_live_entry_is_batched_once_in_order_and_no_dead_one_ever(
    steps: list[tuple[int, int, str, bool]],
) -> None:
    batcher = Batcher(MAX_ROWS)
    batches: list[list[Entry]] = []
    expired: list[Entry] = []
    for number, (rows, width, state, take) in enumerate(steps):
        added = entry(number, rows, width, deadline=0.5 if state == "expired" else 100.0)
        if state == "dead":
            added.waiter.cancel()
        batcher.add([added])
        expired += batcher.take_expired(now=1.0)
        if take and (batch := batcher.next_batch()):
            batches.append(batch)
    batches += drain(batcher)

    alive = [n for n, (_, _, state, _) in enumerate(steps) if state == "alive"]
    assert sorted(n for batch in batches for n in ids(batch)) == alive
    assert ids(expired) == [n for n, (_, _, state, _) in enumerate(steps) if state == "expired"]
    for batch in batches:
        assert ids(batch) == sorted(ids(batch))
        assert sum(e.request.rows for e in batch) <= MAX_ROWS
        assert len({e.request.inputs["x"].shape[1] for e in batch}) == 1


@given(arrivals)
def test_the_oldest_entry_is_always_in_the_next_batch(
    steps: list[tuple[int, int, str, bool]],
) -> None:
    batcher = Batcher(MAX_ROWS)
    entries = [entry(n, rows, width) for n, (rows, width, _, _) in enumerate(steps)]
    batcher.add(entries)
    waiting = set(range(len(entries)))
    while batch := batcher.next_batch():
        assert ids(batch)[0] == min(waiting)
        waiting -= set(ids(batch))
    assert not waiting


def test_an_idle_batcher_gives_nothing() -> None:
    assert Batcher(MAX_ROWS).next_batch() == []


def test_what_is_there_goes_together_up_to_the_maximum() -> None:
    batcher = Batcher(MAX_ROWS)
    batcher.add([entry(n) for n in range(10)])
    assert [ids(b) for b in drain(batcher)] == [[*range(8)], [8, 9]]


def test_a_large_request_is_not_overtaken_by_later_small_ones() -> None:
    batcher = Batcher(MAX_ROWS)
    batcher.add([entry(0, rows=5), entry(1, rows=6), entry(2, rows=1)])
    assert [ids(b) for b in drain(batcher)] == [[0], [1, 2]]


def test_other_shapes_wait_without_blocking_those_behind_them() -> None:
    batcher = Batcher(MAX_ROWS)
    batcher.add([entry(0, width=1), entry(1, width=2), entry(2, width=1)])
    assert [ids(b) for b in drain(batcher)] == [[0, 2], [1]]


def test_an_answered_entry_is_dropped() -> None:
    batcher = Batcher(MAX_ROWS)
    answered = entry(0)
    answered.reply(InferReply(outputs={}, batch_rows=1, queue_s=0, execution_s=0))
    batcher.add([answered, entry(1)])
    assert batcher.take_expired(now=0.0) == []
    assert ids(batcher.next_batch()) == [1]
