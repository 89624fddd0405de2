"""Counts of gateways, which have no store: they reach the workers through Redis.

In: what a gateway has counted of each rollout. Out: the same in every worker, whose controller
writes them into files of evidence.

Rules: counts are cumulative, so a lost or repeated one does no harm. Redis keeps those of a rollout
for `LIVES_S` after the last look of a gateway; what a worker has written outlives it. Redis is
hostile input: counts that are too large or malformed are left out, and logged once.
"""

import contextlib
import logging
from collections.abc import Mapping

from redis.exceptions import RedisError

from model_store.errors import DocumentError
from services.low_priority_thread import beside_loop
from services.queueing.directory import Directory
from services.queueing.redis_streams.clients import RedisClients, keep_looking
from services.queueing.redis_streams.keys import evidence_key
from services.rollouts.evidence.errors import InvalidEvidenceError
from services.rollouts.evidence.evidence import Evidence
from services.rollouts.evidence_files import bytes_of, evidence_of
from services.rollouts.traffic_counts import TrafficCounts

logger = logging.getLogger("flambeau.rollouts")

LOOK_EVERY_S = 2.0
LIVES_S = 3600


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
        """Sends until cancelled; survives any fault of Redis."""
        await keep_looking(self._redis, self.look, LOOK_EVERY_S)

    async def look(self) -> None:
        """Sends the counts of each rollout.

        Raises:
            RedisError: Redis is out of reach.
        """
        traffics = self._directory.traffics().values()
        self._counts.keep_only({one for traffic in traffics for one in traffic.ids})
        trip, counts = self._redis.trip(), self._counts.snapshot()
        written = await beside_loop(lambda: {name: bytes_of(one) for name, one in counts.items()})
        for rollout_id, data in written.items():
            trip.add("HSET", evidence_key(rollout_id), self._name, data)
            trip.add("EXPIRE", evidence_key(rollout_id), LIVES_S)
        await trip.execute()


class CountsOfGateways:
    """Reads the counts of all gateways, for one worker.

    Args:
        clients: clients of the Redis that gateways and workers share.
    """

    def __init__(self, clients: RedisClients) -> None:
        self._redis = clients.open()
        self._complaints: set[tuple[str, str]] = set()

    async def of(self, rollout_id: str) -> Mapping[str, Evidence]:
        """Returns the counts of a rollout by gateway; none while Redis is out of reach."""
        found: dict[bytes, bytes] = {}
        with contextlib.suppress(RedisError):
            found = await self._redis.send("HGETALL", evidence_key(rollout_id))
        return await beside_loop(lambda: self._read(rollout_id, found))

    def _read(self, rollout_id: str, found: Mapping[bytes, bytes]) -> dict[str, Evidence]:
        counts = {}
        for key, data in found.items():
            gateway = key.decode(errors="replace")
            try:
                counts[gateway] = evidence_of(data, f"the counts of {gateway}")
            except (DocumentError, InvalidEvidenceError) as error:
                if (rollout_id, gateway) not in self._complaints:
                    self._complaints.add((rollout_id, gateway))
                    logger.error("counts of a gateway were left out", extra={"reason": str(error)})
        return counts

    async def close(self) -> None:
        """Closes its connections."""
        await self._redis.close()
