"""Turns on a device: fair by measured time, and no idle slot while a lane waits."""

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.inference.scheduling.device_turns import DeviceTurns


class FakeLane:
    """A lane with batches to run, each with the expected duration."""

    def __init__(self, name: str, takes_s: float, batches: int = 1000, jobs: int = 0) -> None:
        self.name, self.takes_s, self.batches, self.jobs = name, takes_s, batches, jobs
        self.started = 0
        self.running = 0
        self.ends_at = 0.0

    @property
    def waiting(self) -> int:
        return self.batches

    def next_s(self) -> float:
        return self.takes_s if self.batches else math.inf

    def take_turn(self) -> float | None:
        if not self.batches:
            return None
        self.batches -= 1
        self.started += 1
        self.running += 1
        return self.takes_s

    def take_background_turn(self) -> float | None:
        if not self.jobs:
            return None
        self.jobs -= 1
        self.started += 1
        self.running += 1
        return self.takes_s

    def frees_at(self) -> float:
        return self.ends_at

    def ends(self, turns: DeviceTurns, took_s: float | None = None) -> None:
        """Ends one of its batches; requests another turn if it has more."""
        assert self.running, f"{self.name} runs nothing"
        self.running -= 1
        took = self.takes_s if took_s is None else took_s
        turns.done(self, self.takes_s, took, asks=self.batches > 0)


def used_s(turns: DeviceTurns, lanes: Sequence[FakeLane], for_s: float) -> dict[str, float]:
    """Runs batches on a device with one slot, the shortest ends first; seconds by lane."""
    used = {lane.name: 0.0 for lane in lanes}
    while sum(used.values()) < for_s:
        lane = min((lane for lane in lanes if lane.running), key=lambda lane: lane.takes_s)
        used[lane.name] += lane.takes_s
        lane.ends(turns)
    return used


def test_a_lane_alone_is_never_held_back() -> None:
    turns, lane = DeviceTurns(1), FakeLane("alone", 1.0, batches=5)
    turns.ask(lane)
    for _ in range(5):
        assert (lane.running, turns.free) == (1, 0)
        lane.ends(turns)
    assert (lane.started, lane.running, turns.free) == (5, 0, 1)


def test_every_slot_is_used() -> None:
    turns, lane = DeviceTurns(3), FakeLane("alone", 1.0)
    turns.ask(lane)
    assert (lane.running, turns.free) == (3, 0)


def test_who_asks_twice_is_not_served_twice() -> None:
    turns, lane = DeviceTurns(1), FakeLane("m", 1.0)
    turns.ask(lane)
    turns.ask(lane)
    assert lane.started == 1


@given(st.lists(st.floats(0.01, 1.0), min_size=2, max_size=4))
def test_lanes_that_always_have_work_get_the_same_time(takes_s: list[float]) -> None:
    turns = DeviceTurns(1)
    lanes = [FakeLane(str(n), s, batches=10**9) for n, s in enumerate(takes_s)]
    for lane in lanes:
        turns.ask(lane)
    used = used_s(turns, lanes, for_s=50 * max(takes_s))
    # Never further apart than one run of each.
    assert max(used.values()) - min(used.values()) <= 2 * max(takes_s) + 1e-6


def test_what_a_run_really_took_counts_and_not_what_was_expected() -> None:
    turns = DeviceTurns(1)
    liar, honest = FakeLane("liar", 0.001), FakeLane("honest", 1.0)
    turns.ask(liar)
    turns.ask(honest)
    for _ in range(20):
        if liar.running:
            liar.ends(turns, took_s=1.0)
        else:
            honest.ends(turns)
    assert abs(liar.started - honest.started) <= 1


def test_a_lane_that_was_idle_has_saved_up_nothing() -> None:
    turns = DeviceTurns(1)
    busy, idle = FakeLane("busy", 1.0), FakeLane("idle", 1.0, batches=1)
    turns.ask(idle)
    idle.ends(turns)
    turns.ask(busy)
    for _ in range(100):
        busy.ends(turns)
    idle.batches = 1000
    turns.ask(idle)
    before = busy.started
    used_s(turns, [busy, idle], for_s=20.0)
    assert busy.started - before >= 9


def test_a_lane_without_work_gives_its_turn_to_the_next() -> None:
    turns = DeviceTurns(1)
    first, empty, last = FakeLane("a", 1.0), FakeLane("b", 1.0, batches=0), FakeLane("c", 1.0)
    for lane in (first, empty, last):
        turns.ask(lane)
    first.ends(turns)
    assert (empty.started, last.running) == (0, 1)


def test_a_lane_that_leaves_gets_no_more_turns() -> None:
    turns = DeviceTurns(1)
    stays, leaves = FakeLane("stays", 1.0), FakeLane("leaves", 1.0)
    turns.ask(stays)
    turns.ask(leaves)
    turns.leave(leaves)
    stays.ends(turns)
    assert (stays.running, leaves.started) == (1, 0)


def test_a_lane_may_leave_while_it_runs() -> None:
    turns, lane = DeviceTurns(1), FakeLane("m", 1.0, batches=1)
    turns.ask(lane)
    turns.leave(lane)
    lane.ends(turns)
    assert (turns.free, turns.share_of(lane)) == (1, 1)


def test_the_share_of_a_lane_is_what_the_others_leave() -> None:
    turns = DeviceTurns(2)
    first, second, third = (FakeLane(name, 1.0) for name in "abc")
    assert turns.share_of(first) == 2
    turns.ask(first)
    assert turns.share_of(first) == 2
    assert turns.share_of(second) == 1
    turns.ask(second)
    assert turns.share_of(third) == pytest.approx(2 / 3)


def test_a_slot_is_free_when_the_first_run_ends() -> None:
    turns = DeviceTurns(2)
    first, second = FakeLane("a", 1.0, batches=1), FakeLane("b", 1.0, batches=1)
    first.ends_at, second.ends_at = 7.0, 5.0
    turns.ask(first)
    assert turns.frees_at(1.0) == 0.0
    turns.ask(second)
    assert turns.frees_at(1.0) == 5.0


def test_a_short_batch_goes_beside_a_long_one_and_one_at_a_time() -> None:
    turns = DeviceTurns(1)
    long, short, other = FakeLane("long", 1.0), FakeLane("short", 0.1), FakeLane("other", 0.05)
    turns.ask(long)
    assert turns.frees_at(0.1) == 0.0
    turns.ask(short)
    turns.ask(other)
    assert (long.running, short.running, other.running, turns.free) == (1, 1, 0, 0)
    assert turns.frees_at(0.05) == long.ends_at
    short.ends(turns)
    assert (long.running, short.running + other.running) == (1, 1)


def test_a_batch_that_is_not_much_shorter_waits() -> None:
    turns = DeviceTurns(1)
    long, middle = FakeLane("long", 1.0), FakeLane("middle", 0.11)
    turns.ask(long)
    turns.ask(middle)
    assert (long.running, middle.running) == (1, 0)


def test_what_went_beside_gives_no_slot_back() -> None:
    turns = DeviceTurns(1)
    long, short = FakeLane("long", 1.0, batches=1), FakeLane("short", 0.1, batches=1)
    turns.ask(long)
    turns.ask(short)
    short.ends(turns)
    assert turns.free == 0
    long.ends(turns)
    assert turns.free == 1


def test_jobs_run_when_nobody_asks_for_a_turn() -> None:
    turns = DeviceTurns(1)
    online, jobs = FakeLane("online", 1.0, batches=2), FakeLane("jobs", 1.0, batches=0, jobs=3)
    turns.ask(online)
    turns.ask_background(jobs)
    assert (online.running, jobs.running) == (1, 0)
    online.ends(turns)
    assert (online.running, jobs.running) == (1, 0)
    online.ends(turns)
    assert (online.running, jobs.running) == (0, 1)
    online.batches = 1
    turns.ask(online)
    jobs.ends(turns)
    assert (online.running, jobs.running) == (1, 0)
    online.ends(turns)
    jobs.ends(turns)
    jobs.ends(turns)
    assert (jobs.started, turns.free) == (3, 1)


def test_jobs_of_several_lanes_take_turns() -> None:
    turns = DeviceTurns(1)
    lanes = [FakeLane(name, 1.0, batches=0, jobs=2) for name in "ab"]
    order = []
    for lane in lanes:
        turns.ask_background(lane)
    for _ in range(4):
        (running,) = [lane for lane in lanes if lane.running]
        order.append(running.name)
        running.ends(turns)
    assert order == ["a", "b", "a", "b"] or order == ["a", "a", "b", "b"]
    assert turns.free == 1


def test_a_lane_that_leaves_runs_no_jobs() -> None:
    turns, busy, gone = DeviceTurns(1), FakeLane("busy", 1.0, 1), FakeLane("gone", 1.0, 0, jobs=1)
    turns.ask(busy)
    turns.ask_background(gone)
    turns.leave(gone)
    busy.ends(turns)
    assert gone.started == 0


def test_batches_of_jobs_are_as_short_as_the_tightest_request_lately_needs() -> None:
    turns = DeviceTurns(1)
    assert turns.background_s(0.0) == math.inf
    turns.tighten(2.0, now=10.0)
    assert turns.background_s(10.0) == 1.0
    assert turns.background_s(69.0) == 1.0
    assert turns.background_s(71.0) == math.inf
    assert turns.tightest_s == math.inf
