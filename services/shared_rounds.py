"""Rounds of a question whose answer many callers share, such as the figures of all processes."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class SharedRounds(Generic[T]):
    """Asks a question for all that want the answer, one round after the other.

    A caller gets the answer of a round that began after it asked. However many ask, the cost is
    that of one round in `pause_s`.

    Args:
        ask: asks the question.
        pause_s: seconds between the end of a round and the next.
    """

    def __init__(self, ask: Callable[[], Awaitable[T]], pause_s: float) -> None:
        self._ask, self._pause_s = ask, pause_s
        self._running: asyncio.Task[T] | None = None
        self._next: asyncio.Task[T] | None = None

    async def answer(self) -> T:
        """Returns the answer of the next round.

        Raises:
            Exception: what `ask` raises.
        """
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._round(self._running))
        return await asyncio.shield(self._next)

    async def _round(self, before: "asyncio.Task[T] | None") -> T:
        if before is not None:
            await asyncio.wait([before])
            await asyncio.sleep(self._pause_s)
        self._running, self._next = self._next, None
        return await self._ask()
