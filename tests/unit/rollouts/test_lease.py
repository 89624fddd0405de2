"""The lease: never two at once, however slow the store or a process; taken over from the dead."""

import heapq
import itertools
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model_store.errors import StorageError
from model_store.storage.storage import Storage
from services.rollouts.lease import HELD_FOR, TAKEN_AFTER, Lease, LeaseRule

INTERVAL_S = 2.0


class Clock:
    def __init__(self, at: float = 0.0) -> None:
        self.at = at

    def __call__(self) -> float:
        return self.at


def lease_of(folder: Path, process: str, clock: Clock) -> Lease:
    return Lease(Storage(str(folder)), "digits/rollouts/1", process, INTERVAL_S, clock)


def look_until_held(lease: Lease, *clocks: Clock, looks: int = 20) -> int:
    """Looks once an interval; returns the number of looks until the lease acts."""
    for look in range(looks):
        if lease.look():
            return look
        for clock in clocks:
            clock.at += INTERVAL_S
    raise AssertionError("never taken")


def test_first_contender_holds_at_once_and_the_second_waits(tmp_path: Path) -> None:
    clock = Clock()
    first, second = lease_of(tmp_path, "a", clock), lease_of(tmp_path, "b", clock)
    for _ in range(10):
        assert first.look()
        assert not second.look()
        clock.at += INTERVAL_S


def test_killed_holder_is_replaced(tmp_path: Path) -> None:
    clock = Clock()
    first, second = lease_of(tmp_path, "a", clock), lease_of(tmp_path, "b", clock)
    assert first.look()
    assert not second.look()
    assert look_until_held(second, clock) == TAKEN_AFTER + HELD_FOR
    assert not first.look(), "it has lost the lease"
    assert second.look()


def test_clocks_may_differ_by_years(tmp_path: Path) -> None:
    early, late = Clock(-1e9), Clock(1e9)
    first, second = lease_of(tmp_path, "a", early), lease_of(tmp_path, "b", late)
    for _ in range(10):
        assert first.look()
        assert not second.look()
        early.at += INTERVAL_S
        late.at += INTERVAL_S
    assert look_until_held(second, late) <= TAKEN_AFTER + HELD_FOR + 1


def test_holder_that_slept_stops_by_itself(tmp_path: Path) -> None:
    clock = Clock()
    lease = lease_of(tmp_path, "a", clock)
    assert lease.look()
    clock.at += HELD_FOR * INTERVAL_S - 0.01
    assert lease.may_act()
    clock.at += 0.01
    assert not lease.may_act()
    assert lease.look()


def test_store_that_is_too_slow_is_an_error(tmp_path: Path) -> None:
    times = itertools.count(0.0, HELD_FOR * INTERVAL_S)
    lease = Lease(Storage(str(tmp_path)), "digits/1", "a", INTERVAL_S, lambda: next(times))
    assert not lease.look()
    with pytest.raises(StorageError, match="too slow to control rollouts"):
        lease.look()


def test_restarted_holder_takes_its_lease_over(tmp_path: Path) -> None:
    clock = Clock()
    assert lease_of(tmp_path, "a-1", clock).look()
    assert look_until_held(lease_of(tmp_path, "a-2", clock), clock) <= TAKEN_AFTER + HELD_FOR


@pytest.mark.parametrize("data", [b"", b"x" * 100_000, b"\xff"])
def test_strange_files_are_taken_over(tmp_path: Path, data: bytes) -> None:
    folder = tmp_path / "digits/rollouts/1/lease"
    folder.mkdir(parents=True)
    (folder / "1.json").write_bytes(data)
    (folder / "0.json").write_bytes(data)
    (folder / "99999999999999999999.json").write_bytes(data)
    (folder / "notes.txt").write_bytes(data)
    clock = Clock()
    look_until_held(lease_of(tmp_path, "a", clock), clock)
    assert (folder / "2.json").exists()


@dataclass
class Contender:
    """A process in simulated time: each read and write of the store takes a while."""

    skew_s: float
    rule: LeaseRule = field(default_factory=lambda: LeaseRule(INTERVAL_S))
    beats: int = 0
    dies_at: float = float("inf")


@st.composite
def simulated(draw: st.DrawFn) -> tuple[list[Contender], list[float]]:
    """Contenders, and how long each of their steps takes: mostly little, sometimes very long."""
    contenders = [
        Contender(draw(st.floats(-1e6, 1e6)), dies_at=draw(st.floats(1, 200)))
        for _ in range(draw(st.integers(2, 4)))
    ]
    delays = draw(st.lists(st.floats(0.01, 0.2) | st.floats(0.01, 30), min_size=20, max_size=200))
    return contenders, delays


def simulate(contenders: list[Contender], delays: list[float]) -> list[tuple[float, set[int]]]:
    """Runs contenders for 300 simulated seconds; returns who may act, by time of each step."""
    files: dict[int, bytes] = {}
    acting: list[tuple[float, set[int]]] = []
    took = itertools.cycle(delays)
    order = itertools.count()
    events = [(0.0, next(order), n, "look", 0.0, (0, b"")) for n in range(len(contenders))]
    while events:
        now, _, who, step, began, read = heapq.heappop(events)
        one = contenders[who]
        if now > min(one.dies_at, 300):
            continue
        own_now = now + one.skew_s
        if step == "look":
            following = ("list", own_now, read)
        elif step == "list":
            following = ("read", began, (max(files, default=0), b""))
        elif step == "read":
            newest = read[0]
            act = one.rule.look(newest, files.get(newest, b""), began)
            following = ({"renew": "renew", "take": "take", "wait": "rest"}[act], began, read)
        elif step == "renew":
            one.beats += 1
            files[one.rule.own] = f"{who} {one.beats}".encode()
            following = ("rest", began, read)
        elif step == "take":
            if (number := read[0] + 1) not in files:
                files[number] = f"{who} 0".encode()
                one.rule.took(number, began, own_now)
            following = ("rest", began, read)
        else:
            following = ("look", began, read)
        delay = INTERVAL_S if step == "rest" else next(took)
        heapq.heappush(events, (now + delay, next(order), who, *following))
        acting.append(
            (
                now,
                {
                    n
                    for n, c in enumerate(contenders)
                    if now <= c.dies_at and c.rule.may_act(now + c.skew_s)
                },
            )
        )
    return acting


@settings(max_examples=300, deadline=None)
@given(simulated())
def test_two_never_act_at_once(simulated: tuple[list[Contender], list[float]]) -> None:
    assert all(len(who) <= 1 for _, who in simulate(*simulated))


def test_a_simulated_survivor_acts() -> None:
    """The simulation reaches takeovers: its property would be empty otherwise."""
    contenders = [Contender(0.0, dies_at=20), Contender(5e5, dies_at=60), Contender(-5e5)]
    seen = simulate(contenders, [0.05])
    assert {0, 1, 2} == {who for _, acting in seen for who in acting}


@pytest.mark.parametrize("number", ["999999999999999", "1000000000", "7"])
def test_foreign_file_beyond_a_gap_is_no_lease(tmp_path: Path, number: str) -> None:
    folder = tmp_path / "digits" / "rollouts" / "1" / "lease"
    folder.mkdir(parents=True)
    (folder / f"{number}.json").write_text("{}")
    clock = Clock()
    first, second = lease_of(tmp_path, "a", clock), lease_of(tmp_path, "b", clock)
    assert first.look()
    assert not second.look()
    clock.at += INTERVAL_S
    assert first.look()
    look_until_held(second, clock)
    assert {one.name for one in folder.iterdir()} == {"1.json", "2.json", f"{number}.json"}
