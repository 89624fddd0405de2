"""Long work in slices: every task gets its turn, and the event loop goes first."""

import asyncio
import inspect
import socket
from collections.abc import Generator
from itertools import pairwise

import pytest
import uvloop

from services.errors import TooManyInFlightError
from services.gateway import sliced_work
from services.gateway.sliced_work import SlicedWork, Slices, at_once

# A turn ends after each slice.
pytestmark = pytest.mark.usefixtures("short_turns")


@pytest.fixture
def short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BEGINNING_S", "TURN_S"):
        monkeypatch.setattr(sliced_work, name, 0.0)


def steps(log: list[str], name: str, count: int) -> Slices[str]:
    for number in range(count):
        log.append(f"{name}{number}")
        yield
    return name


async def test_each_turn_of_the_loop_does_one_slice_and_all_take_turns() -> None:
    log: list[str] = []
    work = SlicedWork()
    ended = [asyncio.ensure_future(work.run(steps(log, name, 3))) for name in "ab"]
    for turn in range(8):
        await asyncio.sleep(0)
        log.append(f"turn{turn}")
    assert [await one for one in ended] == ["a", "b"]
    slices = [entry for entry in log if not entry.startswith("turn")]
    assert slices == ["a0", "a1", "b0", "a2", "b1", "b2"]
    assert all("turn" in before or "turn" in after for before, after in pairwise(log))


def test_sockets_are_polled_between_the_first_slices_and_the_next() -> None:
    """uvloop runs what a socket's callback calls soon before it polls again: the callback has read
    the whole body just before, and both would be one long turn."""
    log: list[str] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        (first, one), (second, other) = socket.socketpair(), socket.socketpair()
        work, over = SlicedWork(), loop.create_future()

        def begin() -> None:
            loop.remove_reader(first)
            other.send(b"x")
            work.begin(steps(log, "slice", 2), over.set_result, over.set_exception, over.done)

        def note() -> None:
            loop.remove_reader(second)
            log.append("polled")

        with first, one, second, other:
            loop.add_reader(first, begin)
            loop.add_reader(second, note)
            one.send(b"x")
            await over

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())
    assert log == ["slice0", "polled", "slice1"]


async def test_short_work_is_done_before_begin_returns() -> None:
    done: list[str] = []
    failed: list[Exception] = []
    SlicedWork().begin(steps([], "a", 0), done.append, failed.append, lambda: False)
    assert (done, failed) == (["a"], [])


async def test_errors_reach_who_asked_and_nobody_else() -> None:
    def failing() -> Slices[None]:
        yield
        raise ValueError("this one")

    work = SlicedWork()
    other = asyncio.ensure_future(work.run(steps([], "other", 4)))
    with pytest.raises(ValueError, match="this one"):
        await work.run(failing())
    assert await other == "other"


async def test_work_that_nobody_waits_for_is_dropped() -> None:
    log: list[str] = []
    closed: list[bool] = []

    def endless() -> Generator[None, None, None]:
        try:
            while True:
                yield
        finally:
            closed.append(True)

    work = SlicedWork()
    waiting = asyncio.ensure_future(work.run(endless()))
    await asyncio.sleep(0)
    waiting.cancel()
    assert await work.run(steps(log, "b", 3)) == "b"
    assert closed == [True]


async def test_large_work_runs_one_after_the_other_and_small_work_beside_it() -> None:
    log: list[str] = []
    work = SlicedWork()
    large = [
        asyncio.ensure_future(work.run(steps(log, name, 3), sliced_work.LARGE_BYTES + 1))
        for name in "ABCD"
    ]
    small = asyncio.ensure_future(work.run(steps(log, "s", 2), sliced_work.LARGE_BYTES))
    await asyncio.sleep(0)
    large[1].cancel()
    large[3].cancel()
    assert await large[2] == "C"
    assert await small == "s"
    assert [name for name in log if name[0] != "s"] == ["A0", "A1", "A2", "C0", "C1", "C2"]
    assert log.index("s1") < log.index("C0")
    assert await work.run(steps(log, "E", 1), sliced_work.LARGE_BYTES + 1) == "E"


async def test_smallest_large_work_is_next_and_the_oldest_is_not_forgotten() -> None:
    ended: list[str] = []
    work = SlicedWork()

    async def run(name: str, size: int) -> None:
        ended.append(await work.run(steps([], name, 1), sliced_work.LARGE_BYTES + size))

    others = [run(f"small{number}", number) for number in range(1, 6)]
    await asyncio.gather(run("first", 60), run("largest", 60), *others)
    assert ended == ["first", "small1", "small2", "small3", "largest", "small4", "small5"]


async def test_large_work_that_failed_lets_the_next_begin() -> None:
    def failing() -> Slices[None]:
        yield
        raise ValueError("this one")

    work, size = SlicedWork(), sliced_work.LARGE_BYTES + 1
    first = asyncio.ensure_future(work.run(failing(), size))
    second = asyncio.ensure_future(work.run(steps([], "b", 1), size))
    with pytest.raises(ValueError, match="this one"):
        await first
    assert await second == "b"


async def test_large_work_that_waits_is_dropped_with_its_caller() -> None:
    work, size = SlicedWork(), sliced_work.LARGE_BYTES + 1
    first = asyncio.ensure_future(work.run(steps([], "a", 9), size))
    waiting = steps([], "b", 1)
    second = asyncio.ensure_future(work.run(waiting, size))
    await asyncio.sleep(0)
    second.cancel()
    for _ in range(3):
        await asyncio.sleep(0)
    assert inspect.getgeneratorstate(waiting) == inspect.GEN_CLOSED, "it holds a body"
    assert not first.done()
    assert await first == "a"


async def test_too_much_work_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sliced_work, "MAX_WAITING", 2)
    work = SlicedWork()
    ended = [asyncio.ensure_future(work.run(steps([], name, 3))) for name in "ab"]
    await asyncio.sleep(0)
    with pytest.raises(TooManyInFlightError, match="2 large requests"):
        await work.run(steps([], "c", 3))
    assert [await one for one in ended] == ["a", "b"]


def test_all_slices_at_once() -> None:
    assert at_once(steps([], "a", 3)) == "a"
