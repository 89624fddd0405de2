"""An attack, and what it is given: the server's addresses, a count of answers, and the time."""

import asyncio
import contextlib
import importlib
import pkgutil
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Literal, get_args

from tests.fixtures.servers import ServerProcess

ANSWER_TIMEOUT_S = 30.0
CLOSE_TIMEOUT_S = 1.0
MAX_HEAD_BYTES = 1024 * 1024

Run = Callable[["Target", Random], Awaitable[None]]
VictimName = Literal["open", "keyed", "tls", "split"]
VICTIMS: tuple[VictimName, ...] = get_args(VictimName)


@dataclass(frozen=True, slots=True)
class Attack:
    """One row of the table.

    Attributes:
        name: of the row; unique.
        run: one round of it.
        victim: the server it is for: `open` to everybody; `keyed`, which asks for credentials;
            one that speaks `tls`; or one that is `split` into a gateway and a worker with Redis
            between them.
    """

    name: str
    run: Run
    victim: VictimName = "open"

    @property
    def family(self) -> str:
        """What its name begins with; the attacks of one family have a server of their own."""
        return self.name.partition(":")[0]


class Peer:
    """A connection to the server, as bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, *parts: bytes) -> None:
        """Writes, and waits until the system has taken it.

        Raises:
            ConnectionError: the server has closed the connection.
        """
        self.writer.writelines(parts)
        await self.writer.drain()

    async def status(self) -> str:
        """The status of the next HTTP/1 answer, which is read whole; `closed` if there is none."""
        return (await self.answer())[0]

    async def answer(self) -> tuple[str, bytes]:
        """The status of the next HTTP/1 answer and its body."""
        body = b""
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
                status = head.split(" ", 2)[1]
                _, found, length = head.partition("content-length: ")
                if found:
                    body = await self.reader.readexactly(int(length.split("\r\n", 1)[0]))
        except (ConnectionError, asyncio.IncompleteReadError):
            return "closed", b""
        except TimeoutError:
            return "no answer", b""
        return status, body


@dataclass(slots=True)
class Target:
    """What an attack is aimed at.

    Attributes:
        server: the running server.
        store: its store; an attack that adds a model removes it in the end.
        key: a credential of a caller, where the server asks for one.
        ends_at: when the attack is over, by `time.monotonic`.
        outcomes: what was answered, by status or name of a code.
        wrong_answers: told by the attack.
    """

    server: ServerProcess
    store: Path
    key: str
    ends_at: float
    outcomes: Counter[str] = field(default_factory=Counter)
    wrong_answers: list[str] = field(default_factory=list)

    @property
    def http_port(self) -> int:
        """REST."""
        return self.server.http_port

    @property
    def grpc_port(self) -> int:
        """gRPC."""
        return self.server.grpc_port

    @property
    def over(self) -> bool:
        """Whether the attack's time is over."""
        return time.monotonic() >= self.ends_at

    def count(self, outcome: str, times: int = 1) -> None:
        """Counts an answer."""
        self.outcomes[outcome] += times

    def wrong(self, what: str) -> None:
        """Tells of an answer that is wrong."""
        self.wrong_answers.append(what)

    @contextlib.asynccontextmanager
    async def connection(
        self, port: int, receive_bytes: int = 2**16, tls: ssl.SSLContext | None = None
    ) -> AsyncIterator[Peer]:
        """A connection, closed at the end. One that the server closes inside is counted.

        One that is not to be had is counted, too, and ends the round: `OSError`.

        Args:
            port: of the server.
            receive_bytes: read ahead of what the attack asks for.
            tls: for a server that wants it.
        """
        try:
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", port, limit=max(receive_bytes, MAX_HEAD_BYTES), ssl=tls
            )
        except ConnectionError:
            self.count("no connection")
            raise
        try:
            yield Peer(reader, writer)
        except ConnectionError:
            self.count("closed")
        finally:
            await _close(writer)

    async def post(self, path: str, body: bytes, *fields: str) -> tuple[str, bytes]:
        """One POST of HTTP/1 on a connection of its own; its status is counted, and returned.

        Args:
            path: of the request.
            body: sent whole.
            fields: further header lines.
        """
        lines = [f"POST {path} HTTP/1.1", "host: x", f"content-length: {len(body)}", *fields]
        answer = "closed", b""
        async with self.connection(self.http_port) as peer:
            peer.writer.writelines(["\r\n".join([*lines, "", ""]).encode(), body])
            with contextlib.suppress(ConnectionError):  # refused before the body; there is a status
                await peer.writer.drain()
            answer = await peer.answer()
            self.count(answer[0])
        return answer


async def _close(writer: asyncio.StreamWriter) -> None:
    """Closes a connection, although its peer may have stopped reading what is still to be sent."""
    writer.close()
    try:
        with contextlib.suppress(ConnectionError, ssl.SSLError, TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await writer.wait_closed()
    finally:
        if writer.transport.get_write_buffer_size():  # a closed one does not take an abort
            writer.transport.abort()


def all_attacks() -> list[Attack]:
    """Every attack of every module `attacks_*` of this folder, by module and in its order."""
    folder = str(Path(__file__).parent)
    found: list[Attack] = []
    for module in sorted(info.name for info in pkgutil.iter_modules([folder])):
        if module.startswith("attacks_"):
            found += importlib.import_module(f"tests.adversarial.{module}").ATTACKS
    names = Counter(attack.name for attack in found)
    assert max(names.values(), default=1) == 1, names.most_common(1)
    return found
