"""The clients, against a server that answers slowly, in pieces, wrongly or not at all."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping

import numpy as np
import pytest

from bench.loads import rest_shooter
from bench.loads.rest_shooter import RestShooter
from bench.loads.shooter import Outcome
from bench.measured.golden_model import http_request
from bench.peers.peer import Ask
from tests.unit.bench.shooting import hang_up, listening, shoot


def ask(path: str, body: bytes, headers: Mapping[str, str]) -> Ask:
    return Ask(path=path, body=body, headers=headers, read=lambda *_: np.zeros(1, np.float32))


ASK = ask("/v2/models/m/infer", b"ab\r\n\r\ncd", {"Content-Type": "x"})
OK = b'HTTP/1.1 200 OK\r\nContent-Type: x\r\ncontent-length: 5\r\n\r\n{"a"}'


async def read_request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    return head + await reader.readexactly(len(ASK.body))


class Server:
    """Calls a script for every connection, with its number."""

    def __init__(self) -> None:
        self.connections = 0
        self.requests: list[bytes] = []

    @contextlib.asynccontextmanager
    async def serving(
        self, *replies: list[bytes], ends_after: int = 10**9
    ) -> AsyncIterator[RestShooter]:
        """Answers request after request with `replies`, each in pieces.

        Args:
            replies: pieces of one answer each; the last is repeated.
            ends_after: number of responses after which a connection is closed.
        """

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.connections += 1
            for _ in range(ends_after):
                self.requests.append(await read_request(reader))
                pieces = replies[min(len(self.requests), len(replies)) - 1]
                for piece in pieces:
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0)

        async with listening(handle) as address:
            shooter = RestShooter(address, [ASK])
            try:
                yield shooter
            finally:
                await shooter.close()


def test_a_request_is_whole() -> None:
    assert http_request(ASK) == (
        b"POST /v2/models/m/infer HTTP/1.1\r\nHost: bench\r\nContent-Type: x\r\n"
        b"Content-Length: 8\r\n\r\nab\r\n\r\ncd"
    )


async def test_a_connection_is_kept_from_request_to_request() -> None:
    server = Server()
    async with server.serving([OK]) as shooter:
        for _ in range(3):
            assert await shoot(shooter) == (Outcome.ANSWERED, b'{"a"}')
    assert server.connections == 1
    assert server.requests == [http_request(ASK)] * 3


async def test_requests_at_once_take_a_connection_each() -> None:
    server = Server()
    async with server.serving([OK]) as shooter:
        answers = await asyncio.gather(*(shoot(shooter) for _ in range(5)))
        assert len(shooter.idle) == 5
    assert answers == [(Outcome.ANSWERED, b'{"a"}')] * 5
    assert server.connections == 5


@pytest.mark.parametrize("ends_after", [10**9, 1])
async def test_requests_wait_where_no_more_connections_may_be(
    ends_after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rest_shooter, "MAX_CONNECTIONS", 2)
    server = Server()
    async with server.serving([OK], ends_after=ends_after) as shooter:
        answers = await asyncio.gather(*(shoot(shooter) for _ in range(5)))
        assert len(shooter.connections) <= 2
    assert answers == [(Outcome.ANSWERED, b'{"a"}')] * 5
    assert server.connections == (2 if ends_after > 1 else 5)


@pytest.mark.parametrize("cut", [1, 10, 30, len(OK) - 6, len(OK) - 5, len(OK) - 1])
async def test_an_answer_may_come_in_pieces(cut: int) -> None:
    async with Server().serving([OK[:cut], OK[cut:]]) as shooter:
        assert await shoot(shooter) == (Outcome.ANSWERED, b'{"a"}')


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (b"503", Outcome.REFUSED),
        (b"504", Outcome.EXPIRED),
        (b"400", Outcome.WRONG),
        (b"404", Outcome.WRONG),
        (b"500", Outcome.FAILED),
        (b"499", Outcome.FAILED),
    ],
)
async def test_a_status_says_how_a_request_ended(status: bytes, outcome: Outcome) -> None:
    async with Server().serving([OK.replace(b"200", status)]) as shooter:
        assert (await shoot(shooter))[0] is outcome


async def test_a_connection_the_server_ends_between_requests_is_replaced() -> None:
    server = Server()
    async with server.serving([OK], ends_after=1) as shooter:
        for _ in range(3):
            assert (await shoot(shooter))[0] is Outcome.ANSWERED
    assert server.connections == 3


async def test_a_connection_that_says_it_closes_is_not_used_again() -> None:
    closing = OK.replace(b"Content-Type: x", b"Connection: Close")
    server = Server()
    async with server.serving([closing]) as shooter:
        for _ in range(2):
            assert (await shoot(shooter))[0] is Outcome.ANSWERED
    assert server.connections == 2


async def test_an_answer_that_breaks_off_has_failed() -> None:
    async with Server().serving([OK[:-1]], ends_after=1) as shooter:
        outcome, reason = await shoot(shooter)
    assert outcome is Outcome.FAILED
    assert reason.startswith(b"connection lost")


async def test_nobody_there_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    async with listening(hang_up) as address:
        pass
    monkeypatch.setattr(rest_shooter, "MAX_CONNECTIONS", 1)
    lonely = RestShooter(address, [ASK])
    answers = await asyncio.gather(shoot(lonely), shoot(lonely))
    await lonely.close()
    for outcome, reason in answers:
        assert outcome is Outcome.FAILED
        assert reason.startswith(b"cannot connect")


async def test_a_caller_that_leaves_waits_for_no_answer() -> None:
    server = Server()
    async with server.serving([]) as shooter, asyncio.timeout(10):
        await shooter.send_and_leave(0, patience_s=0.01)
        assert not shooter.idle
    assert server.connections == 1
