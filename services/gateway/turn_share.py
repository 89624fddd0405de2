"""How many requests one turn of the event loop begins; the next ones wait for the turns after it.

A turn lasts as long as all that its sockets have to say, and meanwhile no batch begins and no
answer leaves. With a thousand callers at once the device got one batch every 30 ms, most of what
came was refused, and the server answered a tenth of what it could until callers gave up.

Rules kept here:
- requests begin in the order in which they came; a large one counts as several;
- one that nobody waits for any more is passed over;
- none is refused for having waited: that takes as long as to serve it, for most of either is the
  system call that sends the answer, and a burst would be lost that could have been served.
"""

import asyncio
import time
from collections import deque
from typing import Protocol

from services.errors import ServingError, TooManyInFlightError
from services.gateway.wire.http_body import Body
from services.interpreter_lock import lend_lock

BEGUN_A_TURN = 32
"""To read a request and let it in takes some 25 µs: a turn of them stays under 1 ms."""
COUNTED_BYTES = 4096
"""A request counts once more for each so many bytes: the worst JSON takes 0.3 ms to read them."""
MAX_WAITING = 16_384
"""Requests whose bodies are held."""
_ASKED_AT = BEGUN_A_TURN // 2
"""A turn that begins fewer is not worth a call to count anew."""


class Inference(Protocol):
    """A request whose bytes are all there."""

    @property
    def is_over(self) -> bool:
        """Whether nobody waits for an answer."""

    def begin_in_turn(self, body: Body, waited_s: float) -> None:
        """Starts the work.

        Args:
            body: of the request, plain.
            waited_s: since its last byte came.
        """

    def refuse(self, error: ServingError) -> None:
        """Answers what is not begun."""


class TurnShare:
    """The share of one event loop's turns that goes to new requests."""

    __slots__ = ("_begun", "_waiting")

    def __init__(self) -> None:
        self._begun = 0
        """In this turn; too many while any wait, so that what comes now waits behind them."""
        self._waiting: deque[tuple[Inference, Body, float]] = deque()

    def begin(self, request: Inference, body: Body) -> None:
        """Begins a request now, or in a later turn."""
        before = self._begun
        begun = self._begun = before + 1 + len(body) // COUNTED_BYTES
        if before < BEGUN_A_TURN:
            if before < _ASKED_AT <= begun:
                asyncio.get_running_loop().call_soon(self._turn)
            request.begin_in_turn(body, 0.0)
        elif len(self._waiting) < MAX_WAITING:
            self._waiting.append((request, body, time.monotonic()))
        else:
            request.refuse(
                TooManyInFlightError(
                    f"{MAX_WAITING} requests wait here to be read, the limit; "
                    "retry later or add servers"
                )
            )

    def _turn(self) -> None:
        """A new turn: begins those that have waited longest."""
        waiting, begun, now = self._waiting, 0, time.monotonic()
        if len(waiting) > BEGUN_A_TURN:
            lend_lock()
        try:
            while waiting and begun < BEGUN_A_TURN:
                request, body, since = waiting.popleft()
                if not request.is_over:
                    begun += 1 + len(body) // COUNTED_BYTES
                    request.begin_in_turn(body, now - since)
        finally:
            self._begun = BEGUN_A_TURN if waiting else begun
            if waiting or begun >= _ASKED_AT:
                asyncio.get_running_loop().call_soon(self._turn)
