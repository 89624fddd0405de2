"""Limits the requests that one turn of the event loop begins; the next ones wait for later turns.

A turn lasts until all input of its sockets is handled, and meanwhile no batch starts and no
response is sent. With a thousand callers at once the device got one batch every 30 ms, most
requests were refused, and throughput was a tenth of the capacity until callers timed out.

Rules:
- connections take turns, so that none waits for thousands of another's; requests of a connection
  begin in order of arrival; a large one counts as several;
- the first `SMALL_A_TURN` are small requests, so that hundreds of callers with large ones do not
  delay them; at least one large request begins in each turn;
- abandoned requests are skipped;
- none is refused for having waited: a refusal costs as much as a response, since most of either is
  the system call that sends it, and a burst would be lost that could have been served.
"""

import asyncio
import time
from collections import deque
from typing import Protocol

from services.errors import ServingError, TooManyInFlightError
from services.interpreter_lock import lend_lock
from services.wire.body import Body

BEGUN_A_TURN = 32
"""Requests begun in one turn: to read and admit one takes some 25 µs, so that a turn of them stays
under 1 ms. `make bench-overload` shows its effect; docs/adr/0045 has the rates without it."""
COUNTED_BYTES = 4096
"""A request counts once more for each so many bytes: the worst JSON of this size takes 0.3 ms
(docs/adr/0045)."""
SMALL_A_TURN = 24
"""Requests of at most `COUNTED_BYTES` that go first, while larger ones wait: three quarters of a
turn, so that the larger ones keep a quarter."""
MAX_WAITING = 16_384
"""Requests whose bodies are held. Beyond it, a connection with more than its share of waiting
requests is refused more. With 1,024, half as many were answered in an overload of 32,000 a second,
since a refusal costs as much as an answer (docs/adr/0045)."""
PASSED_A_TURN = 512
"""Abandoned requests that one turn skips: all of them take 0.2 ms."""
_ASKED_AT = BEGUN_A_TURN // 2
"""A turn that begins fewer requests needs no callback to reset the count."""


class PacedRequest(Protocol):
    """A completely received request."""

    @property
    def is_over(self) -> bool:
        """True once it is answered or abandoned."""

    def begin_in_turn(self, body: Body, received_at: float) -> None:
        """Starts the work.

        Args:
            body: body of the request, uncompressed.
            received_at: `time.monotonic()` second of its last byte.
        """

    def refuse(self, error: ServingError) -> None:
        """Refuses a request that was not begun."""


class RequestPacer:
    """Schedules new requests in the turns of one event loop."""

    __slots__ = ("_begun", "_large", "_queues", "_small", "_waiting")

    def __init__(self) -> None:
        self._begun = 0
        """Count of this turn; too many while any wait, so that new ones queue behind them."""
        self._queues: dict[object, deque[tuple[PacedRequest, Body, float]]] = {}
        """Waiting requests by connection."""
        self._small: deque[object] = deque()
        """Connections whose next request is small; the first one is next."""
        self._large: deque[object] = deque()
        """Connections whose next request is large."""
        self._waiting = 0
        """Total of waiting requests."""

    def begin(self, request: PacedRequest, body: Body, connection: object) -> None:
        """Begins a request now, or in a later turn.

        Args:
            request: complete request.
            body: its body, uncompressed.
            connection: connection that received it.
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
        """Returns the queue of connections whose next body has this size class."""
        return self._small if len(body) <= COUNTED_BYTES else self._large

    def _take(self, begun: int) -> tuple[PacedRequest, Body, float]:
        """Removes and returns the first request of the next connection."""
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
        """Runs a turn: connections begin one request each, repeatedly, up to the limit."""
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
