"""TLS handshakes on a port: the cost of stalled ones, and their effect on other clients."""

import asyncio
import contextlib
import itertools
import os
import select
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Iterator

import pytest

from services.errors import BufferFullError, ServingError
from services.resident_memory import resident_bytes
from services.wire.byte_budget import ByteBudget
from services.wire.tls_handshakes import (
    HANDSHAKE_BYTES,
    MAX_RUNNING,
    TlsHandshakeError,
    TlsHandshakes,
)
from tests.fixtures.certificates import Authority
from tests.unit.wire.http_wire import on_loop

WAIT_S = 20.0
SWEEP_S = 0.1
MIB = 2**20


class Protocol(asyncio.Protocol):
    """Greets, and hangs up."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.write(b"hello")  # type: ignore[attr-defined]  # uvloop's has no base class
        transport.close()


class Door:
    """A listening socket with handshakes behind it."""

    def __init__(self, tls: ssl.SSLContext, max_waiting: int = 4096) -> None:
        self.refused: list[ServingError] = []
        self.budget = ByteBudget(2**30)
        self.handshakes = TlsHandshakes(
            tls, Protocol, max_waiting, self.refused.append, self.budget
        )
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=4096)
        self._listening.setblocking(False)
        self.address = self._listening.getsockname()
        self._sweeping: asyncio.TimerHandle

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator["Door"]:
        """Takes whoever comes, until the block ends."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self._listening, self._accept)
        self._sweep()
        try:
            yield self
        finally:
            self._sweeping.cancel()
            loop.remove_reader(self._listening)
            self._listening.close()
            await self.handshakes.stop(0.1)

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                self.handshakes.take(self._listening.accept()[0])

    def _sweep(self) -> None:
        self.handshakes.sweep()
        self._sweeping = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)

    async def greet(self, tls: ssl.SSLContext) -> bytes:
        """Returns the data that a regular client receives."""
        async with asyncio.timeout(WAIT_S):
            reader, writer = await asyncio.open_connection(*self.address, ssl=tls)
            heard = await reader.read()
            writer.close()
        return heard

    async def say(self, sent: bytes) -> bytes:
        """Returns the data that a peer receives after sending, until the connection closes."""
        async with asyncio.timeout(WAIT_S):
            reader, writer = await asyncio.open_connection(*self.address)
            writer.write(sent)
            heard = await reader.read()
            writer.close()
        return heard

    async def flood(self, peers: contextlib.ExitStack, count: int, sent: bytes) -> None:
        """Peers that send something, and stay."""
        for _ in range(count):
            peer = peers.enter_context(socket.create_connection(self.address))
            peer.sendall(sent)
            await asyncio.sleep(0)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def ours(authority: Authority) -> ssl.SSLContext:
    pair = authority.issue("server")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    return context


@pytest.fixture
def theirs(authority: Authority) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=authority.file)


@pytest.fixture
def peers() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


def client_hello(tls: ssl.SSLContext) -> bytes:
    """The first message of a client."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        tls.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1").do_handshake()
    return outgoing.read()


def claiming(size: int, sent: int) -> bytes:
    """Returns a record with the beginning of a ClientHello of some size."""
    content = (b"\x01" + size.to_bytes(3, "big") + b"\x03\x03").ljust(sent, b"\0")
    return b"\x16\x03\x01" + len(content).to_bytes(2, "big") + content


def test_peers_that_send_no_whole_message_cost_next_to_nothing(
    ours: ssl.SSLContext, theirs: ssl.SSLContext, peers: contextlib.ExitStack
) -> None:
    hello = client_hello(theirs)

    async def test() -> None:
        async with Door(ours).open() as door:
            assert await door.greet(theirs) == b"hello"
            before = resident_bytes(os.getpid())
            for sent in (hello[:9], hello[:-1], b""):
                await door.flood(peers, 200, sent)
            assert await door.greet(theirs) == b"hello"
            assert resident_bytes(os.getpid()) - before < 10 * MIB
            assert not door.refused

    on_loop(test)


@pytest.mark.parametrize(
    "sent",
    [
        claiming(131_000, 20),
        claiming(131_000, 16_000),
        b"\x16\x03\x01\xff\xff\x01\x00\xff\x00",
        b"GET /v2/health/live HTTP/1.1\r\nhost: x\r\n\r\n",
        b"\x17\x03\x03\x00\x20" + bytes(32),
    ],
)
def test_what_is_no_client_hello_in_one_record_is_refused(
    sent: bytes, ours: ssl.SSLContext, theirs: ssl.SSLContext
) -> None:
    async def test() -> None:
        async with Door(ours).open() as door:
            assert (await door.say(sent))[:1] == b"\x15"  # an alert
            assert [type(error) for error in door.refused] == [TlsHandshakeError]
            assert await door.greet(theirs) == b"hello"

    on_loop(test)


def test_handshakes_that_do_not_go_on_make_room(
    ours: ssl.SSLContext, theirs: ssl.SSLContext, peers: contextlib.ExitStack
) -> None:
    hello = client_hello(theirs)

    async def test() -> None:
        async with Door(ours).open() as door:
            await door.flood(peers, MAX_RUNNING + 20, hello)
            assert await door.greet(theirs) == b"hello"
            assert door.refused
            assert 0 < door.budget.held_bytes <= MAX_RUNNING * HANDSHAKE_BYTES
        assert door.budget.held_bytes == 0

    on_loop(test)


def test_the_newest_peer_begins_first(
    ours: ssl.SSLContext, theirs: ssl.SSLContext, peers: contextlib.ExitStack
) -> None:
    hello = client_hello(theirs)

    async def test() -> None:
        async with Door(ours).open() as door:
            came = []
            for _ in range(100):
                came.append(peers.enter_context(socket.create_connection(door.address)))
                came[-1].sendall(hello)
                came[-1].setblocking(False)
            async with asyncio.timeout(WAIT_S):
                await asyncio.get_running_loop().sock_recv(came[-1], 1)
            answered, _, _ = select.select(came[:-1], [], [], 0)
            assert len(answered) < 20

    on_loop(test)


def test_the_oldest_that_wait_make_room(
    ours: ssl.SSLContext, theirs: ssl.SSLContext, peers: contextlib.ExitStack
) -> None:
    async def test() -> None:
        async with Door(ours, max_waiting=5).open() as door:
            await door.flood(peers, 20, b"")
            assert await door.greet(theirs) == b"hello"
            assert len(door.refused) == 16

    on_loop(test)


def test_peers_that_reset_their_connection_cost_no_descriptor(
    ours: ssl.SSLContext, theirs: ssl.SSLContext
) -> None:
    hello = client_hello(theirs)

    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    async def test() -> None:
        async with Door(ours).open() as door:
            assert await door.greet(theirs) == b"hello"
            before = descriptors()
            for number in range(300):
                with socket.create_connection(door.address) as peer:
                    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    peer.sendall(hello[: len(hello) - number % 3 * 50])
                await asyncio.sleep(0)
            # It is accepted after all of them.
            assert await door.greet(theirs) == b"hello"
            assert descriptors() <= before + 5

    on_loop(test)


def test_a_full_budget_takes_no_handshake(ours: ssl.SSLContext, theirs: ssl.SSLContext) -> None:
    async def test() -> None:
        async with Door(ours).open() as door:
            door.budget.take(door.budget.limit_bytes // 8 * 7)
            for _ in range(100):
                with contextlib.suppress(BufferFullError):
                    while True:
                        door.budget.take(2**16)
            with pytest.raises((ConnectionError, ssl.SSLError)):
                await door.greet(theirs)
            assert "max_buffered_bytes" in str(door.refused[0])
            door.budget.give(2**20)
            assert await door.greet(theirs) == b"hello"

    on_loop(test)


def test_a_peer_that_hangs_up_is_forgotten(ours: ssl.SSLContext, theirs: ssl.SSLContext) -> None:
    async def test() -> None:
        async with Door(ours, max_waiting=1).open() as door:
            sent = (b"", b"\x16\x03", client_hello(theirs)[:100])
            # With no turn of the loop it hangs up before it is taken, with some afterwards.
            for turns, words in itertools.product((0, 1, 20), sent):
                with socket.create_connection(door.address) as peer:
                    peer.sendall(words)
                    for _ in range(turns):
                        await asyncio.sleep(0)
            assert await door.greet(theirs) == b"hello"

    on_loop(test)
