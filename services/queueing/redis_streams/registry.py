"""Registry in Redis of the versions that workers serve.

In: in a worker, its directory. Out: in a gateway, the directory; and in both, the live version of
each model.

Rules:
- a worker without a heartbeat for `COUNTS_FOR_S` serves nothing;
- a version whose last worker has gone stays known, and is not ready: its requests get 503 and not
  404, unless other workers say that the model goes on without it;
- while Redis is unreachable nothing changes.
"""

import asyncio
import contextlib
import dataclasses
import logging
import time
from collections.abc import Callable, Mapping

import msgspec
from redis.exceptions import RedisError

from services.queueing.directory import Directory
from services.queueing.fleet import (
    AnnouncedModels,
    Announcement,
    FleetView,
    announced,
    announced_traffic,
    fleet_view,
)
from services.queueing.records import Lane, ServedVersion
from services.queueing.redis_streams.clients import RedisClients, keep_looking
from services.queueing.redis_streams.keys import FLEET_KEYS, figures_key
from services.queueing.redis_streams.outage import Outage
from services.queueing.redis_streams.scripts import Script
from services.telemetry.metrics import Metrics
from services.telemetry.model_figures import VersionFigures, decode_figures

logger = logging.getLogger("flambeau.fleet")

LOOK_EVERY_S = 0.5
COUNTS_FOR_S = 5
"""Time without a heartbeat after which a worker serves nothing."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Announcement).decode


class FleetWatch:
    """Reads the announcements of the workers.

    Args:
        clients: of the Redis that they announce to.
        changed: called with what they serve, whenever that has changed.
        metrics: metrics of the workers present and lost.
    """

    def __init__(
        self, clients: RedisClients, changed: Callable[[FleetView], None], metrics: Metrics
    ) -> None:
        self._redis = clients.open()
        self._changed = changed
        self._metrics = metrics
        self._script = Script("fleet")
        self._known = b"?"
        """The last change there was; nothing says so at first."""
        self._workers: tuple[str, ...] = ()

    async def run(self, outage: Outage | None = None) -> None:
        """Polls until cancelled; survives any fault of Redis. See `keep_looking`."""
        await keep_looking(self._redis, self.look, LOOK_EVERY_S, outage)

    async def look(self) -> None:
        """Polls once.

        Raises:
            RedisError: Redis is out of reach.
        """
        lost, change, *found = await self._script(self._redis, FLEET_KEYS, self._known)
        self._metrics.lost_workers.labels().inc(lost)
        if change == self._known:
            return
        self._known = change
        self._metrics.fleet_workers.set(len(found))
        announcements = []
        for data in found:
            try:
                announcement = _decode(data)
                fleet_view([announcement])
                announcements.append(announcement)
            except (msgspec.MsgspecError, ValueError) as error:  # it may be newer than this
                logger.error("an announcement of a worker is invalid", extra={"reason": str(error)})
        self._workers = tuple(announcement.worker for announcement in announcements)
        self._changed(fleet_view(announcements))

    async def figures(self) -> list[list[VersionFigures]]:
        """Returns the figures of each worker, as of half a second ago at most.

        Raises:
            RedisError: Redis is out of reach.
        """
        found: list[list[VersionFigures]] = []
        if self._workers:
            for data in await self._redis.send("MGET", *map(figures_key, self._workers)):
                with contextlib.suppress(msgspec.MsgspecError):  # none, or of a newer worker
                    found.append(decode_figures(data or b"\x90"))
        return found


class Announcer:
    """Announces the versions that this worker serves.

    Args:
        clients: of the Redis to announce to.
        worker: its name.
        directory: versions that it serves.
        serves: function that returns True if requests for a lane would reach it.
        figures: returns the figures of its versions, encoded.
        models: returns its announcement of the models that callers choose; None if they do not.

    Attributes:
        started: True once the whole store has been read.
        is_stored: True if Redis stored the last announcement.
        row_s: by lane, seconds by which each request that waits delays the next here.
        fault: why this worker cannot serve its store, or lacks a model; empty if neither.
    """

    def __init__(
        self,
        clients: RedisClients,
        worker: str,
        directory: Directory,
        serves: Callable[[Lane], bool],
        figures: Callable[[], bytes] = lambda: b"",
        models: Callable[[], AnnouncedModels | None] = lambda: None,
    ) -> None:
        self._redis = clients.open()
        self._outage = clients.outage
        self._worker = worker
        self._directory = directory
        self._serves = serves
        self._script = Script("announce")
        self._figures, self._models = figures, models
        self._figures_told = (b"", 0.0)
        """The figures that Redis has, and the `time.monotonic()` second since which."""
        self._live: dict[str, tuple[int, int]] = {}
        self._soon = asyncio.Event()
        self.started = False
        self.is_stored = False
        self.row_s: Mapping[Lane, float] = {}
        self.fault = ""

    def go_live(self, lane: Lane, generation: int) -> None:
        """Announces that this worker is ready to make a version live, as the pointers require."""
        if self._live.get(lane.model) != (generation, lane.version):
            self._live[lane.model] = (generation, lane.version)
            self.announce_soon()

    def announce_soon(self) -> None:
        """Announces at once: something has changed."""
        self._soon.set()

    async def run(self) -> None:
        """Announces in a loop until cancelled, and then the end of service."""
        try:
            while True:
                self._soon.clear()
                try:
                    await self._announce(COUNTS_FOR_S * 1_000_000, _encode(self._announcement()))
                    await self._tell_figures()
                    self.is_stored = True
                    self._outage.answered()
                except RedisError as error:
                    self.is_stored = False
                    self._outage.failed(error)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_EVERY_S):
                        await self._soon.wait()
        finally:
            with contextlib.suppress(RedisError):
                await self._announce(0, b"")
            await self._redis.close()

    async def _announce(self, microseconds: int, what: bytes) -> None:
        await self._script(self._redis, FLEET_KEYS, self._worker, microseconds, what)

    async def _tell_figures(self) -> None:
        """Stores the figures for the statistics calls of gateways, if they are new or expire."""
        figures, now = self._figures(), time.monotonic()
        told, at = self._figures_told
        if figures != told or now - at > COUNTS_FOR_S / 2:
            self._figures_told = figures, now
            key = figures_key(self._worker)
            await self._redis.send("SET", key, figures, "EX", COUNTS_FOR_S)

    def _announcement(self) -> Announcement:
        versions = []
        row_s = {lane: _rounded(seconds) for lane, seconds in self.row_s.items()}
        for served in self._directory.all_versions():
            if served.state != "ready" or self._serves(served.lane):
                versions.append(announced(self._open_part(served), row_s))
        ready = {(v.model, v.version) for v in versions if v.state == "ready"}
        live = {m: found for m, found in self._live.items() if (m, found[1]) in ready}
        aliases = {v.model: dict(self._directory.aliases(v.model)) for v in versions}
        return Announcement(
            self._worker, self.started, tuple(versions), live, self.fault,
            {model: found for model, found in aliases.items() if found}, self._models(),
            announced_traffic(self._directory.traffics(), aliases),
        )  # fmt: skip

    def _open_part(self, served: ServedVersion) -> ServedVersion:
        """A version with those of its artifacts that requests would reach here."""
        reached = tuple(known for known in served.artifacts if self._serves(known.lane))
        return dataclasses.replace(served, artifacts=reached)


def _rounded(seconds: float) -> float:
    """To two digits, so that what is learned anew with every batch is not announced with each."""
    return float(f"{seconds:.1e}")
