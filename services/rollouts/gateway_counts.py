"""Counts of gateways, which have no store: they reach the workers through Redis.

In: what a gateway has counted of each rollout, split and shadow. Out: the same in every worker,
whose controller writes them into files.

Rules: counts are cumulative, so a lost or repeated one does no harm. Redis keeps those of a rollout
for `LIVES_S` after the last look of a gateway; what a worker has written outlives it. Redis is
hostile input: counts that are too large, malformed, or not of a gateway's name are left out, and
logged once.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from redis.exceptions import RedisError

from model_store.errors import DocumentError
from services.low_priority_thread import beside_loop
from services.queueing.directory import Directory
from services.queueing.redis_streams.clients import RedisClients
from services.queueing.redis_streams.keys import evidence_key
from services.queueing.redis_streams.scripts import Script
from services.rollouts.comparison_files import MAX_SHADOW_BYTES, bytes_of_figures, figures_of
from services.rollouts.evidence.errors import InvalidEvidenceError
from services.rollouts.evidence.evidence import Evidence
from services.rollouts.evidence_files import bytes_of, evidence_of
from services.rollouts.shadow_figures import ShadowFigures
from services.rollouts.traffic_counts import TrafficCounts

T = TypeVar("T")
logger = logging.getLogger("flambeau.rollouts")

LOOK_EVERY_S = 2.0
LIVES_S = 3600
MAX_GATEWAYS = 1_000
"""Gateways of one rollout that are read, restarted ones included."""
MAX_GATEWAY_BYTES = MAX_SHADOW_BYTES
MAX_REDIS_BYTES = 32 * 2**20
"""Counts of all gateways of one rollout; those of a gateway have some 20 KB."""
MAX_COMPLAINTS = 1_000
"""Counts left out that are logged."""


class GatewayCounts:
    """Sends the counts of one gateway.

    Args:
        clients: clients of the Redis that gateways and workers share.
        name: name of the gateway, unique for all time.
        directory: traffic of the models.
        counts: what the gateway has counted.
    """

    def __init__(
        self, clients: RedisClients, name: str, directory: Directory, counts: TrafficCounts
    ) -> None:
        self._redis = clients.open()
        self._name = name
        self._directory = directory
        self._counts = counts

    async def run(self) -> None:
        """Sends until cancelled, then a last time; survives any fault of Redis."""
        try:
            while True:
                with contextlib.suppress(RedisError):
                    await self.look()
                await asyncio.sleep(LOOK_EVERY_S)
        finally:
            with contextlib.suppress(RedisError):
                await self._send()
            await self._redis.close()

    async def look(self) -> None:
        """Sends the counts of each rollout.

        Raises:
            RedisError: Redis is out of reach.
        """
        traffics = self._directory.traffics().values()
        self._counts.keep_only({one for traffic in traffics for one in traffic.ids})
        await self._send()

    async def _send(self) -> None:
        counts, shadows = self._counts.evidence(self._name), self._counts.figures(self._name)

        def written() -> list[tuple[str, str, bytes]]:
            return [
                *((key, name, bytes_of(one)) for key, (name, one) in counts.items()),
                *((key, name, bytes_of_figures(one)) for key, (name, one) in shadows.items()),
            ]

        trip = self._redis.trip()
        for counted_id, name, data in await beside_loop(written):
            trip.add("HSET", evidence_key(counted_id), name, data)
            trip.add("EXPIRE", evidence_key(counted_id), LIVES_S)
        await trip.execute()


class CountsOfGateways:
    """Reads the counts of all gateways, for one worker.

    Args:
        clients: clients of the Redis that gateways and workers share.
    """

    def __init__(self, clients: RedisClients) -> None:
        self._redis = clients.open()
        self._script = Script("read_counts", __package__)
        self._complaints: set[tuple[str, str]] = set()

    async def of(self, counted_id: str) -> Mapping[str, Evidence]:
        """Returns the counts of a rollout or an arm by gateway; none while Redis is away."""
        return await self._read(counted_id, evidence_of)

    async def figures(self, shadow_id: str) -> Mapping[str, ShadowFigures]:
        """Returns the figures of a shadow by gateway; none while Redis is out of reach."""
        return await self._read(shadow_id, figures_of)

    async def _read(self, counted_id: str, parse: Callable[[bytes, str], T]) -> dict[str, T]:
        limits = MAX_GATEWAYS, MAX_GATEWAY_BYTES, MAX_REDIS_BYTES
        found: tuple[list[bytes], list[bytes]] = [], []
        with contextlib.suppress(RedisError):
            found = await self._script(self._redis, (evidence_key(counted_id),), *limits)
        fields, left_out = found

        def parsed() -> dict[str, T]:
            for name, reason in _pairs(left_out):
                self._complain(counted_id, _text(name), _text(reason))
            counts = {}
            for name, data in _pairs(fields):
                gateway = _text(name)
                try:
                    counts[gateway] = parse(data, f"the counts of {gateway}")
                except (DocumentError, InvalidEvidenceError) as error:
                    self._complain(counted_id, gateway, str(error))
            return counts

        return await beside_loop(parsed)

    def _complain(self, counted_id: str, gateway: str, reason: str) -> None:
        if (counted_id, gateway) in self._complaints or len(self._complaints) >= MAX_COMPLAINTS:
            return
        self._complaints.add((counted_id, gateway))
        logger.error("counts of a gateway were left out", extra={"reason": reason})

    async def close(self) -> None:
        """Closes its connections."""
        await self._redis.close()


def _pairs(found: Sequence[bytes]) -> Iterator[tuple[bytes, bytes]]:
    return zip(found[::2], found[1::2], strict=True)


def _text(data: bytes) -> str:
    return data.decode(errors="replace")
