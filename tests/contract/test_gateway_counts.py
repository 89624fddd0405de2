"""Counts of gateways reach workers through every kind of Redis, whatever else is in its hash."""

import logging
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from model_store.rollouts.traffic import Arm, Rollout, Shadow, Split, Traffic
from model_store.store import ModelStore
from services.queueing.directory import Directory
from services.queueing.redis_streams.clients import RedisClients
from services.queueing.redis_streams.keys import evidence_key
from services.rollouts.comparison_files import shadow_figures, split_evidence
from services.rollouts.controller import RolloutController
from services.rollouts.evidence_files import EvidenceFiles
from services.rollouts.gateway_counts import CountsOfGateways, GatewayCounts
from services.rollouts.traffic_counts import FORGOTTEN_AFTER_S, TrafficCounts
from services.telemetry.rollout_metrics import RolloutMetrics
from tests.fixtures.redis_servers import RedisProcess
from tests.fixtures.store_versions import publish_in

ROLLOUT = Rollout(candidate=2, baseline=1, steps=(0.5,))


class Gateway:
    def __init__(
        self, clients: RedisClients, name: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.directory, self.counts = Directory(), TrafficCounts(clock)
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
    now = 0.0
    gateway = Gateway(RedisClients(redis.url), "gateway-1", lambda: now)
    gateway.count(1)
    gateway.directory.set_traffic("m", None)
    await gateway.sending.look()
    assert gateway.counts.snapshot()
    now = FORGOTTEN_AFTER_S
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


async def test_controller_of_a_worker_writes_what_gateways_count(
    redis: RedisProcess, tmp_path: Path
) -> None:
    store = ModelStore(str(tmp_path / "store"))
    for _ in range(2):
        publish_in(store, tmp_path / "draft")
    split = Split(name="two", arms=(Arm(version=1, share=0.5), Arm(version=2, share=0.5)))
    shadow = Shadow(candidate=2, sample=0.1)
    clients = RedisClients(redis.url)
    gateway, gateways = Gateway(clients, "gateway-1"), CountsOfGateways(clients)
    compared = Traffic(split=split, shadow=shadow)
    directory = Directory()
    for followed in (gateway.directory, directory):
        followed.set_traffic("m", Traffic(rollout=ROLLOUT))
        followed.set_traffic("n", compared)
    metrics = RolloutMetrics(CollectorRegistry())
    worker = RolloutController(store, directory, metrics, "worker", gateways=gateways)
    for requests in (1, 2):
        gateway.count(requests)
        gateway.counts.arm(split.id, 2).count(0.5, "candidate", 0.001)
        gateway.counts.shadow(shadow.id).drop("busy")
        await gateway.sending.look()
        await worker.look()
    counted = EvidenceFiles(store.storage, "m", ROLLOUT.id).read().total.counts
    assert counted == {"share/500000/candidate/requests": 3}
    arm = split_evidence(store.storage, "n", split)[2].total.counts
    assert arm == {"share/500000/candidate/requests": 2}
    figures, left_out = shadow_figures(store.storage, "n", shadow.id)
    assert figures is not None
    assert (figures.dropped, left_out) == ({"busy": 2}, {})
    await gateways.close()
