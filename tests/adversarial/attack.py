"""An attack, and its environment: the server's addresses, a count of responses, and the time."""

import asyncio
import contextlib
import importlib
import math
import pkgutil
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Literal, get_args

from tests.fixtures.servers import ServerProcess
from tests.fixtures.trainer_processes import TrainerProcess

ANSWER_TIMEOUT_S = 30.0
CLOSE_TIMEOUT_S = 1.0
MAX_HEAD_BYTES = 1024 * 1024
A_STORE = "a store"
"""Family of the attacks by files of the store; all others come through the ports."""

Run = Callable[["Target", Random], Awaitable[None]]
VictimName = Literal[
    "open",
    "keyed",
    "tls",
    "split",
    "processes",
    "captured",
    "trainer",
    "torchserve",
    "registry",
    "two persons",
    "registry process",
]
VICTIMS: tuple[VictimName, ...] = get_args(VictimName)


@dataclass(frozen=True, slots=True)
class Attack:
    """One row of the table.

    Attributes:
        name: name of the row; unique.
        run: coroutine function of one round.
        victim: target server: `open` without authentication; `keyed`, which requires credentials;
            one that speaks `tls`; one that is `split` into a gateway and a worker with Redis
            between them; one of two edges and a model process, as `processes`; one behind
            `flambeau capture`, as `captured`; the training service, without authentication, as
            `trainer`; one with TorchServe's API, without tokens, as `torchserve`; or one whose
            registry is open to this machine, as `registry`; one whose aliases of `linear` need `two
            persons`; or the registry of a split server, as `registry process`.
    """

    name: str
    run: Run
    victim: VictimName = "open"

    @property
    def family(self) -> str:
        """Prefix of its name; the attacks of one family have a server of their own."""
        return self.name.partition(":")[0]


class Peer:
    """A connection to the server, at the level of bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, *parts: bytes) -> None:
        """Writes, and waits until the system has accepted the data.

        Raises:
            ConnectionError: the server has closed the connection.
        """
        self.writer.writelines(parts)
        await self.writer.drain()

    async def status(self) -> str:
        """Returns the status of the next HTTP/1 response, read whole; `closed` if there is none."""
        return (await self.answer())[0]

    async def answer(self) -> tuple[str, bytes]:
        """Returns the status of the next HTTP/1 response and its body."""
        body = b""
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
                status = head.split(" ", 2)[1]
                _, found, length = head.partition("\r\ncontent-length: ")
                if found:
                    body = await self.reader.readexactly(int(length.split("\r\n", 1)[0]))
        except (ConnectionError, asyncio.IncompleteReadError):
            return "closed", b""
        except TimeoutError:
            return "no answer", b""
        return status, body


@dataclass(slots=True)
class Target:
    """The target of an attack.

    Attributes:
        server: the running server.
        store: its store; an attack that adds a model removes it in the end.
        key: credential of a client, if the server requires one.
        ends_at: end of the attack, by `time.monotonic`.
        persons: credentials of two persons who may move aliases, if moves need two.
        outcomes: counts of responses, by status or name of a code.
        wrong_answers: wrong responses that the attack reported.
    """

    server: ServerProcess | TrainerProcess
    store: Path
    key: str
    ends_at: float
    persons: tuple[str, ...] = ()
    outcomes: Counter[str] = field(default_factory=Counter)
    wrong_answers: list[str] = field(default_factory=list)

    @property
    def http_port(self) -> int:
        """Port of REST."""
        return self.server.http_port

    @property
    def grpc_port(self) -> int:
        """Port of gRPC."""
        return self.server.grpc_port

    @property
    def over(self) -> bool:
        """True if the attack's time is over."""
        return time.monotonic() >= self.ends_at

    def count(self, outcome: str, times: int = 1) -> None:
        """Counts a response."""
        self.outcomes[outcome] += times

    def wrong(self, what: str) -> None:
        """Reports a wrong response."""
        self.wrong_answers.append(what)

    @contextlib.asynccontextmanager
    async def connection(
        self, port: int, receive_bytes: int = 2**16, tls: ssl.SSLContext | None = None
    ) -> AsyncIterator[Peer]:
        """Opens a connection, closed at the end. Counts a connection that the server closes inside.

        A failed connection attempt is counted, too, and ends the round: `OSError`.

        Args:
            port: port of the server.
            receive_bytes: size of the buffer for data that the attack has not read.
            tls: TLS context for a server that requires it.
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
        """Sends one HTTP/1 POST on a new connection; counts and returns its status.

        Args:
            path: path of the request.
            body: body, sent whole.
            fields: additional header lines.
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
    """Closes a connection, even if its peer has stopped reading pending data."""
    writer.close()
    try:
        with contextlib.suppress(ConnectionError, ssl.SSLError, TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await writer.wait_closed()
    finally:
        if writer.transport.get_write_buffer_size():  # a closed one does not take an abort
            writer.transport.abort()


def attacks_on(victim: VictimName, attacks: Sequence[Attack], seed: int) -> list[Attack]:
    """Returns those of the attacks that are run on a kind of server.

    On `processes` these are its own and, as the seed chooses, a third of those on the ports of
    `open`: all of them would double the time. On `captured` these are those of HTTP/1 on `open`,
    and on `registry process` those on `registry`.
    """
    found = [attack for attack in attacks if attack.victim == victim]
    of_ports = [one for one in attacks if one.victim == "open" and one.family != A_STORE]
    more: Sequence[Attack] = ()
    if victim == "processes":
        more = Random(seed).sample(of_ports, math.ceil(len(of_ports) / 3))
    if victim == "captured":
        more = [one for one in of_ports if one.family == "HTTP/1"]
    if victim == "registry process":
        of_ports = more = [one for one in attacks if one.victim == "registry"]
    found += [
        replace(one, name=f"{victim}, {one.name}", victim=victim) for one in of_ports if one in more
    ]
    return found


def all_attacks() -> list[Attack]:
    """Returns every attack of all modules `attacks_*` of this folder, by module and in order."""
    folder = str(Path(__file__).parent)
    found: list[Attack] = []
    for module in sorted(info.name for info in pkgutil.iter_modules([folder])):
        if module.startswith("attacks_"):
            found += importlib.import_module(f"tests.adversarial.{module}").ATTACKS
    names = Counter(attack.name for attack in found)
    assert max(names.values(), default=1) == 1, names.most_common(1)
    return found
