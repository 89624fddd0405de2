"""Counts of gateways reach workers through every kind of Redis, whatever else is in its hash."""

import logging

import pytest

from model_store.rollouts.traffic import Rollout, Traffic
from services.queueing.directory import Directory
from services.queueing.redis_streams.clients import RedisClients
from services.queueing.redis_streams.keys import evidence_key
from services.rollouts.gateway_counts import CountsOfGateways, GatewayCounts
from services.rollouts.traffic_counts import TrafficCounts
from tests.fixtures.redis_servers import RedisProcess

ROLLOUT = Rollout(candidate=2, baseline=1, steps=(0.5,))


class Gateway:
    def __init__(self, clients: RedisClients, name: str) -> None:
        self.directory, self.counts = Directory(), TrafficCounts()
        self.directory.set_traffic("m", Traffic(rollout=ROLLOUT))
        self.sending = GatewayCounts(clients, name, self.directory, self.counts)

    def count(self, requests: int) -> None:
        for _ in range(requests):
            self.counts.of(ROLLOUT.id).count_request(0.5, "candidate")


async def test_counts_of_all_gateways_arrive(redis: RedisProcess) -> None:
    clients = RedisClients(redis.url)
    reader = CountsOfGateways(clients)
    gateways = [Gateway(clients, f"gateway-{number}") for number in range(2)]
    assert await reader.of(ROLLOUT.id) == {}
    for requests in (3, 4):
        for gateway in gateways:
            gateway.count(requests)
            await gateway.sending.look()
    counted = {"share/500000/candidate/requests": 7}
    found = await reader.of(ROLLOUT.id)
    assert {name: one.counts for name, one in found.items()} == {
        "gateway-0": counted,
        "gateway-1": counted,
    }
    await reader.close()


async def test_counts_of_a_rollout_that_is_over_are_forgotten(redis: RedisProcess) -> None:
    gateway = Gateway(RedisClients(redis.url), "gateway-1")
    gateway.count(1)
    gateway.directory.set_traffic("m", None)
    await gateway.sending.look()
    assert gateway.counts.snapshot() == {}


async def test_damaged_counts_are_left_out_and_logged_once(
    redis: RedisProcess, caplog: pytest.LogCaptureFixture
) -> None:
    clients = RedisClients(redis.url)
    commands, reader = clients.open(), CountsOfGateways(clients)
    gateway = Gateway(clients, "gateway-1")
    gateway.count(1)
    await gateway.sending.look()
    for name, value in (("evil", b"{"), (b"\xff", b'{"counts": {"x": 1}, "peaks": {}}')):
        await commands.send("HSET", evidence_key(ROLLOUT.id), name, value)
    with caplog.at_level(logging.ERROR, "flambeau"):
        for _ in range(3):
            assert list(await reader.of(ROLLOUT.id)) == ["gateway-1"]
    assert len(caplog.records) == 2
    await commands.close()
    await reader.close()
