"""Peers of the trainer's ports that are silent, slow or too many, as real sockets."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from services.trainer.metrics import TrainerMetrics
from services.trainer.server import serve_api
from services.trainer.stores.sqlite_store import SqliteJobStore
from services.trainer.training_job_service import TrainingJobService
from services.wire.http1.head import MAX_HEAD_BYTES
from tests.fixtures.redis_servers import until
from tests.fixtures.training_jobs import config, job

LIVE = b"GET /v1/health/live HTTP/1.1\r\nhost: x\r\n\r\n"
FOLLOW = b"GET /v1/jobs/0123456789abcdef/events?follow=true HTTP/1.1\r\nhost: x\r\n\r\n"
SOON_S = 0.05
TIMEOUT_S = 20.0


class Peer:
    """A socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    async def head(self) -> bytes:
        """The next answer's first line; what follows is read up to the body."""
        async with asyncio.timeout(TIMEOUT_S):
            return (await self._reader.readuntil(b"\r\n\r\n")).partition(b"\r\n")[0]

    async def hears_the_end(self) -> bytes:
        """Returns the data received before the connection was closed."""
        async with asyncio.timeout(TIMEOUT_S):
            try:
                return await self._reader.read()
            except ConnectionResetError:
                return b""

    def hang_up(self) -> None:
        self._writer.close()


@dataclass
class Ports:
    """Both ports, and what is behind them."""

    rest: int
    grpc: int
    store: SqliteJobStore
    service: TrainingJobService
    metrics: TrainerMetrics
    peers: contextlib.ExitStack

    async def meet(self, number: int = 0) -> Peer:
        """A peer of the port with this number, or of REST."""
        peer = Peer(*await asyncio.open_connection("127.0.0.1", number or self.rest))
        self.peers.callback(peer.hang_up)
        return peer

    def closed(self, reason: str) -> float | None:
        name = "flambeau_training_closed_connections_total"
        return self.metrics.registry.get_sample_value(name, {"reason": reason})


@contextlib.asynccontextmanager
async def port(folder: Path, **limits: Any) -> AsyncIterator[Ports]:
    """Ports with these limits, until the block ends."""
    given = config(folder, http_port=0, grpc_port=0, **limits)
    store = SqliteJobStore(Path(given.jobs), 1000)
    metrics = TrainerMetrics("")
    service = TrainingJobService(store, given)
    async with serve_api(given, service, None, None, metrics) as (rest, grpc):
        with contextlib.ExitStack() as peers:
            yield Ports(rest, grpc, store, service, metrics, peers)
    await store.close()


@pytest.mark.parametrize("sent", [b"", b"\r\n", LIVE], ids=["nothing", "an empty line", "one"])
async def test_a_peer_without_a_request_is_closed(tmp_path: Path, sent: bytes) -> None:
    async with port(tmp_path, keep_alive_timeout_s=SOON_S) as served:
        peer = await served.meet()
        peer.send(sent)
        heard = await peer.hears_the_end()
        assert heard.startswith(b"HTTP/1.1 200" if sent == LIVE else b"")
        assert served.closed("slow") == 0


@pytest.mark.parametrize(
    ("path", "status"),
    [
        (b"/v1/jobs/0123456789abcdef", 200),
        (b"/v1/jobs/0123456789abcde%66", 200),
        (b"/v1%2Fjobs/0123456789abcdef", 404),
        (b"/v1/jobs%2f0123456789abcdef", 404),
        (b"/v1/jobs/0123456789abcdef%2Fevents", 404),
        (b"/v1/health%2Flive", 404),
    ],
)
async def test_an_encoded_separator_separates_nothing(
    tmp_path: Path, path: bytes, status: int
) -> None:
    """Or what a proxy in front lets through is not what is answered."""
    async with port(tmp_path) as served:
        await served.store.create(job(), [])
        peer = await served.meet()
        peer.send(LIVE.replace(b"/v1/health/live", path))
        assert (await peer.head()).split()[1] == str(status).encode()


@pytest.mark.parametrize(
    "sent",
    [b"GET /", LIVE[:-2], b"POST /v1/jobs HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{"],
    ids=["a line", "a head", "a body"],
)
async def test_so_is_one_that_does_not_end_its_request(tmp_path: Path, sent: bytes) -> None:
    async with port(tmp_path, receive_timeout_s=SOON_S) as served:
        peer = await served.meet()
        peer.send(sent)
        assert (await peer.hears_the_end()).startswith(b"HTTP/1.1 408 ")
        assert served.closed("slow") == 1


async def test_so_is_one_that_reads_no_answers(tmp_path: Path) -> None:
    async with port(tmp_path, receive_timeout_s=SOON_S) as served:
        peer = await served.meet()
        peer.send(2000 * LIVE.replace(b"health/live", b"recipe.schema.json"))
        await until(lambda: served.closed("slow") == 1)


async def test_silent_peers_lock_nobody_out(tmp_path: Path) -> None:
    async with port(tmp_path, max_connections=3) as served:
        silent = [await served.meet() for _ in range(3)]
        caller = await served.meet()
        caller.send(LIVE)
        assert await caller.head() == b"HTTP/1.1 200 OK"
        assert await silent[0].hears_the_end() == b""
        assert served.closed("full") == 1


async def test_who_is_being_answered_is_neither_closed_nor_moved(tmp_path: Path) -> None:
    async with port(tmp_path, max_connections=1, keep_alive_timeout_s=SOON_S) as served:
        await served.store.create(job(), [])
        follower = await served.meet()
        follower.send(FOLLOW)
        assert await follower.head() == b"HTTP/1.1 200 OK"
        late = await served.meet()
        late.send(LIVE)
        assert await late.head() == b"HTTP/1.1 503 Service Unavailable"
        await late.hears_the_end()
        silent = await served.meet()
        await silent.hears_the_end()  # as long as the follower was silent, too
        served.service.stop()
        assert (await follower.hears_the_end()).endswith(b"0\r\n\r\n")


@pytest.mark.skipif(not hasattr(socket, "TCP_INFO"), reason="only Linux tells a peer's state")
async def test_a_follower_that_left_makes_room(tmp_path: Path) -> None:
    async with port(tmp_path, max_connections=1) as served:
        await served.store.create(job(), [])
        follower = await served.meet()
        follower.send(FOLLOW * 3)  # it is not read any more while it is answered
        assert await follower.head() == b"HTTP/1.1 200 OK"
        follower.hang_up()
        caller = await served.meet()
        caller.send(LIVE)
        assert await caller.head() == b"HTTP/1.1 200 OK"


async def test_silent_peers_of_grpc_are_closed_too(tmp_path: Path) -> None:
    async with port(tmp_path, max_connections=1, receive_timeout_s=SOON_S) as served:
        silent = await served.meet(served.grpc)
        await silent.hears_the_end()


async def test_a_head_without_an_end_is_refused(tmp_path: Path) -> None:
    async with port(tmp_path) as served:
        peer = await served.meet()
        peer.send(LIVE[:-2] + b"x: " + MAX_HEAD_BYTES * b"x")
        assert await peer.head() == b"HTTP/1.1 431 Request Header Fields Too Large"
