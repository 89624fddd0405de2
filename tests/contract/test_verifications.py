"""Verifications through Redis, both ends: execution, sharing, and the death of a worker."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from services.errors import (
    DeadlineExceededError,
    ModelNotReadyError,
    OverloadedError,
    QueueUnavailableError,
    ServingError,
    ShuttingDownError,
    UnknownModelError,
    UnknownVersionError,
)
from services.queueing.directory import Directory
from services.queueing.records import ServedVersion
from services.queueing.redis_streams import verifications
from services.queueing.redis_streams.clients import Commands, RedisClients
from services.queueing.redis_streams.keys import verification_replies_key, verifications_key
from services.queueing.redis_streams.verifications import FleetVerifier, VerificationReceiver
from services.queueing.verification_records import Progress
from tests.fixtures.queue_ends import LANE
from tests.fixtures.redis_servers import RedisProcess, until, until_seen
from tests.fixtures.slow_proof import DONE, SlowProof


@pytest.fixture
async def proof() -> SlowProof:
    return SlowProof()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shortens the timeout of silent workers."""
    monkeypatch.setattr(verifications, "SAY_EVERY_S", 0.05)
    monkeypatch.setattr(verifications, "SILENT_S", 0.8)
    monkeypatch.setattr(verifications, "BLOCK_S", 0.05)


@asynccontextmanager
async def worker(redis: RedisProcess, proof: SlowProof) -> AsyncIterator[asyncio.Task[None]]:
    """Runs a worker's end, which stops with the block."""
    running = asyncio.create_task(VerificationReceiver(RedisClients(redis.url), "w", proof).run())
    yield running
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


def gateway(redis: RedisProcess, name: str = "g", timeout_s: float = 60) -> FleetVerifier:
    """Returns a gateway's end that knows of one worker."""
    directory = Directory()
    directory.announce(ServedVersion(lane=LANE, state="ready"))
    found = FleetVerifier(RedisClients(redis.url), name, directory, timeout_s)
    found.workers = {"m": ("w",)}
    return found


def heard_by(steps: list[tuple[str, int, int]]) -> Progress:
    return lambda *step: steps.append(step)


async def test_a_worker_says_how_far_it_is_and_what_it_found(
    redis: RedisProcess, proof: SlowProof
) -> None:
    steps: list[tuple[str, int, int]] = []
    async with worker(redis, proof):
        asking = asyncio.create_task(gateway(redis).verify("m", 1, heard_by(steps)))
        await until(lambda: proof.begun)
        proof.progress("onnx", 1, 3)
        await until(lambda: ("onnx", 1, 3) in steps)
        proof.outcome.set_result(DONE)
        assert await asking == DONE
    assert proof.begun == [("m", 1)]
    left = await redis.client.keys("*")
    assert left == [], "nothing is left behind"


async def test_who_asks_for_the_same_version_shares_it(
    redis: RedisProcess, proof: SlowProof
) -> None:
    async with worker(redis, proof):
        first = asyncio.create_task(gateway(redis).verify("m", None, lambda *_: None))
        await until(lambda: proof.begun)
        steps: list[tuple[str, int, int]] = []
        second = asyncio.create_task(gateway(redis, "h").verify("m", None, heard_by(steps)))
        await until(lambda: steps)
        with pytest.raises(OverloadedError, match=r"verifies 'm' version in production; one at a"):
            await gateway(redis, "i").verify("m", 2, lambda *_: None)
        proof.outcome.set_result(DONE)
        assert [await first, await second] == [DONE, DONE]
    assert proof.begun == [("m", None)]


async def test_an_error_arrives_as_what_it_was(redis: RedisProcess, proof: SlowProof) -> None:
    proof.outcome.set_exception(UnknownVersionError("there is no m 7"))
    async with worker(redis, proof):
        with pytest.raises(UnknownVersionError, match="there is no m 7"):
            await gateway(redis).verify("m", 7, lambda *_: None)
        proof.outcome = asyncio.get_running_loop().create_future()
        proof.outcome.set_exception(ZeroDivisionError())
        with pytest.raises(ServingError, match="failed in the worker; see its log"):
            await gateway(redis).verify("m", 1, lambda *_: None)


@pytest.mark.usefixtures("quick")
async def test_a_worker_that_falls_silent_is_an_error_and_no_hang(
    redis: RedisProcess, proof: SlowProof, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[tuple[str, int, int]] = []
    verifier = gateway(redis)
    with pytest.raises(QueueUnavailableError, match=r"cannot be heard .* so try again"):
        await verifier.verify("m", 1, heard_by(steps))
    await redis.client.delete(verifications_key("w"))
    clients = RedisClients(redis.url)
    line = _Line(clients.open())
    monkeypatch.setattr(clients, "open", lambda: line)
    receiver = VerificationReceiver(clients, "w", proof)
    running = asyncio.create_task(receiver.run())
    asking = asyncio.create_task(verifier.verify("m", 1, heard_by(steps)))
    # It reports repeatedly, for longer than the timeout of a silent worker.
    often = 1.2 * verifications.SILENT_S / verifications.SAY_EVERY_S
    await until(lambda: len(steps) > often)
    assert not asking.done()
    # As a killed process: without a final message.
    line.is_cut = True
    with pytest.raises(QueueUnavailableError, match="it may have died"):
        await asking
    line.is_cut = False
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


class _Line:
    """A connection that delivers nothing while it is cut."""

    def __init__(self, commands: Commands) -> None:
        self._commands, self.is_cut = commands, False

    def trip(self) -> object:
        return self if self.is_cut else self._commands.trip()

    async def close(self) -> None:
        await self._commands.close()

    def add(self, *command: object) -> None:
        pass

    async def execute(self) -> list[int]:
        return [0]


async def test_a_worker_that_stops_says_so(redis: RedisProcess, proof: SlowProof) -> None:
    async with worker(redis, proof) as running:
        asking = asyncio.create_task(gateway(redis).verify("m", 1, lambda *_: None))
        await until(lambda: proof.begun)
        running.cancel()
        with pytest.raises(ShuttingDownError, match="try again"):
            await asking


@pytest.mark.usefixtures("quick")
async def test_a_gateway_that_left_is_not_told_for_ever(
    redis: RedisProcess, proof: SlowProof, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verifications, "UNREAD", 3)
    async with worker(redis, proof):
        asking = asyncio.create_task(gateway(redis).verify("m", 1, lambda *_: None))
        await until(lambda: proof.begun)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking

        async def gave_up() -> bool:
            keys = await redis.client.keys(verification_replies_key("g", "*"))
            return [await redis.client.llen(key) for key in keys] == [4]

        await until_seen(gave_up)
        proof.progress("onnx", 1, 2)
        steps: list[tuple[str, int, int]] = []
        again = asyncio.create_task(gateway(redis).verify("m", 1, heard_by(steps)))
        await until(lambda: ("onnx", 1, 2) in steps)
        assert await gave_up(), "to the one that left nothing more was said"
        proof.outcome.set_result(DONE)
        assert await again == DONE


async def test_it_may_not_take_longer_than_the_gateway_waits(
    redis: RedisProcess, proof: SlowProof
) -> None:
    async with worker(redis, proof):
        with pytest.raises(DeadlineExceededError, match=r"0\.2 s \(verify_timeout_s\)"):
            await gateway(redis, timeout_s=0.2).verify("m", 1, lambda *_: None)


async def test_a_model_without_workers_is_told_from_one_that_never_was(
    redis: RedisProcess,
) -> None:
    verifier = gateway(redis)
    verifier.workers = {}
    with pytest.raises(ModelNotReadyError, match="no worker serves model 'm' at present"):
        await verifier.verify("m", 1, lambda *_: None)
    with pytest.raises(UnknownModelError, match="model 'n' is not served"):
        await verifier.verify("n", 1, lambda *_: None)


async def test_what_is_no_question_is_passed_over(redis: RedisProcess, proof: SlowProof) -> None:
    async with worker(redis, proof):
        await redis.client.rpush(verifications_key("w"), b"\xc1", b"\x93")
        proof.outcome.set_result(DONE)
        assert await gateway(redis).verify("m", 1, lambda *_: None) == DONE
