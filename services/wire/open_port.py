"""A port of the gateway for any protocol: its limits, its connections, its start and stop.

The protocol's own part is a kind of `OpenPort`, with what its connections share, and a kind of
connection, which ends itself when it has lasted too long or is asked to.
"""

import abc
import asyncio
import contextlib
import math
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from services.errors import BufferFullError, ServingError, UnreadAnswersError
from services.ports import BACKLOG
from services.telemetry.loop_metrics import LoopCounter
from services.wire.byte_budget import SHARES, ByteBudget
from services.wire.compression import CompressionThread
from services.wire.loop_turns import (
    READ_BYTES,
    READ_SHIFT,
    SMALL_READ_BYTES,
    WORK_A_TURN_US,
    LoopTurns,
)
from services.wire.peer_state import has_left
from services.wire.tls_handshakes import GRACE_S, TlsHandshakes

LINGER_S = 2.0
"""Time for a peer to read the reason of the close, and to disconnect."""
ACCEPTED_A_TURN = 16
"""Connections that one turn of a busy loop takes, some 60 µs each. libuv takes one (since 1.46): of
200 callers at once, the last waited for 200 turns, each as long as `loop_turns.py` lets it be."""
TLS_ACCEPTED_A_TURN = 64
"""The same where each costs some 25 µs until its first message is whole."""
ACCEPT_AGAIN_S = 0.1
TLS_CONNECTION_BYTES = 24 * 1024
"""Memory of OpenSSL and the loop for an open connection."""
_MAX_SWEEP_S = 1.0
_SWEEP_TURN_S = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class PortLimits:
    """The limits of one port."""

    max_request_bytes: int
    """Largest body or message, before and after decompression."""
    max_connections: int
    """Connections open at once; the next one is refused."""
    keep_alive_timeout_s: float
    """Time that an idle connection stays open."""
    receive_timeout_s: float
    """Longest time for a request to arrive, from its first byte to its last; and for which a peer
    may take to read nothing of what is written to it."""
    replaces_idle: bool = False
    """True if a connection over the limit replaces the one that has waited longest for its peer, as
    suits clients that are few and known; False if it is refused."""
    max_age_s: float = 0
    """After it, with a tenth of chance, a connection of gRPC takes no new calls; 0 for never."""
    grace_s: float = 0
    """Time for calls in flight to finish after that."""


class OpenConnection(asyncio.BufferedProtocol, abc.ABC):
    """Common base of all kinds of connections, as a port's server uses them."""

    __slots__ = (
        "_budget", "_closing", "_held_bytes", "_moved_bytes", "_read_paused", "_since",
        "_transport", "_turn", "_unsent_bytes", "_waits_since", "_waits_turn", "_worked_us",
        "_write_paused",
    )  # fmt: skip

    port: "OpenPort"

    def __init__(self, now: float, budget: ByteBudget) -> None:
        self._transport: asyncio.Transport
        self._closing = self._read_paused = self._write_paused = False
        # Since when it has been idle, closing, or its peer has not taken the bytes we have for it.
        self._since = now
        self._unsent_bytes = 0
        # The last turn of the loop in which it worked, for how long, and whether it waits for one.
        self._turn = self._worked_us = 0
        self._waits_turn = False
        # What the budget is charged for beside requests in flight; since when its peer keeps some
        # of that here, and what the peer had moved by then.
        self._budget = budget
        self._held_bytes = 0
        self._waits_since = 0.0
        self._moved_bytes = 0

    @abc.abstractmethod
    def sweep(self) -> None:
        """Enforces timeouts."""

    def sweep_unsent(self, now: float, limit_s: float) -> None:
        """Gives up a peer that takes nothing of what is written, or does not hang up at the end."""
        unsent = self._transport.get_write_buffer_size()
        if unsent != self._unsent_bytes:
            self._unsent_bytes, self._since = unsent, now
        elif unsent and now - self._since > limit_s:
            self._give_up_reader(
                UnreadAnswersError(
                    f"the peer has read nothing for {limit_s:g} s (receive_timeout_s); read the "
                    "answers as they come"
                )
            )
        elif not unsent and now - self._since > LINGER_S:
            self.abort()

    @property
    def is_receiving(self) -> bool:
        """True while a request arrives."""
        return False

    @property
    def waits_since(self) -> float:
        """The loop's time since which it waits for its peer; infinite while it does not."""
        return math.inf

    def peer_has_left(self) -> bool:
        """Returns True if the peer of a connection that is not read has left; no read says so."""
        return self._read_paused and has_left(self._transport)

    @abc.abstractmethod
    def close_if_idle(self) -> None:
        """Closes, at once or after the responses in flight."""

    def abort(self) -> None:
        """Drops the connection and everything in flight on it."""
        self._closing = True
        self._forget_held()
        self._transport.abort()

    def pause_writing(self) -> None:
        """Pauses reading: the peer does not read."""
        self._write_paused = True
        self._since = self._now()
        self._unsent_bytes = self._transport.get_write_buffer_size()
        self._set_reading()
        self.settle_unsent()

    # What it holds.

    @abc.abstractmethod
    def _holds(self) -> tuple[int, bool]:
        """Bytes that it holds beside requests in flight, and whether its peer keeps them here."""

    @abc.abstractmethod
    def _moved(self) -> int:
        """Bytes that its peer has moved of what is kept here; counted from anywhere."""

    @abc.abstractmethod
    def shed(self, error: BufferFullError) -> None:
        """See `byte_budget.BudgetHolder`."""

    def pace(self, now: float) -> float | None:
        """See `byte_budget.BudgetHolder`."""
        waited_s = now - self._waits_since
        if waited_s < self._budget.grace_s:
            return None
        return (self._moved() - self._moved_bytes) / (waited_s or 1.0)

    def _settle(self) -> None:
        """Has the budget charged for what the connection holds now.

        Raises:
            BufferFullError: there is no room for more; the charge is as before.
        """
        held, waits = self._holds()
        budget, more = self._budget, held - self._held_bytes
        was_waiting = self in budget.waiting
        budget.waiting.discard(self)  # who asks for room is not the one to make it
        if more > 0:
            budget.take(more, self._held_bytes)
        else:
            budget.held_bytes += more
        self._held_bytes = held
        if waits:
            budget.waiting.add(self)
            if not was_waiting:
                self._waits_since, self._moved_bytes = self._now(), self._moved()

    def settle_unsent(self) -> None:
        """The same, when what is written has changed: a peer that does not read is given up."""
        try:
            self._settle()
        except BufferFullError as error:
            self._give_up_reader(error)

    def _is_over_share(self) -> bool:
        """Gives up a peer that leaves its share of the budget unread."""
        limit = self._budget.share_bytes
        if self._transport.get_write_buffer_size() <= limit:
            return False
        self._give_up_reader(
            UnreadAnswersError(
                f"the peer has not read {limit} bytes of answers, the limit of one connection "
                f"(max_buffered_bytes / {SHARES}); read them before asking for more"
            )
        )
        return True

    def _give_up_reader(self, error: ServingError) -> None:
        self.port.count_refusal(error)
        self.abort()

    def _forget_held(self) -> None:
        """Releases all bytes: the connection is lost, or will be at once."""
        self._budget.waiting.discard(self)
        self._budget.held_bytes -= self._held_bytes
        self._held_bytes = 0

    @abc.abstractmethod
    def _set_reading(self) -> None:
        """Starts or stops reading, as the state requires."""

    @abc.abstractmethod
    def take_turn(self, work_us: int) -> None:
        """Continues with read input, for `work_us` or a little more."""

    def _wait_turn(self, turns: LoopTurns, *, is_fresh: bool, size: int = READ_BYTES) -> None:
        """Continues in a later turn of the loop; nothing is read until then.

        Args:
            turns: of the loop.
            is_fresh: True if the connection has not worked in this turn.
            size: of what was read and waits.
        """
        if not self._waits_turn:
            self._waits_turn = True
            turns.wait(self, is_fresh=is_fresh, is_small=size <= SMALL_READ_BYTES)
            self._set_reading()

    def _count_read(self, nbytes: int) -> None:
        """Large reads take time of the loop as well."""
        turns = self.port.turns
        turns.worked_us += nbytes >> READ_SHIFT
        if turns.worked_us >= WORK_A_TURN_US:
            self._wait_turn(turns, is_fresh=True)

    def _read(self, wanted: bool) -> bool:
        """Has the transport read from now on, or not. Returns whether that is news."""
        if wanted != self._read_paused or self._transport.is_closing():
            return False
        self._read_paused = not wanted
        if wanted:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()
        return True

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


class PortMetrics(Protocol):
    """The metrics that a port of any kind needs."""

    @property
    def refusals(self) -> LoopCounter:
        """Counter of requests and connections that were refused, by the name of the error."""


class OpenPort:
    """State shared by all connections of one port.

    Attributes:
        limits: never changed.
        read_buffer: shared read buffer; a connection empties it before the next one reads.
        connections: all that are open.
        now: the event loop's time, renewed by the server's timer.
        stopping: True if connections close after their next response.
        empty: set while no connection is open.
        compression: of large bodies, shared with other ports.
        turns: of the loop, shared with other ports.
        metrics: counters of refusals.
        budget: of the bytes that the process holds, shared with other ports.
        connection_bytes: charged for each connection, whatever it holds.
    """

    def __init__(
        self,
        limits: PortLimits,
        metrics: PortMetrics,
        budget: ByteBudget,
        turns: LoopTurns | None = None,
        compression: CompressionThread | None = None,
    ) -> None:
        self.limits = limits
        self.turns = turns or LoopTurns()
        self.read_buffer = memoryview(bytearray(READ_BYTES))
        self.connections: set[OpenConnection] = set()
        self.now = 0.0
        self.stopping = False
        self.empty = asyncio.Event()
        self.empty.set()
        self.compression = compression or CompressionThread()
        self.metrics = metrics
        self.budget = budget
        self.connection_bytes = 0

    def tick(self) -> None:
        """Renews the clock."""
        self.now = asyncio.get_running_loop().time()

    def opened(self, connection: OpenConnection) -> None:
        """Registers a new connection."""
        self.connections.add(connection)
        self.budget.held_bytes += self.connection_bytes
        self.empty.clear()

    def closed(self, connection: OpenConnection) -> None:
        """Removes a lost connection."""
        self.connections.discard(connection)
        self.budget.held_bytes -= self.connection_bytes
        if not self.connections:
            self.empty.set()

    def count_refusal(self, error: ServingError) -> None:
        """Counts a request or connection that a limit or the protocol's rules refused."""
        self.metrics.refusals.labels(type(error).__name__).inc()


class PortServer:
    """Listens, supervises the connections of a port, and stops gracefully.

    Args:
        port: state that the connections share.
        connect: makes one.
        tls: with it, the port speaks TLS.
    """

    def __init__(
        self,
        port: OpenPort,
        connect: Callable[[], OpenConnection],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._port = port
        self._connect = connect
        self._handshakes: TlsHandshakes | None = None
        if tls is not None:
            waiting, refused = port.limits.max_connections, port.count_refusal
            self._handshakes = TlsHandshakes(tls, connect, waiting, refused, port.budget)
            port.connection_bytes = TLS_CONNECTION_BYTES
        self._socket: socket.socket
        self._listening: asyncio.Server | None = None
        self._opening: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._accepting: asyncio.TimerHandle | None = None
        self._unswept: list[OpenConnection] = []
        # Coarse on purpose: one timer looks through all connections.
        limits = port.limits
        times_s = (limits.keep_alive_timeout_s, limits.receive_timeout_s, limits.max_age_s)
        self._sweep_s = min(_MAX_SWEEP_S, *(time_s / 4 for time_s in times_s if time_s))

    async def start(self, listening: socket.socket) -> None:
        """Starts serving on a bound socket, which the server then owns."""
        self._sweep()
        listening.setblocking(False)
        self._socket = listening
        loop = asyncio.get_running_loop()
        if self._handshakes is not None:
            listening.listen(BACKLOG)
            loop.add_reader(listening, self._accept, self._handshakes)
        else:
            self._listening = await loop.create_server(self._taken, sock=listening, backlog=BACKLOG)

    def _accept(self, handshakes: TlsHandshakes) -> None:
        """Accepts some of the sockets that wait for TLS."""
        try:
            for _ in range(TLS_ACCEPTED_A_TURN):
                handshakes.take(self._socket.accept()[0])
        except BlockingIOError:
            return  # no socket waits
        except OSError:  # too many files are open, and whoever waits goes on to wait
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._socket)
            self._accepting = loop.call_later(
                ACCEPT_AGAIN_S, loop.add_reader, self._socket, self._accept, handshakes
            )

    def _taken(self) -> OpenConnection:
        """Makes the connection that the loop has taken; if turns are long, takes the next, too."""
        if self._port.turns.is_busy:
            with contextlib.suppress(OSError):  # nobody waits; or too many files are open
                for _ in range(ACCEPTED_A_TURN - 1):
                    self._open(self._socket.accept()[0])
        return self._connect()

    def _open(self, taken: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        opening = loop.create_task(loop.connect_accepted_socket(self._connect, taken))
        self._opening.add(opening)
        opening.add_done_callback(self._opened)

    def _opened(self, opening: asyncio.Task[Any]) -> None:
        self._opening.discard(opening)
        if not opening.cancelled():
            opening.exception()  # of a peer that has gone: its own affair

    def begin_drain(self) -> None:
        """Closes each connection after its next response, which says so; accepts new ones."""
        self._port.stopping = True

    async def stop(self, grace_s: float) -> None:
        """Accepts no new connection, closes idle ones, and answers requests in flight.

        Args:
            grace_s: time after which open connections are dropped.
        """
        port = self._port
        if self._listening is not None:
            self._listening.close()
        port.stopping = True
        if self._handshakes is not None:
            if self._accepting is not None:
                self._accepting.cancel()
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            await self._handshakes.stop(min(grace_s, GRACE_S))
        if self._opening:
            await asyncio.wait(self._opening, timeout=grace_s)
        for connection in tuple(port.connections):
            connection.close_if_idle()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await port.empty.wait()
        for connection in tuple(port.connections):
            connection.abort()
        await port.empty.wait()
        if self._timer is not None:
            self._timer.cancel()

    def _sweep(self) -> None:
        # Asked for first: a fault of ours in one connection is not to end all later sweeps.
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._sweep_s, self._sweep)
        self._port.tick()
        self._port.budget.look_for_freed()
        if self._handshakes is not None:
            self._handshakes.sweep()
        if not self._unswept:
            self._unswept = list(self._port.connections)
            self._sweep_some()

    def _sweep_some(self) -> None:
        """Sweeps for a millisecond, and goes on in the next turn: there may be 100,000 calls."""
        unswept, connections = self._unswept, self._port.connections
        if not unswept:
            return
        later = asyncio.get_running_loop().call_soon(self._sweep_some)
        until = time.monotonic() + _SWEEP_TURN_S
        while unswept and time.monotonic() < until:
            connection = unswept.pop()
            if connection in connections:
                connection.sweep()
        if not unswept:
            later.cancel()
