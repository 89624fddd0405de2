"""Boards of callers' reports: Redis of every flavour, and the supervisor of several edges."""

import asyncio
import signal
import socket
import time
from collections.abc import AsyncIterator, Sequence

import msgspec
import pytest

from services.queueing.redis_streams.clients import COMMAND_TIMEOUT_S, RedisClients
from services.queueing.redis_streams.keys import callers_keys
from services.registry.callers import redis_board
from services.registry.callers.caller_reports import MAX_REPORT_BYTES
from services.registry.callers.deployment_callers import KeptReport, ReportsUnavailableError
from services.registry.callers.recent_callers import WINDOW_S
from services.registry.callers.redis_board import RedisBoard
from services.standalone import report_board
from services.standalone.control import Control, read_file
from services.standalone.report_board import EdgeBoard, KeptReports
from tests.fixtures.redis_servers import RedisProcess


def plain(kept: Sequence[KeptReport]) -> dict[str, bytes]:
    assert all(0 <= one.age_s < 60 for one in kept)
    return {one.process: one.data for one in kept}


async def test_the_newest_report_of_each_gateway_arrives(redis: RedisProcess) -> None:
    clients = RedisClients(redis.url)
    sending, reading = RedisBoard(clients), RedisBoard(clients)
    assert list(await reading.read("m")) == []
    await sending.put("gateway-a-1", {"m": b"old", "n": b"other"})
    await sending.put("gateway-b.c_d-2", {"m": b"\x00\xff"})
    await sending.put("gateway-a-1", {"m": b"new"})
    found = plain(await reading.read("m"))
    assert found == {"gateway-a-1": b"new", "gateway-b.c_d-2": b"\x00\xff"}
    assert plain(await reading.read("n")) == {"gateway-a-1": b"other"}
    for board in (sending, reading):
        await board.close()


async def test_reports_in_redis_age_and_are_dropped(redis: RedisProcess) -> None:
    clients = RedisClients(redis.url)
    board, commands = RedisBoard(clients), clients.open()
    times, reports = callers_keys("m")
    for name in ("gateway-a", "gateway-b", "gateway-c"):
        await board.put(name, {"m": b"report"})
    now = int((await commands.send("TIME"))[0])
    await commands.send("ZADD", times, now - 600, "gateway-b", now - WINDOW_S - 60, "gateway-c")
    found = {one.process: one.age_s for one in await board.read("m")}
    assert found.keys() == {"gateway-a", "gateway-b"}
    assert 600 <= found["gateway-b"] < 660
    await board.put("gateway-a", {"m": b"report"})
    assert set(await commands.send("HKEYS", reports)) == {b"gateway-a", b"gateway-b"}
    for key in (times, reports):
        assert 0 < await commands.send("TTL", key) <= WINDOW_S
    await board.close()
    await commands.close()


async def test_numbers_and_bytes_of_reports_in_redis_are_limited(
    redis: RedisProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = RedisClients(redis.url)
    board, commands = RedisBoard(clients), clients.open()
    monkeypatch.setattr(redis_board, "MAX_REPORTS", 3)
    for number in range(5):
        await board.put(f"gateway-{number}", {"m": b"x" * 100})
    assert len(await board.read("m")) == 3
    times, reports = callers_keys("m")
    assert (await commands.send("ZCARD", times), await commands.send("HLEN", reports)) == (3, 3)
    monkeypatch.setattr(redis_board, "MAX_READ_BYTES", 250)
    assert sorted(one.data for one in await board.read("m")) == [b"", b"x" * 100, b"x" * 100]
    await board.close()
    await commands.close()


async def test_other_content_of_redis_is_left_out(redis: RedisProcess) -> None:
    clients = RedisClients(redis.url)
    board, commands = RedisBoard(clients), clients.open()
    times, reports = callers_keys("m")
    await board.put("gateway-a", {"m": b"report"})
    now = int((await commands.send("TIME"))[0])
    evil = ("worker-a", "gateway-\n", "../x", b"\xff", "gateway-" + "x" * 300)
    for name in (*evil, "gateway-large", "gateway-gone", "gateway-inf", "gateway-late"):
        await commands.send("ZADD", times, now, name)
        await commands.send("HSET", reports, name, "evil")
    await commands.send("HSET", reports, "gateway-large", b"x" * (MAX_REPORT_BYTES + 1))
    await commands.send("HDEL", reports, "gateway-gone")
    await commands.send("ZADD", times, "-inf", "gateway-inf", now + 900, "gateway-late")
    found = plain(await board.read("m"))
    assert found == {
        "gateway-a": b"report", "gateway-large": b"", "gateway-gone": b"", "gateway-late": b"evil",
    }  # fmt: skip
    await commands.send("SET", times, "no sorted set")
    with pytest.raises(ReportsUnavailableError, match="the queue fails"):
        await board.read("m")
    await board.close()
    await commands.close()


async def test_redis_out_of_reach_is_told(redis: RedisProcess) -> None:
    board = RedisBoard(RedisClients(redis.url))
    await board.put("gateway-a", {"m": b"report"})
    await asyncio.to_thread(redis.stop)
    with pytest.raises(ReportsUnavailableError, match="no gateway tells its callers: the queue"):
        await board.read("m")
    with pytest.raises(ReportsUnavailableError):
        await board.put("gateway-a", {"m": b"report"})
    await asyncio.to_thread(redis.start)
    assert plain(await board.read("m")) == {"gateway-a": b"report"}
    await board.close()


async def test_redis_that_hangs_is_told_in_time(redis: RedisProcess) -> None:
    board = RedisBoard(RedisClients(redis.url))
    await board.put("gateway-a", {"m": b"report"})
    redis.signal(signal.SIGSTOP)
    began = time.monotonic()
    with pytest.raises(ReportsUnavailableError, match="the queue fails"):
        await board.read("m")
    assert time.monotonic() - began < 2 * COMMAND_TIMEOUT_S
    redis.signal(signal.SIGCONT)
    await board.close()


class Supervised:
    """An edge's board, and the end of its supervisor, which keeps the reports.

    Args:
        kept: reports of all edges of the supervisor.
    """

    def __init__(self, kept: KeptReports) -> None:
        self.kept, self.answers = kept, True
        self.asked: list[str] = []
        self.has_put = asyncio.Event()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._supervisor = Control(ours, self._take, lambda: None)
        self._edge = Control(theirs, lambda _, *answer: self.board.take(*answer), lambda: None)
        self.board = EdgeBoard(self._edge)

    def _take(self, kind: str, content: str, descriptor: int) -> None:
        if kind == "report":
            self.kept.put(content, read_file(descriptor))
            self.has_put.set()
        else:
            self.asked.append(content)
            if self.answers:
                self._supervisor.send_file(kind, content, self.kept.of(content))

    async def put(self, process: str, **reports: bytes) -> None:
        self.has_put.clear()
        await self.board.put(process, reports)
        await self.has_put.wait()

    def close(self) -> None:
        for end in (self._supervisor, self._edge):
            end.close()


@pytest.fixture
async def edges() -> AsyncIterator[list[Supervised]]:
    kept = KeptReports()
    found = [Supervised(kept), Supervised(kept)]
    yield found
    for edge in found:
        edge.close()


async def test_the_newest_report_of_each_edge_arrives(edges: list[Supervised]) -> None:
    first, second = edges
    assert list(await first.board.read("m")) == []
    await first.put("edge-1", m=b"old", n=b"other")
    await second.put("edge-2", m=b"\x00" * 100_000)
    await first.put("edge-1", m=b"new", n=b"other")
    for edge in edges:
        asked = [edge.board.read("m"), edge.board.read("n"), edge.board.read("m")]
        found = [plain(one) for one in await asyncio.gather(*asked)]
        assert found[0] == found[2] == {"edge-1": b"new", "edge-2": b"\x00" * 100_000}
        assert found[1] == {"edge-1": b"other"}
        assert sorted(edge.asked[-2:]) == ["m", "n"], "calls at once share a question"


async def test_a_supervisor_that_does_not_answer_is_told(
    edges: list[Supervised], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_board, "READ_WITHIN_S", 0.05)
    edge = edges[0]
    edge.answers = False
    with pytest.raises(ReportsUnavailableError, match="other processes of this server did not"):
        await edge.board.read("m")
    monkeypatch.undo()
    edge.answers = True
    assert list(await edge.board.read("m")) == []


async def test_reports_of_ended_edges_are_limited_by_number_and_age(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    kept = KeptReports(lambda: now)
    monkeypatch.setattr(report_board, "MAX_REPORTS", 3)
    for number in range(5):
        kept.put(f"edge-{number}", msgspec.msgpack.encode({"m": b"report"}))
        now += 600
    found = msgspec.msgpack.decode(kept.of("m"))
    assert [(process, age_s) for process, age_s, _ in found] == [
        ("edge-4", 600), ("edge-3", 1_200), ("edge-2", 1_800),
    ]  # fmt: skip
    now += WINDOW_S - 1_200
    assert [one[0] for one in msgspec.msgpack.decode(kept.of("m"))] == ["edge-4"]
    kept.put("edge-5", msgspec.msgpack.encode({"n": b"report"}))
    assert [one[0] for one in msgspec.msgpack.decode(kept.of("m"))] == ["edge-4"]
