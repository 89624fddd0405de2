"""The mailbox: what is posted is called once, in order, on the loop; a burst wakes it once."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from services.gateway.grpc_mailbox import AT_ONCE, Mailbox

THREADS = 8
LETTERS = 2_000


async def all_delivered(mailbox: Mailbox) -> None:
    """Waits until what was posted so far has been called."""
    over = asyncio.Event()
    mailbox.post(over.set)
    await over.wait()


async def test_every_letter_arrives_once_in_its_threads_order() -> None:
    mailbox = Mailbox(asyncio.get_running_loop())
    arrived: list[tuple[int, int, int]] = []

    def post(sender: int) -> None:
        def letter(number: int) -> Callable[[], None]:
            return lambda: arrived.append((sender, number, threading.get_ident()))

        for number in range(LETTERS):
            mailbox.post(letter(number))

    await asyncio.gather(*(asyncio.to_thread(post, sender) for sender in range(THREADS)))
    await all_delivered(mailbox)
    assert {ident for _, _, ident in arrived} == {threading.get_ident()}
    for sender in range(THREADS):
        numbers = [number for who, number, _ in arrived if who == sender]
        assert numbers == list(range(LETTERS))


class CountedLoop:
    """A loop that counts how often it is woken."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.wakes = 0

    def call_soon_threadsafe(self, callback: Callable[[], None]) -> None:
        self.wakes += 1
        self._loop.call_soon_threadsafe(callback)

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._loop.call_soon(callback)


async def test_a_burst_wakes_the_loop_once() -> None:
    loop: Any = CountedLoop()
    mailbox = Mailbox(loop)
    arrived: list[int] = []
    for burst in (1, 2):
        for number in range(3 * AT_ONCE):
            mailbox.post(lambda number=number: arrived.append(number))  # type: ignore[misc]
        await all_delivered(mailbox)
        assert loop.wakes == burst
    assert arrived == [*range(3 * AT_ONCE), *range(3 * AT_ONCE)]


async def test_the_loop_gets_its_turn_between_rounds() -> None:
    mailbox = Mailbox(asyncio.get_running_loop())
    arrived = 0

    def letter() -> None:
        nonlocal arrived
        arrived += 1

    for _ in range(3 * AT_ONCE):
        mailbox.post(letter)
    seen = []
    while arrived < 3 * AT_ONCE:
        await asyncio.sleep(0)
        seen.append(arrived)
    assert {AT_ONCE, 2 * AT_ONCE} <= set(seen), "one round took them all"


async def test_a_letter_may_post_another() -> None:
    mailbox = Mailbox(asyncio.get_running_loop())
    arrived: list[str] = []

    def first() -> None:
        mailbox.post(lambda: arrived.append("third"))
        arrived.append("first")

    mailbox.post(first)
    mailbox.post(lambda: arrived.append("second"))
    await all_delivered(mailbox)
    await all_delivered(mailbox)
    assert arrived == ["first", "second", "third"]


async def test_a_letter_that_raises_takes_no_other_with_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    mailbox = Mailbox(asyncio.get_running_loop())
    mailbox.post(lambda: [][0])
    await all_delivered(mailbox)
    assert "IndexError" in caplog.text


def test_a_closed_loop_says_so() -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    with pytest.raises(RuntimeError, match="closed"):
        Mailbox(loop).post(lambda: None)
