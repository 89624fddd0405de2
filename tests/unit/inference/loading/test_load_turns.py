"""Versions load concurrently with ample memory, and serially with little."""

import asyncio
from collections import defaultdict
from collections.abc import Callable

import pytest

from services.inference.loading import load_turns
from services.inference.loading.load_turns import AMPLE, LoadTurns, VersionLoads
from services.queueing.records import Lane
from tests.fixtures.redis_servers import until

A, B, C = (Lane(name, 1) for name in "abc")


class Loading:
    """Loads that begin when they may, and end when told to."""

    def __init__(self, most: int) -> None:
        self.turns = LoadTurns(most)
        self.begun: list[Lane] = []
        self.has_begun: defaultdict[Lane, asyncio.Event] = defaultdict(asyncio.Event)
        self.shares: dict[Lane, float] = {}
        self._end: dict[Lane, asyncio.Event] = {}
        self._tasks: dict[Lane, asyncio.Task[None]] = {}

    async def ask(
        self, lane: Lane, file_bytes: int, room: Callable[[], int], *, is_apart: bool = False
    ) -> None:
        self._end[lane] = asyncio.Event()
        self._tasks[lane] = asyncio.create_task(self._load(lane, file_bytes, room, is_apart))
        await settle()

    async def end(self, lane: Lane) -> None:
        self._end[lane].set()
        await self._tasks[lane]
        await settle()

    async def _load(
        self, lane: Lane, file_bytes: int, room: Callable[[], int], is_apart: bool
    ) -> None:
        async with self.turns.turn(lane, file_bytes, room, is_apart) as load:
            self.begun.append(lane)
            self.has_begun[lane].set()
            await self._end[lane].wait()
            self.shares[lane] = load.share


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_as_many_load_at_once_as_there_are_cores() -> None:
    loading = Loading(2)
    for lane in (A, B, C):
        await loading.ask(lane, 10, lambda: 10_000)
    assert loading.begun == [A, B]
    assert not loading.turns.is_quiet
    await loading.end(A)
    assert loading.begun == [A, B, C]
    await loading.end(B)
    await loading.end(C)


async def test_a_slow_load_apart_delays_others_for_a_while_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(load_turns, "PATIENCE_S", 0.01)
    loading = Loading(1)
    await loading.ask(A, 10, lambda: 0, is_apart=True)
    await loading.ask(B, 10, lambda: 0)
    assert loading.begun == [A]
    async with asyncio.timeout(10):
        await loading.has_begun[B].wait()
    await loading.ask(C, 10, lambda: 0)
    assert loading.begun == [A, B]  # B is in this process, and has the turn alone
    await loading.end(B)
    assert loading.begun == [A, B, C]
    await loading.end(C)
    await loading.end(A)


async def test_few_slow_loads_run_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_turns, "PATIENCE_S", 0.01)
    monkeypatch.setattr(load_turns, "MAX_SLOW", 2)
    loading = Loading(1)
    for lane in (A, B):
        await loading.ask(lane, 10, lambda: 0, is_apart=True)
        async with asyncio.timeout(10):
            await loading.has_begun[lane].wait()
    await loading.ask(C, 10, lambda: 0)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await loading.has_begun[C].wait()
    await loading.end(A)
    assert loading.begun == [A, B, C]
    await loading.end(B)
    await loading.end(C)


@pytest.mark.parametrize("room_bytes", [0, AMPLE * 20 - 1])
async def test_where_memory_is_short_or_unknown_one_loads_alone(room_bytes: int) -> None:
    loading = Loading(8)
    for lane in (A, B):
        await loading.ask(lane, 10, lambda: room_bytes)
    assert loading.begun == [A]
    assert loading.turns.is_quiet
    await loading.end(A)
    assert loading.begun == [A, B]
    await loading.end(B)
    assert loading.shares == {A: 1.0, B: 1.0}


async def test_what_is_taken_is_divided_among_those_that_loaded_at_the_same_time() -> None:
    loading = Loading(3)
    await loading.ask(A, 10, lambda: 10_000)
    await loading.ask(B, 30, lambda: 10_000)
    await loading.end(A)
    await loading.ask(C, 60, lambda: 10_000)
    await loading.end(B)
    await loading.end(C)
    assert loading.shares == {A: 10 / 40, B: 30 / 100, C: 60 / 90}


async def test_a_load_that_fails_gives_its_turn_back() -> None:
    turns = LoadTurns(1)
    with pytest.raises(ValueError, match="broken"):
        async with turns.turn(A, 1, lambda: 0):
            raise ValueError("broken")
    async with turns.turn(B, 1, lambda: 0):
        assert turns.is_quiet


async def test_a_further_artifact_waits_for_versions_and_holds_up_none() -> None:
    loading, further = Loading(1), A._replace(artifact="onnx")
    await loading.ask(A, 10, lambda: 10_000)
    await loading.ask(further, 10, lambda: 10_000)
    assert loading.begun == [A]
    await loading.end(A)
    await loading.ask(B, 10, lambda: 10_000)
    assert loading.begun == [A, further, B]
    await loading.end(further)
    await loading.end(B)


class Versions:
    """Loads of versions of one model, which end when told to."""

    def __init__(self, *wanted: int, apart: set[int]) -> None:
        self.wanted, self.apart = list(wanted), apart
        self.begun: list[int] = []
        self.settled = 0
        self.settled_at_once: list[int] = []
        """What else ran on the loop after each load saw that many calls."""
        self.loads = VersionLoads()
        self.ends: defaultdict[int, asyncio.Event] = defaultdict(asyncio.Event)
        self.task = asyncio.create_task(self.loads.run(lambda: self.wanted, self._load, self._note))

    async def _load(self, version: int) -> None:
        self.begun.append(version)
        if version in self.apart:
            self.loads.apart.add(version)
        await self.ends[version].wait()
        asyncio.get_running_loop().call_soon(lambda: self.settled_at_once.append(self.settled))

    def _note(self) -> None:
        self.settled += 1


async def test_versions_of_a_model_load_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(load_turns, "PATIENCE_S", 0.01)
    versions = Versions(2, 1, apart=set())
    await until(lambda: versions.begun == [2])
    await asyncio.sleep(0.05)
    assert (versions.begun, versions.loads.loading) == ([2], {2})
    versions.ends[2].set()
    await until(lambda: versions.begun == [2, 1])
    assert versions.settled == 1
    versions.ends[1].set()
    await versions.task
    assert (versions.settled, versions.loads.loading) == (3, set())
    assert versions.settled_at_once == [1, 2]


async def test_version_loads_beside_one_that_hangs_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_turns, "PATIENCE_S", 0.01)
    versions = Versions(1, apart={1})
    await until(lambda: versions.loads.apart == {1})
    versions.wanted.append(2)
    versions.loads.changed.set()
    await until(lambda: versions.begun == [1, 2])
    versions.ends[2].set()
    await until(lambda: versions.settled == 1)
    assert versions.loads.loading == {1}
    versions.ends[1].set()
    await versions.task
    assert (versions.begun, versions.settled, versions.loads.apart) == ([1, 2], 3, set())


async def test_version_that_is_needed_again_loads_beside_one_that_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(load_turns, "PATIENCE_S", 0.01)
    versions = Versions(1, 2, apart={2})
    versions.ends[1].set()
    await until(lambda: versions.settled == 1 and versions.loads.apart == {2})
    versions.loads.tried.clear()
    versions.loads.changed.set()
    await until(lambda: versions.begun == [1, 2, 1] and versions.settled == 2)
    assert versions.loads.loading == {2}
    versions.ends[2].set()
    await versions.task


async def test_loads_end_with_what_waits_for_them() -> None:
    versions = Versions(1, apart={1})
    await until(lambda: versions.loads.loading == {1})
    versions.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await versions.task
    assert versions.loads.loading == set()
