"""A busy event loop releases the GIL between turns, for waiting model threads."""

import asyncio
import time
from collections.abc import Callable

import pytest

from services import interpreter_lock
from services.errors import ServingError
from services.gateway import request_pacer, sliced_work
from services.gateway.request_pacer import BEGUN_A_TURN, RequestPacer
from services.gateway.sliced_work import SlicedWork, Slices
from services.wire import loop_turns
from services.wire.body import Body
from services.wire.loop_turns import WORK_A_TURN_US, LoopTurns

TURNS = 20


@pytest.fixture
def lent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns a log of the modules that released the lock."""
    log: list[str] = []

    def lending(module: str) -> Callable[[], None]:
        return lambda: log.append(module)

    for module in (sliced_work, request_pacer, loop_turns):
        monkeypatch.setattr(module, "lend_lock", lending(module.__name__.rsplit(".", 1)[1]))
    return log


async def settle(turns: int = 2 * TURNS) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)


def slices(count: int) -> Slices[None]:
    for _ in range(count):
        yield


async def test_between_slices(monkeypatch: pytest.MonkeyPatch, lent: list[str]) -> None:
    for name in ("BEGINNING_S", "TURN_S"):
        monkeypatch.setattr(sliced_work, name, 0.0)
    await SlicedWork().run(slices(TURNS))
    assert lent == ["sliced_work"] * TURNS


async def test_not_behind_work_of_one_turn(lent: list[str]) -> None:
    await SlicedWork().run(slices(0))
    await settle()
    assert lent == []


class Connection:
    """Has work for so many turns."""

    def __init__(self, turns: LoopTurns, left: int) -> None:
        self.turns, self.left = turns, left

    def take_turn(self, work_us: int) -> None:
        self.turns.count(WORK_A_TURN_US)
        self.left -= 1
        if self.left:
            self.turns.wait(self, is_fresh=False)


async def test_between_turns_of_connections(lent: list[str]) -> None:
    turns = LoopTurns()
    turns.wait(Connection(turns, TURNS), is_fresh=False)
    await settle()
    assert lent == ["loop_turns"] * TURNS
    turns.count(WORK_A_TURN_US)  # by one that has nothing left to do
    await settle()
    assert len(lent) == TURNS


class Request:
    """One of many."""

    is_over = False

    def begin_in_turn(self, body: Body, received_at: float) -> None:
        """Does nothing."""

    def refuse(self, error: ServingError) -> None:
        raise AssertionError(error)


async def test_between_turns_of_requests(lent: list[str]) -> None:
    share = RequestPacer()
    for _ in range(TURNS * BEGUN_A_TURN):
        share.begin(Request(), b"{}", "one")
    await settle()
    assert lent == ["request_pacer"] * (TURNS - 2)  # the last is one that no other follows


def test_lending_takes_a_part_of_a_turn_only() -> None:
    began = time.perf_counter()
    interpreter_lock.lend_lock()
    assert time.perf_counter() - began >= interpreter_lock.LENT_S
    assert interpreter_lock.LENT_S <= sliced_work.TURN_S / 10
