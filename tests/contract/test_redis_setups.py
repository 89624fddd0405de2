"""Supported Redis setups: as a cluster, behind Sentinel, with TLS and a user of its own."""

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.exceptions import TimeoutError as RedisTimeoutError

from services.queueing.redis_streams.clients import RedisClients
from services.queueing.redis_streams.keys import LaneKeys
from tests.fixtures.certificates import Authority
from tests.fixtures.queue_ends import LANE, redis_ends, reply
from tests.fixtures.redis_servers import FLAVOURS, binary_of, until, until_seen
from tests.fixtures.redis_setups import LOCAL, free_port, is_open, running, wait_until


@pytest.fixture(params=FLAVOURS)
def binary(request: pytest.FixtureRequest) -> str:
    return binary_of(request.param)


async def test_a_cluster_carries_requests(binary: str, tmp_path: Path) -> None:
    with cluster(binary, tmp_path) as url:
        await requests_are_answered(url)


async def test_sentinel_names_the_master(binary: str, tmp_path: Path) -> None:
    with behind_sentinel(binary, tmp_path) as url:
        await requests_are_answered(url)


@pytest.mark.parametrize(("path", "database"), [("", 0), ("/1", 1)])
async def test_sentinel_url_names_the_database(
    binary: str, tmp_path: Path, path: str, database: int
) -> None:
    with behind_sentinel(binary, tmp_path) as url:
        commands = RedisClients(url + path).open()
        try:
            assert f" db={database} ".encode() in await commands.send("CLIENT", "INFO")
        finally:
            await commands.close()


async def test_a_user_of_its_own_and_mutual_tls_are_enough(binary: str, tmp_path: Path) -> None:
    with over_tls(binary, tmp_path) as url:
        await requests_are_answered(url)


async def requests_are_answered(url: str) -> None:
    """Sends requests one after the other, one cancelled, and several at once; none stays."""
    async with redis_ends(url) as ends:
        for n in range(3):
            caller = ends.send(n)
            await ends.shelf.holds(1)
            ends.shelf.take().finish(reply(n))
            assert await caller.value() == n
        ends.send("cancelled").entry.cancel()
        callers = [ends.send(n) for n in range(3)]
        while not all(caller.heard for caller in callers):
            await until(lambda: ends.shelf.entries)
            entry = ends.shelf.take()
            if not entry.dead:
                number = int(entry.request.request_id)
                entry.finish(reply(number))
                assert await callers[number].value() == number
        callers = [ends.send(n) for n in range(2)]
        for entry in list(await ends.shelf.holds(2)):
            entry.finish(reply(int(entry.request.request_id)))
            await asyncio.sleep(0)  # the trip of its answer begins, and the next comes meanwhile
        assert [await caller.value() for caller in callers] == [0, 1]
        await until_none_waits(url)


async def until_none_waits(url: str) -> None:
    """Waits until all requests have left their streams."""
    commands = RedisClients(url).open()

    async def is_empty() -> bool:
        try:
            return not any(
                [await commands.send("XLEN", stream) for stream in LaneKeys(LANE).streams]
            )
        except RedisTimeoutError:  # a busy machine
            return False

    try:
        await until_seen(is_empty)
    finally:
        await commands.close()


@contextlib.contextmanager
def cluster(binary: str, folder: Path) -> Iterator[str]:
    """Runs two nodes, each with half of the slots."""
    ports, buses = [[free_port() for _ in range(2)] for _ in range(2)]
    with contextlib.ExitStack() as stack:
        for port, bus in zip(ports, buses, strict=True):
            home = folder / str(port)
            home.mkdir()
            options = ["--cluster-enabled", "yes", "--cluster-port", str(bus)]
            stack.enter_context(running(binary, home, port, *options))
        nodes: list[Any] = [stack.enter_context(redis.Redis(LOCAL, port)) for port in ports]
        for i, node in enumerate(nodes):
            node.execute_command("CLUSTER", "ADDSLOTSRANGE", i * 8192, i * 8192 + 8191)
            node.execute_command("CLUSTER", "SET-CONFIG-EPOCH", i + 1)
        nodes[0].execute_command("CLUSTER", "MEET", LOCAL, ports[1], buses[1])
        for node in nodes:
            wait_until(lambda node=node: is_whole(node))  # type: ignore[misc]
        yield f"redis+cluster://{LOCAL}:{ports[0]}"


def is_whole(node: Any) -> bool:
    """Returns True if a node knows the owner of every slot."""
    info = node.execute_command("CLUSTER INFO")
    return bool(info["cluster_state"] == "ok" and info["cluster_slots_ok"] == "16384")


@contextlib.contextmanager
def behind_sentinel(binary: str, folder: Path) -> Iterator[str]:
    """Runs one master and one sentinel."""
    master, sentinel = free_port(), free_port()
    (folder / "sentinel").mkdir()
    config = folder / "sentinel" / "sentinel.conf"
    config.write_text(f"sentinel monitor flambeau {LOCAL} {master} 1\n")
    with (
        running(binary, folder, master),
        running(binary, folder / "sentinel", sentinel, "--sentinel", config=config),
    ):
        yield f"redis+sentinel://{LOCAL}:{sentinel}/flambeau"


@contextlib.contextmanager
def over_tls(binary: str, folder: Path) -> Iterator[str]:
    """Runs mutual TLS only, with a user who has only the queue's permissions."""
    authority = Authority(folder)
    theirs, ours = authority.issue("redis"), authority.issue("ours")
    port = free_port()
    options = [
        "--port", "0", "--tls-port", str(port), "--tls-auth-clients", "yes",
        "--tls-cert-file", str(theirs.certificate), "--tls-key-file", str(theirs.key),
        "--tls-ca-cert-file", str(authority.file),
        "--user", "default", "off",
        "--user", "flambeau", "on", ">secret", "~flambeau:*", "&flambeau:*", "-@all",
        "+@connection", "+@stream", "+@sortedset", "+@hash", "+@list", "+@string", "+@keyspace",
        "+@scripting", "+@pubsub", "+time",
    ]  # fmt: skip
    with running(binary, folder, 0, *options, answers=False) as process:
        wait_until(lambda: is_open(port) or process.poll() is not None)
        if process.poll() is not None and "tls" in (folder / "log-0").read_text().lower():
            pytest.skip("this server was built without TLS")
        files = {"ca_certs": authority.file, "certfile": ours.certificate, "keyfile": ours.key}
        query = "&".join(f"ssl_{name}={file}" for name, file in files.items())
        yield f"rediss://flambeau:secret@{LOCAL}:{port}?{query}"
