"""TLS handshakes of a port: few at once, none before its first message is complete.

In: sockets that were accepted. Out: connections whose handshake is done.

OpenSSL takes memory for what a ClientHello claims to be (128 KiB), and keeps it until the peer goes
on: 9,000 peers that sent 25 bytes each took 1.4 GB of a server that knew of none of them.

Rules:
- a peer that says nothing, or not all of its first message, costs a socket: the kernel tells when
  so many bytes are there, and they are looked at where they lie;
- what is no ClientHello of one record is refused: those of clients take 300 bytes to 2 KB, and a
  record has up to 16 KiB (RFC 8446, 4.1.2 and 5.1);
- at most `MAX_RUNNING` handshakes run, which the budget of bytes is charged for; one begins in a
  turn of the loop, and the oldest makes room for one that waits;
- the newest begins first: behind hundreds that came at once, each would wait for all of them, and
  whoever is new is the likeliest to be still there;
- of sockets that wait for either, the oldest makes room for a new one.
"""

import asyncio
import contextlib
import fcntl
import socket
import ssl
import termios
import time
from array import array
from collections import deque
from collections.abc import Callable
from typing import Any

from services.errors import ServingError
from services.wire.byte_budget import ByteBudget

MAX_RUNNING = 1024
HANDSHAKE_BYTES = 64 * 1024
"""Memory of a running handshake; measured: 53 KiB."""
GRACE_S = 0.5
"""For those that run as a port stops; a handshake takes one or two ways to the peer and back."""
LONGEST_S = 10.0
"""Between the first byte and the end, and before the first byte."""
_RECORD_HEAD_BYTES, _MESSAGE_HEAD_BYTES = 5, 4
_HANDSHAKE, _CLIENT_HELLO = 22, 1
_MAX_RECORD_BYTES = 16_384
_ALERT = b"\x15\x03\x01\x00\x02\x02\x0a"
"""A fatal `unexpected_message` (RFC 8446, 6)."""


class TlsHandshakeError(ServingError):
    """A peer does not begin TLS as clients do, or takes too long for it."""


class _Peer:
    """A socket that was accepted.

    Attributes:
        taken: the socket.
        since: `time.monotonic()` second of its last step.
        size: of its first record with its head, once that is known.
    """

    __slots__ = ("since", "size", "taken")

    def __init__(self, taken: socket.socket) -> None:
        self.taken = taken
        self.since = time.monotonic()
        self.size = 0


class TlsHandshakes:
    """The handshakes of one port; it belongs to the event loop.

    Args:
        tls: of the port.
        connect: makes the protocol of a connection, once its handshake is done.
        max_waiting: sockets that may wait for their peer, or for others' handshakes.
        refused: callback for each aborted handshake.
        budget: budget of the bytes that the process buffers.
    """

    def __init__(
        self,
        tls: ssl.SSLContext,
        connect: Callable[[], asyncio.BaseProtocol],
        max_waiting: int,
        refused: Callable[[ServingError], None],
        budget: ByteBudget,
    ) -> None:
        self._tls, self._connect = tls, connect
        self._max_waiting, self._refused, self._budget = max_waiting, refused, budget
        self._silent: dict[socket.socket, _Peer] = {}
        """Peers whose first message is incomplete, the oldest first."""
        self._ready: deque[_Peer] = deque()
        """Peers whose handshake may begin, the oldest first."""
        self._running: dict[asyncio.Task[Any], _Peer] = {}
        """The oldest first."""
        self._turn_asked = False

    def take(self, taken: socket.socket) -> None:
        """Begins a handshake as soon as the peer has sent its first message."""
        taken.setblocking(False)
        if len(self._silent) + len(self._ready) >= self._max_waiting:
            oldest = next(iter(self._silent.values())) if self._silent else self._ready[0]
            self._give_up(oldest, "a newer connection needs its place")
        self._silent[taken] = _Peer(taken)
        self._wait_for(taken, _RECORD_HEAD_BYTES + _MESSAGE_HEAD_BYTES)
        asyncio.get_running_loop().add_reader(taken, self._look, taken)

    def sweep(self) -> None:
        """Aborts handshakes that took too long."""
        now = time.monotonic()
        waiting = (*self._silent.values(), *self._ready)
        late = [peer for peer in waiting if now - peer.since > LONGEST_S]
        late += [peer for peer in self._running.values() if now - peer.since > LONGEST_S]
        for peer in late:
            self._give_up(peer, "it took too long")
        self._ask_turn()

    async def stop(self, grace_s: float) -> None:
        """Accepts no new handshakes, and lets running ones finish within `grace_s`."""
        for peer in (*self._silent.values(), *self._ready):
            self._forget(peer)
        if self._running:
            await asyncio.wait(self._running, timeout=grace_s)
        for running in list(self._running):
            running.cancel()
        if self._running:
            await asyncio.wait(self._running)

    def _wait_for(self, taken: socket.socket, size: int) -> None:
        """Has the loop told of a socket when so many bytes are there, or no more will come."""
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)

    def _look(self, taken: socket.socket) -> None:
        """Peeks at received bytes, and leaves them in the socket."""
        peer = self._silent[taken]
        wanted = peer.size or _RECORD_HEAD_BYTES + _MESSAGE_HEAD_BYTES
        try:
            data = taken.recv(wanted, socket.MSG_PEEK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if len(data) < wanted or taken.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._forget(peer)  # it has hung up
        elif peer.size:
            self._begin_later(peer)
        elif _begins_tls(data):
            peer.size = _RECORD_HEAD_BYTES + int.from_bytes(data[3:5], "big")
            if _bytes_in(taken) >= peer.size:
                self._begin_later(peer)
            else:
                self._wait_for(taken, peer.size)
        else:
            self._give_up(peer, "it did not begin with a ClientHello in one record")

    def _begin_later(self, peer: _Peer) -> None:
        self._stop_looking(peer)
        self._ready.append(peer)
        self._ask_turn()

    def _ask_turn(self) -> None:
        if not self._ready or self._turn_asked:
            return
        if len(self._running) < MAX_RUNNING:
            self._turn_asked = True
            asyncio.get_running_loop().call_soon(self._turn)
            return
        self._give_up(next(iter(self._running.values())), "a newer connection needs its place")

    def _turn(self) -> None:
        """Begins one handshake."""
        self._turn_asked = False
        if not self._ready:
            return
        peer = self._ready.pop()
        self._budget.held_bytes += HANDSHAKE_BYTES
        if not self._budget.has_room_for(HANDSHAKE_BYTES):
            self._budget.held_bytes -= HANDSHAKE_BYTES
            self._give_up(peer, "the server's buffers are full (max_buffered_bytes)")
            self._ask_turn()
            return
        peer.since = time.monotonic()
        self._wait_for(peer.taken, 1)
        loop = asyncio.get_running_loop()
        running = loop.create_task(
            loop.connect_accepted_socket(
                self._connect, peer.taken, ssl=self._tls, ssl_handshake_timeout=LONGEST_S
            )
        )
        self._running[running] = peer
        running.add_done_callback(self._ended)
        self._ask_turn()

    def _ended(self, running: asyncio.Task[Any]) -> None:
        del self._running[running]
        self._budget.held_bytes -= HANDSHAKE_BYTES
        if not running.cancelled() and (error := running.exception()) is not None:
            self._refused(TlsHandshakeError(f"a TLS handshake failed: {error}"))
        self._ask_turn()

    def _give_up(self, peer: _Peer, why: str) -> None:
        if peer in self._running.values():
            with contextlib.suppress(OSError):  # its handshake fails, and is counted then
                peer.taken.shutdown(socket.SHUT_RDWR)
            return
        self._refused(TlsHandshakeError(f"a TLS handshake was aborted: {why}"))
        with contextlib.suppress(OSError):
            peer.taken.recv(_MAX_RECORD_BYTES)  # or the system resets the connection
            peer.taken.send(_ALERT)
        self._forget(peer)

    def _forget(self, peer: _Peer) -> None:
        self._stop_looking(peer)
        with contextlib.suppress(ValueError):
            self._ready.remove(peer)
        peer.taken.close()

    def _stop_looking(self, peer: _Peer) -> None:
        if self._silent.pop(peer.taken, None) is not None:
            asyncio.get_running_loop().remove_reader(peer.taken)


def _bytes_in(taken: socket.socket) -> int:
    """Returns the number of bytes that a socket has received."""
    found = array("i", [0])
    fcntl.ioctl(taken, termios.FIONREAD, found)
    return found[0]


def _begins_tls(data: bytes) -> bool:
    """Returns True if bytes are the head of a record with a complete ClientHello."""
    size = int.from_bytes(data[3:5], "big")
    message = int.from_bytes(data[6:9], "big")
    return (
        data[0] == _HANDSHAKE
        and data[1] == 3
        and data[5] == _CLIENT_HELLO
        and message + _MESSAGE_HEAD_BYTES <= size <= _MAX_RECORD_BYTES
    )
