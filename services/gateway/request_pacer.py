"""How many requests one turn of the event loop begins; the next ones wait for the turns after it.

A turn lasts as long as all that its sockets have to say, and meanwhile no batch begins and no
answer leaves. With a thousand callers at once the device got one batch every 30 ms, most of what
came was refused, and the server answered a tenth of what it could until callers gave up.

Rules kept here:
- connections take turns, so that none waits for thousands of another's; of each, requests begin in
  the order in which they came; a large one counts as several;
- small requests go before large ones for `SMALL_A_TURN`, so that hundreds of callers with large
  ones do not delay them; of large ones, one at least begins in each turn;
- one that nobody waits for any more is passed over;
- none is refused for having waited: that takes as long as to serve it, for most of either is the
  system call that sends the answer, and a burst would be lost that could have been served.
"""

import asyncio
import time
from collections import deque
from typing import Protocol

from services.errors import ServingError, TooManyInFlightError
from services.gateway.wire.body import Body
from services.interpreter_lock import lend_lock

BEGUN_A_TURN = 32
"""To read a request and let it in takes some 25 µs: a turn of them stays under 1 ms."""
COUNTED_BYTES = 4096
"""A request counts once more for each so many bytes: the worst JSON takes 0.3 ms to read them."""
SMALL_A_TURN = 24
"""Requests of at most `COUNTED_BYTES` that go first, while larger ones wait."""
MAX_WAITING = 16_384
"""Requests whose bodies are held. Beyond them, a connection that has more than its part of them
waiting is refused more."""
PASSED_A_TURN = 512
"""Requests that nobody waits for any more."""
_ASKED_AT = BEGUN_A_TURN // 2
"""A turn that begins fewer is not worth a call to count anew."""


class PacedRequest(Protocol):
    """A request whose bytes are all there."""

    @property
    def is_over(self) -> bool:
        """Whether nobody waits for an answer."""

    def begin_in_turn(self, body: Body, received_at: float) -> None:
        """Starts the work.

        Args:
            body: of the request, plain.
            received_at: `time.monotonic()` second of its last byte.
        """

    def refuse(self, error: ServingError) -> None:
        """Answers what is not begun."""


class RequestPacer:
    """The share of one event loop's turns that goes to new requests."""

    __slots__ = ("_begun", "_large", "_queues", "_small", "_waiting")

    def __init__(self) -> None:
        self._begun = 0
        """In this turn; too many while any wait, so that what comes now waits behind them."""
        self._queues: dict[object, deque[tuple[PacedRequest, Body, float]]] = {}
        """By connection, of those that wait."""
        self._small: deque[object] = deque()
        """Connections whose next request is small; the first is the next to begin one."""
        self._large: deque[object] = deque()
        """Those whose next request is large."""
        self._waiting = 0
        """Requests in all of them."""

    def begin(self, request: PacedRequest, body: Body, connection: object) -> None:
        """Begins a request now, or in a later turn.

        Args:
            request: whole.
            body: of it, plain.
            connection: on which it came.
        """
        before = self._begun
        begun = self._begun = before + 1 + len(body) // COUNTED_BYTES
        if before < BEGUN_A_TURN:
            if before < _ASKED_AT <= begun:
                asyncio.get_running_loop().call_soon(self._turn)
            request.begin_in_turn(body, time.monotonic())
        else:
            self._wait(request, body, connection)

    def _wait(self, request: PacedRequest, body: Body, connection: object) -> None:
        queue = self._queues.get(connection)
        if queue is None:
            queue = self._queues[connection] = deque()
            self._line_of(body).append(connection)
        elif self._waiting >= MAX_WAITING and len(queue) * len(self._queues) >= MAX_WAITING:
            request.refuse(
                TooManyInFlightError(
                    f"{self._waiting} requests wait here to be read, {len(queue)} of this "
                    f"connection ({MAX_WAITING} is the limit); retry later or add servers"
                )
            )
            return
        queue.append((request, body, time.monotonic()))
        self._waiting += 1

    def _line_of(self, body: Body) -> deque[object]:
        """The line in which a connection waits that has this body to begin next."""
        return self._small if len(body) <= COUNTED_BYTES else self._large

    def _take(self, begun: int) -> tuple[PacedRequest, Body, float]:
        """The first request of the connection whose turn it is."""
        small_first = self._small and (begun < SMALL_A_TURN or not self._large)
        connection = (self._small if small_first else self._large).popleft()
        queue = self._queues[connection]
        found = queue.popleft()
        self._waiting -= 1
        if queue:
            self._line_of(queue[0][1]).append(connection)
        else:
            del self._queues[connection]
        return found

    def _turn(self) -> None:
        """A new turn: each connection begins one, as often as it lasts."""
        begun = passed = 0
        if self._waiting > BEGUN_A_TURN:
            lend_lock()
        try:
            while self._waiting and begun < BEGUN_A_TURN and passed < PASSED_A_TURN:
                request, body, received_at = self._take(begun)
                if request.is_over:
                    passed += 1
                else:
                    begun += 1 + len(body) // COUNTED_BYTES
                    request.begin_in_turn(body, received_at)
        finally:
            self._begun = BEGUN_A_TURN if self._waiting else begun
            if self._waiting or begun >= _ASKED_AT:
                asyncio.get_running_loop().call_soon(self._turn)
