"""Shutdown of a front: unready at once, yet accepting for `drain_delay_s`; connections' age."""

import asyncio
import http.client
import json
import queue
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.access.audit import close_audit_log, record
from services.gateway.config import GatewayConfig
from services.gateway.front import Front, Listening
from services.queueing.memory_queue import Entry, MemoryQueue
from services.queueing.records import Lane
from services.readiness import Look
from services.settings import ConfigError
from services.telemetry.metrics import Metrics
from tests.fixtures.queue_ends import echo_of
from tests.fixtures.served_directory import serving
from tests.fixtures.signatures import one_to_one

LANE = Lane("echo", 1)
TIMEOUT_S = 10.0
PINGED_S = 5.0
HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""Start of a connection (RFC 9113, 3.4), with empty settings."""
"""In which there are four pings."""
INFER = "/v2/models/echo/infer"
BODY = json.dumps({"inputs": [{"name": "x", "datatype": "INT64", "shape": [1], "data": [7]}]})


class Echo:
    """Answers every request with its input, at once."""

    waiting = 0

    def accept(self, entry: Entry) -> None:
        entry.finish(echo_of(entry))

    def discard(self, entry: Entry, reason: str) -> None:
        raise AssertionError((entry, reason))


@asynccontextmanager
async def running(**settings: float | str) -> AsyncIterator[tuple[Front, Listening]]:
    """Runs a front that is ready, on free ports, and closes it with the block."""
    ports = {"http_port": 0, "grpc_port": 0, "metrics_port": 0}
    config = GatewayConfig.model_validate({"queue": "redis://nobody", **ports, **settings})
    directory, lanes = serving(one_to_one((), datatype="INT64"), LANE), MemoryQueue(8)
    ready: list[Listening] = []
    front = Front(config, "0", Metrics("0"), directory, lanes, ready.append)
    lanes.open(LANE, Echo())
    async with front.listening():
        front.look(Look())
        yield front, ready[0]
        await front.close()


async def asked(
    connection: http.client.HTTPConnection, path: str, body: str | None = None
) -> http.client.HTTPResponse:
    """The answer to one request, read."""

    def ask() -> http.client.HTTPResponse:
        connection.request("POST" if body else "GET", path, body)
        reply = connection.getresponse()
        reply.read()
        return reply

    return await asyncio.to_thread(ask)


async def test_who_leaves_says_so_and_still_answers() -> None:
    async with running(drain_delay_s=300) as (front, where):
        connection = http.client.HTTPConnection("127.0.0.1", where.http_port, timeout=TIMEOUT_S)
        before = await asked(connection, INFER, BODY)
        assert (before.status, before.getheader("connection")) == (200, None)
        leaving = asyncio.create_task(front.begin_drain())
        await asyncio.sleep(0)
        kept = await asked(connection, INFER, BODY)
        assert (kept.status, kept.getheader("connection")) == (200, "close")
        anew = http.client.HTTPConnection("127.0.0.1", where.http_port, timeout=TIMEOUT_S)
        assert (await asked(anew, INFER, BODY)).status == 200
        assert (await asked(anew, "/v2/health/ready")).status == 503
        assert (await asked(anew, "/v2/health/live")).status == 200
        with grpc.insecure_channel(f"127.0.0.1:{where.grpc_port}") as channel:
            check = health_pb2_grpc.HealthStub(channel).Check
            said = await asyncio.to_thread(check, health_pb2.HealthCheckRequest())
            assert said.status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert not leaving.done()
        leaving.cancel()
        await front.drain()
        refused = await asked(anew, INFER, BODY)
        assert (refused.status, refused.getheader("connection")) == (503, "close")
        for each in (connection, anew):
            each.close()


async def test_acts_go_to_the_file_of_the_setting(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    try:
        async with running(audit_log=str(file)):
            record("push", "digits/1", "key:ci", "::1", "done")
    finally:
        close_audit_log()
    assert json.loads(file.read_text())["target"] == "digits/1"
    with pytest.raises(ConfigError, match=r"audit_log .*/none/a cannot be written"):
        async with running(audit_log=str(tmp_path / "none" / "a")):
            pass


async def test_an_old_connection_is_asked_to_go_and_calls_go_on() -> None:
    async with running(grpc_max_connection_age_s=0.2) as (_, where):
        states: queue.Queue[grpc.ChannelConnectivity] = queue.Queue()
        with grpc.insecure_channel(f"127.0.0.1:{where.grpc_port}") as channel:
            channel.subscribe(states.put, try_to_connect=True)
            check = health_pb2_grpc.HealthStub(channel).Check

            def await_state(wanted: grpc.ChannelConnectivity) -> None:
                while states.get(timeout=TIMEOUT_S) is not wanted:
                    pass

            for _ in range(2):
                await asyncio.to_thread(await_state, grpc.ChannelConnectivity.READY)
                await asyncio.to_thread(await_state, grpc.ChannelConnectivity.IDLE)
                said = await asyncio.to_thread(check, health_pb2.HealthCheckRequest())
                assert said.status == health_pb2.HealthCheckResponse.SERVING


async def test_who_pings_every_second_is_not_sent_away() -> None:
    """A server of grpcio would take three pings for an attack."""
    pings = [
        ("grpc.keepalive_time_ms", 1100),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]
    async with running() as (_, where):
        with grpc.insecure_channel(f"127.0.0.1:{where.grpc_port}", pings) as channel:
            watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
            said = await asyncio.to_thread(next, watch)
            assert said.status == health_pb2.HealthCheckResponse.SERVING
            ended = asyncio.to_thread(watch.exception, PINGED_S)
            with pytest.raises(grpc.FutureTimeoutError):
                await ended
            watch.cancel()


@pytest.mark.parametrize("said", [b"", HTTP2], ids=["silent", "idle"])
async def test_grpc_connections_without_a_call_are_closed(said: bytes) -> None:
    limit = "keep_alive_timeout_s" if said else "receive_timeout_s"
    async with running(**{limit: 0.1}) as (_, where):
        reader, writer = await asyncio.open_connection("127.0.0.1", where.grpc_port)
        writer.write(said)
        async with asyncio.timeout(TIMEOUT_S):
            await reader.read()  # to its end
        writer.close()


async def test_grpc_connections_over_the_limit_are_closed() -> None:
    async with running(max_connections=2) as (_, where):
        kept = [await asyncio.open_connection("127.0.0.1", where.grpc_port) for _ in range(2)]
        for reader, writer in kept:
            writer.write(HTTP2)
            async with asyncio.timeout(TIMEOUT_S):
                await reader.readexactly(1)  # the server's own settings
        reader, refused = await asyncio.open_connection("127.0.0.1", where.grpc_port)
        async with asyncio.timeout(TIMEOUT_S):
            assert await reader.read() == b""
        refused.close()
        kept[0][1].close()
        with grpc.insecure_channel(f"127.0.0.1:{where.grpc_port}") as channel:
            check = health_pb2_grpc.HealthStub(channel).Check
            said = await asyncio.to_thread(
                check, health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S, wait_for_ready=True
            )
            assert said.status == health_pb2.HealthCheckResponse.SERVING
        kept[1][1].close()
