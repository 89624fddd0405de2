"""Counts of gateways reach workers through every kind of Redis, whatever else is in its hash."""

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from model_store.rollouts import transitions
from model_store.rollouts.guards import Guards, RateGuard
from model_store.rollouts.traffic import Arm, Rollout, Shadow, Split, Traffic
from model_store.store import ModelStore
from services.queueing.directory import Directory
from services.queueing.records import Lane, ServedVersion
from services.queueing.redis_streams.clients import RedisClients
from services.queueing.redis_streams.keys import evidence_key
from services.rollouts import gateway_counts
from services.rollouts.comparison_files import shadow_figures, split_evidence
from services.rollouts.controller import RolloutController
from services.rollouts.evidence.evidence import Evidence
from services.rollouts.evidence_files import EvidenceFiles, bytes_of
from services.rollouts.gateway_counts import MAX_GATEWAY_BYTES, CountsOfGateways, GatewayCounts
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


async def test_counts_are_sent_a_last_time_at_the_end(redis: RedisProcess) -> None:
    clients = RedisClients(redis.url)
    gateway, reader = Gateway(clients, "gateway-1"), CountsOfGateways(clients)
    gateway.count(1)
    sending = asyncio.create_task(gateway.sending.run())
    await asyncio.sleep(0)  # it runs
    gateway.count(1)
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    found = await reader.of(ROLLOUT.id)
    assert found["gateway-1"].counts == {"share/500000/candidate/requests": 2}
    await reader.close()


async def test_counts_of_a_rollout_that_is_over_are_forgotten(redis: RedisProcess) -> None:
    now = 0.0
    gateway = Gateway(RedisClients(redis.url), "gateway-1", lambda: now)
    gateway.count(1)
    gateway.directory.set_traffic("m", None)
    await gateway.sending.look()
    assert list(gateway.counts.ids) == [ROLLOUT.id]
    now = FORGOTTEN_AFTER_S
    await gateway.sending.look()
    assert not gateway.counts.ids


async def test_damaged_counts_are_left_out_and_logged_once(
    redis: RedisProcess, caplog: pytest.LogCaptureFixture
) -> None:
    clients = RedisClients(redis.url)
    commands, reader = clients.open(), CountsOfGateways(clients)
    gateway = Gateway(clients, "gateway-1")
    gateway.count(1)
    await gateway.sending.look()
    whole = bytes_of(gateway.counts.of(ROLLOUT.id))
    evil: dict[str | bytes, bytes] = {
        "gateway-evil": b"{",
        "gateway-\n": b'{"counts": {"x": 1}, "peaks": {}}',
        "gateway-large": b"x" * (MAX_GATEWAY_BYTES + 1),
        "../x": whole,
        b"\xff": whole,
        "worker": whole,
        "gateway-" + "x" * 300: whole,
    }
    for name, value in evil.items():
        await commands.send("HSET", evidence_key(ROLLOUT.id), name, value)
    with caplog.at_level(logging.ERROR, "flambeau"):
        for _ in range(3):
            assert list(await reader.of(ROLLOUT.id)) == ["gateway-1"]
    assert len(caplog.records) == len(evil)
    await commands.close()
    await reader.close()


async def test_numbers_and_bytes_of_counts_in_redis_are_limited(
    redis: RedisProcess, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clients = RedisClients(redis.url)
    reader = CountsOfGateways(clients)
    for number in range(4):
        gateway = Gateway(clients, f"gateway-{number}")
        gateway.count(1)
        await gateway.sending.look()
    monkeypatch.setattr(gateway_counts, "MAX_REDIS_BYTES", 200)
    assert 1 <= len(await reader.of(ROLLOUT.id)) < 4
    monkeypatch.setattr(gateway_counts, "MAX_GATEWAYS", 3)
    assert await reader.of(ROLLOUT.id) == {}
    assert "at most 3 are read, so none is" in caplog.records[-1].__dict__["reason"]
    monkeypatch.setattr(gateway_counts, "MAX_COMPLAINTS", 0)
    logged = len(caplog.records)
    assert await CountsOfGateways(clients).of(ROLLOUT.id) == {}
    assert len(caplog.records) == logged
    await reader.close()


async def test_bad_names_in_redis_stop_no_guard(redis: RedisProcess, tmp_path: Path) -> None:
    store = ModelStore(str(tmp_path / "store"))
    for _ in range(2):
        publish_in(store, tmp_path / "draft", "m")
    store.promote("m", 1)
    errors = Guards(
        errors=RateGuard(rate=0.05), disagreement=None, latency=None, nan=None, outputs=None
    )
    rollout = Rollout(candidate=2, baseline=1, steps=(0.5,), guards=errors)
    traffic = store.point("m", transitions.begun(store.pointers("m"), rollout, "me", "")).traffic
    clients, directory = RedisClients(redis.url), Directory()
    directory.announce(ServedVersion(lane=Lane("m", 1), state="ready"))
    directory.set_traffic("m", traffic)
    gateway, commands = Gateway(clients, "gateway-1"), clients.open()
    gateway.directory.set_traffic("m", traffic)
    for number in range(100):
        gateway.counts.of(rollout.id).count_request(0.5, "live")
        gateway.counts.of(rollout.id).count_request(0.5, "candidate", failed=number < 60)
    await gateway.sending.look()
    for name in ("../x", "a/b", "worker"):
        await commands.send("HSET", evidence_key(rollout.id), name, bytes_of(Evidence()))
    gateways = CountsOfGateways(clients)
    metrics = RolloutMetrics(CollectorRegistry())
    await RolloutController(store, directory, metrics, "worker", gateways=gateways).look()
    pointers = store.pointers("m")
    assert pointers is not None
    assert pointers.traffic.rollout is None
    await gateways.close()
    await commands.close()


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
