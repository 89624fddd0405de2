"""Supported Redis setups: as a cluster, behind Sentinel, with TLS and a user of its own."""

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from services.errors import ModelNotReadyError, QueueUnavailableError, ServingError
from services.queueing.records import InferReply
from services.queueing.redis_streams.clients import RedisClients
from services.queueing.redis_streams.keys import LaneKeys
from tests.fixtures.certificates import Authority
from tests.fixtures.queue_ends import LANE, Ends, redis_ends, reply
from tests.fixtures.redis_servers import FLAVOURS, binary_of, until, until_seen
from tests.fixtures.redis_setups import LOCAL, free_port, is_open, running, wait_until

SLOTS = 16384
"""Slots of a cluster."""


@pytest.fixture(params=FLAVOURS)
def binary(request: pytest.FixtureRequest) -> str:
    return binary_of(request.param)


async def test_a_cluster_carries_requests(binary: str, tmp_path: Path) -> None:
    with cluster(binary, tmp_path) as url:
        await requests_are_answered(url)


async def test_sentinel_names_the_master(binary: str, tmp_path: Path) -> None:
    with behind_sentinel(binary, tmp_path) as url:
        await requests_are_answered(url)


async def test_failover_loses_no_accepted_request(binary: str, tmp_path: Path) -> None:
    with behind_sentinel(binary, tmp_path, replicated=True) as url:
        async with redis_ends(url) as ends:
            answering = asyncio.create_task(answer_all(ends))
            accepted, refused = await answered_through_failover(ends, url)
            answering.cancel()
    assert accepted > 20
    assert all(isinstance(error, QueueUnavailableError | ModelNotReadyError) for error in refused)
    assert all("retry later" in str(error) or "try again" in str(error) for error in refused)


async def answer_all(ends: Ends) -> None:
    """Answers each request with its number, until cancelled."""
    while True:
        await until(lambda: ends.shelf.entries, timeout_s=60)
        entry = ends.shelf.take()
        if not entry.dead:
            entry.finish(reply(int(entry.request.request_id)))


async def answered_through_failover(ends: Ends, url: str) -> tuple[int, list[ServingError]]:
    """Sends requests before, while and after the master changes, and waits for all outcomes.

    Returns:
        How many were answered, each with its own number; and the errors of the others.
    """
    callers = [ends.send(0)]
    await callers[0].value()
    change = asyncio.create_task(asyncio.to_thread(fail_over, url))
    after = 0
    while after < 20:
        caller = ends.send(len(callers))
        callers.append(caller)
        outcome = asyncio.create_task(caller.outcome())
        await asyncio.wait([outcome], timeout=0.02)  # the next one is sent whether it came or not
        after += change.done() and outcome.done() and isinstance(outcome.result(), InferReply)
    await change
    outcomes = [await caller.outcome() for caller in callers]
    answers = [(n, one) for n, one in enumerate(outcomes) if isinstance(one, InferReply)]
    assert all(one.outputs["y"][0, 0] == n for n, one in answers)
    assert all(len(caller.heard) == 1 for caller in callers)
    return len(answers), [one for one in outcomes if isinstance(one, ServingError)]


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
    """Runs three masters, each with a third of the slots."""
    ports, buses = [[free_port() for _ in range(3)] for _ in range(2)]
    with contextlib.ExitStack() as stack:
        for port, bus in zip(ports, buses, strict=True):
            home = folder / str(port)
            home.mkdir()
            options = ["--cluster-enabled", "yes", "--cluster-port", str(bus)]
            stack.enter_context(running(binary, home, port, *options))
        nodes: list[Any] = [stack.enter_context(redis.Redis(LOCAL, port)) for port in ports]
        for i, node in enumerate(nodes):
            first, end = (n * SLOTS // len(nodes) for n in (i, i + 1))
            node.execute_command("CLUSTER", "ADDSLOTSRANGE", first, end - 1)
            node.execute_command("CLUSTER", "SET-CONFIG-EPOCH", i + 1)
        for port, bus in zip(ports[1:], buses[1:], strict=True):
            nodes[0].execute_command("CLUSTER", "MEET", LOCAL, port, bus)
        for node in nodes:
            wait_until(lambda node=node: is_whole(node))  # type: ignore[misc]
        yield f"redis+cluster://{LOCAL}:{ports[0]}"


def is_whole(node: Any) -> bool:
    """Returns True if a node knows the owner of every slot."""
    info = node.execute_command("CLUSTER INFO")
    return bool(info["cluster_state"] == "ok" and info["cluster_slots_ok"] == str(SLOTS))


@contextlib.contextmanager
def behind_sentinel(binary: str, folder: Path, *, replicated: bool = False) -> Iterator[str]:
    """Runs one master and one sentinel, and a replica that may become the master."""
    master, sentinel = free_port(), free_port()
    (folder / "sentinel").mkdir()
    config = folder / "sentinel" / "sentinel.conf"
    config.write_text(
        f"sentinel monitor flambeau {LOCAL} {master} 1\n"
        "sentinel down-after-milliseconds flambeau 500\n"
    )
    with contextlib.ExitStack() as stack:
        stack.enter_context(running(binary, folder, master))
        if replicated:
            stack.enter_context(replica_of(binary, folder, master))
        home = folder / "sentinel"
        stack.enter_context(running(binary, home, sentinel, "--sentinel", config=config))
        yield f"redis+sentinel://{LOCAL}:{sentinel}/flambeau"


@contextlib.contextmanager
def replica_of(binary: str, folder: Path, master: int) -> Iterator[None]:
    """Runs a replica, which has the master's data when the block begins."""
    port, home = free_port(), folder / "replica"
    home.mkdir()
    with (
        running(binary, home, port, "--replicaof", LOCAL, str(master)),
        contextlib.closing(redis.Redis(LOCAL, port)) as client,
    ):
        wait_until(lambda: client.info("replication")["master_link_status"] == "up")
        yield


def fail_over(url: str) -> None:
    """Ends the master; returns once the sentinel names its replica instead."""
    port = int(url.rpartition("/")[0].rpartition(":")[2])
    asked = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "flambeau")
    with contextlib.closing(redis.Redis(LOCAL, port)) as client:
        sentinel: Any = client
        before = sentinel.execute_command(*asked)
        master: Any = redis.Redis(LOCAL, int(before[1]))
        with contextlib.closing(master), contextlib.suppress(RedisError):  # it says nothing more
            master.execute_command("SHUTDOWN", "NOSAVE", "NOW", "FORCE")
        wait_until(lambda: sentinel.execute_command(*asked) != before)


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
