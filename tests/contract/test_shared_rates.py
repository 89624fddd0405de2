"""Rates that gateways share by way of Redis, on the real thing."""

import asyncio
import time

import pytest

from services.access.rates import Bucket
from services.access.shared_rates import SharedRates
from services.queueing.redis_streams.clients import RedisClients
from tests.fixtures.redis_servers import RedisProcess

RATE, GATEWAYS = 200.0, 3


def take_all(bucket: Bucket, now: float) -> int:
    """As many single requests as it lets in."""
    taken = 0
    while not bucket.take(1, now):
        taken += 1
    return taken


async def test_gateways_share_a_rate(redis: RedisProcess) -> None:
    clients = [RedisClients(redis.url).open() for _ in range(GATEWAYS)]
    shares = [SharedRates(client) for client in clients]
    began = time.monotonic()
    buckets = [share.open_bucket("ci", RATE) for share in shares]
    taken = 0
    for _ in range(8):
        for bucket in buckets:
            taken += take_all(bucket, time.monotonic())
        for share in shares:
            await share.tell()
        await asyncio.sleep(0.05)  # what comes back in this time is what the rate is about
    passed_s = time.monotonic() - began
    burst = buckets[0].burst
    assert taken >= burst
    # Each may give its burst once, and what comes back between two tellings; no more, ever.
    assert taken <= GATEWAYS * (burst + RATE * 0.2) + RATE * passed_s
    assert all(bucket.tokens < 0 for bucket in buckets), "a debt, which all have learnt of"
    assert all(not take_all(bucket, time.monotonic()) for bucket in buckets)
    assert await redis.client.pttl("flambeau:rate:{ci}") > 0, "it goes when it is full again"
    for client in clients:
        await client.close()


async def test_without_redis_each_gateway_goes_by_its_own(
    redis: RedisProcess, caplog: pytest.LogCaptureFixture
) -> None:
    client = RedisClients(redis.url).open()
    share = SharedRates(client)
    bucket = share.open_bucket("ci", RATE)
    await share.tell()
    redis.kill()
    before = time.monotonic()
    assert take_all(bucket, before) >= bucket.burst - 1
    await share.tell()
    assert bucket.take(1, before) > 0
    assert bucket.take(1, before + 1) == 0, "by its own rate"
    await share.tell()
    assert "rates are not shared" in caplog.text
    assert caplog.text.count("rates are not shared") == 1
    redis.start()
    await share.tell()
    bucket.take(1, before + 2)
    await share.tell()
    assert await redis.client.exists("flambeau:rate:{ci}")
    await client.close()
