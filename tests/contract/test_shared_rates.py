"""Rates that gateways share through Redis, on real servers."""

import time

import pytest

from services.access.rates import Bucket
from services.access.shared_rates import SharedRates
from services.queueing.redis_streams.clients import RedisClients
from tests.fixtures.redis_servers import RedisProcess

RATE, GATEWAYS = 200.0, 3
ROUND_S, LASTS_S = 0.05, 20.0
KEY = "flambeau:rate:{ci}"


def take_all(bucket: Bucket, now: float) -> int:
    """Takes single requests until one is refused; returns their number."""
    taken = 0
    while not bucket.take(1, now):
        taken += 1
    return taken


async def pass_time(redis: RedisProcess, seconds: float) -> None:
    """Simulates that much time for Redis' records, by moving them back, and for the buckets."""
    await redis.client.hincrby(KEY, "at", -round(seconds * 1e6))


async def test_gateways_share_a_rate(redis: RedisProcess) -> None:
    clients = [RedisClients(redis.url).open() for _ in range(GATEWAYS)]
    shares = [SharedRates(client) for client in clients]
    buckets = [share.open_bucket("ci", RATE) for share in shares]
    began = now = time.monotonic()
    burst, rounds = buckets[0].burst, round(LASTS_S / ROUND_S)
    taken = [0] * rounds
    for number in range(rounds):
        for bucket in buckets:
            taken[number] += take_all(bucket, now)
        for share in shares:
            await share.tell()
        if number == 1:  # the first reporter hears of the others at its next report
            assert all(bucket.tokens < 0 for bucket in buckets), "a debt, which all have learnt of"
            assert await redis.client.pttl(KEY) > 0, "it goes when it is full again"
        now += ROUND_S
        await pass_time(redis, ROUND_S)
    # Each may spend its burst once, which all pay off together.
    assert taken[0] == GATEWAYS * burst
    working_off_s = (GATEWAYS - 1) * burst / RATE
    assert sum(taken[1 : round(working_off_s / ROUND_S)]) <= 0.1 * RATE * working_off_s
    # Then the refill, plus only the part of it before the others are notified.
    really_passed_s = time.monotonic() - began
    allowed = burst + RATE * (LASTS_S + really_passed_s) + GATEWAYS * RATE * ROUND_S
    assert 0.9 * RATE * LASTS_S <= sum(taken) <= allowed
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
    assert await redis.client.exists(KEY)
    await client.close()
