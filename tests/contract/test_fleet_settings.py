"""Settings of logs and traces that all processes of a Redis share."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from services.errors import QueueUnavailableError
from services.queueing.redis_streams.clients import RedisClients
from services.queueing.redis_streams.keys import SETTINGS_KEY
from services.tracing import fleet_settings
from services.tracing.fleet_settings import LIVES_S, FleetSettings
from services.tracing.setting import Change
from tests.fixtures.redis_servers import RedisProcess, until

Changes = list[Change]


@asynccontextmanager
async def process(url: str) -> AsyncIterator[tuple[FleetSettings, Changes]]:
    """Runs the settings of a process; yields what is applied there, too."""
    changes: Changes = []
    settings = FleetSettings(RedisClients(url), changes.append)
    running = asyncio.create_task(settings.run())
    try:
        yield settings, changes
    finally:
        running.cancel()
        await asyncio.wait([running])


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_settings, "LOOK_EVERY_S", 0.02)


async def test_a_change_reaches_all_processes_and_later_ones(redis: RedisProcess) -> None:
    async with process(redis.url) as (one, at_one), process(redis.url) as (_, at_other):
        await one.tell({"log_level": "DEBUG"})
        assert at_one == [{"log_level": "DEBUG"}]
        await until(lambda: at_other)
        await one.tell({"trace_ratio": 0.25})
        await until(lambda: len(at_other) == 2)
        assert at_other == [{"log_level": "DEBUG"}, {"trace_ratio": 0.25}]
        assert at_one == at_other
        async with process(redis.url) as (_, at_third):
            await until(lambda: at_third)
            assert at_third == [{"log_level": "DEBUG", "trace_ratio": 0.25}]


async def test_what_is_known_is_not_applied_again(redis: RedisProcess) -> None:
    settings = FleetSettings(RedisClients(redis.url), (changes := Changes()).append)
    await settings.tell({"log_level": "DEBUG"})
    for _ in range(3):
        await settings.look()
    await settings.tell({"log_level": "DEBUG"})
    assert changes == [{"log_level": "DEBUG"}]


async def test_settings_expire_behind_the_last_look(redis: RedisProcess) -> None:
    clients = RedisClients(redis.url)
    settings, commands = FleetSettings(clients, lambda _: None), clients.open()
    await settings.tell({"log_level": "DEBUG"})
    await commands.send("EXPIRE", SETTINGS_KEY, 5)
    await settings.look()
    assert await commands.send("TTL", SETTINGS_KEY) > LIVES_S - 60
    await commands.close()


async def test_what_nobody_told_is_left_out(redis: RedisProcess) -> None:
    clients = RedisClients(redis.url)
    settings, commands = FleetSettings(clients, (changes := Changes()).append), clients.open()
    values = ("log_level", b"\xff", "trace_ratio", "nan", "newer", "x")
    await commands.send("HSET", SETTINGS_KEY, *values)
    await settings.look()
    assert changes == []
    await commands.send("HSET", SETTINGS_KEY, "trace_ratio", "2", "log_level", "ERROR")
    await settings.look()
    assert changes == [{"log_level": "ERROR"}]
    await commands.close()


async def test_a_change_without_redis_is_refused(redis: RedisProcess) -> None:
    settings = FleetSettings(RedisClients(redis.url), (changes := Changes()).append)
    redis.kill()
    with pytest.raises(QueueUnavailableError, match="cannot be changed"):
        await settings.tell({"log_level": "DEBUG"})
    assert changes == []
