"""Announcements of workers, as another process reads them from Redis."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from services.queueing.directory import Directory
from services.queueing.fleet import FleetView
from services.queueing.records import Lane, ServedArtifact, ServedVersion
from services.queueing.redis_streams import registry
from services.queueing.redis_streams.clients import RedisClients
from services.queueing.redis_streams.registry import Announcer, FleetWatch
from services.telemetry.metrics import Metrics
from tests.fixtures.redis_servers import RedisProcess, until
from tests.fixtures.signatures import one_to_one

OPEN, CLOSED, BROKEN = Lane("m", 1), Lane("m", 2), Lane("m", 3)
SMALL, TINY = OPEN._replace(artifact="small"), OPEN._replace(artifact="tiny")
Views = list[FleetView]


def ready(lane: Lane, *further: Lane) -> ServedVersion:
    artifacts = tuple(
        ServedArtifact(name=own.artifact, precision="int8", accuracy_loss=0.1, row_ms=2.0, lane=own)
        for own in further
    )
    signature = one_to_one((1,), rows=4)
    return ServedVersion(lane=lane, state="ready", signature=signature, artifacts=artifacts)


@asynccontextmanager
async def announcing(url: str, directory: Directory, *reached: Lane) -> AsyncIterator[Announcer]:
    """Runs a worker that requests of some lanes reach."""
    announcer = Announcer(RedisClients(url), "w", directory, lambda lane: lane in reached)
    running = asyncio.create_task(announcer.run())
    try:
        await until(lambda: announcer.is_stored)
        yield announcer
    finally:
        running.cancel()
        await asyncio.wait([running])


@pytest.fixture
async def views(redis: RedisProcess, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Views]:
    """Runs a gateway's look at the fleet; yields what it has seen, the first time nothing."""
    monkeypatch.setattr(registry, "LOOK_EVERY_S", 0.02)
    views: Views = []
    watch = FleetWatch(RedisClients(redis.url), views.append, Metrics("test"))
    running = asyncio.create_task(watch.run())
    try:
        await until(lambda: views)
        yield views
    finally:
        running.cancel()
        await asyncio.wait([running])


async def test_only_versions_that_requests_reach_are_announced_as_ready(
    redis: RedisProcess, views: Views
) -> None:
    directory = Directory()
    for served in (
        ready(OPEN, SMALL, TINY),
        ready(CLOSED),
        ServedVersion(lane=BROKEN, state="failed", reason="it is broken"),
    ):
        directory.announce(served)
    assert not views[-1].versions
    async with announcing(redis.url, directory, OPEN, SMALL):
        await until(lambda: views[-1].versions)
        found = views[-1].versions
        assert {lane: served.state for lane, served in found.items()} == {
            OPEN: "ready",
            BROKEN: "failed",
        }
        assert [known.name for known in found[OPEN].artifacts] == ["small"]
        assert found[BROKEN].reason == "it is broken"
    await until(lambda: not views[-1].versions)


async def test_a_worker_makes_only_a_version_live_that_it_announces(
    redis: RedisProcess, views: Views
) -> None:
    directory = Directory()
    for lane in (OPEN, CLOSED):
        directory.announce(ready(lane))
    async with announcing(redis.url, directory, OPEN) as announcer:
        announcer.go_live(CLOSED, 1)
        announcer.started = True
        await until(lambda: views[-1].started)
        assert views[-1].live == {}
        announcer.go_live(OPEN, 2)
        await until(lambda: views[-1].live)
        assert views[-1].live == {"m": 1}
