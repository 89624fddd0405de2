"""Settings of logs and traces that callers change, for all gateways and workers of a Redis.

In: a change, at one gateway. Out: the same change in every process, within `LOOK_EVERY_S`; a
process that starts later takes it, too.

Rules: Redis keeps what was changed for `LIVES_S` behind the last look of any process. While Redis
is unreachable nothing changes, and a change is refused.
"""

import contextlib
from collections.abc import Callable, Mapping

from redis.exceptions import RedisError

from services.errors import QueueUnavailableError
from services.queueing.redis_streams.clients import RedisClients, keep_looking
from services.queueing.redis_streams.keys import SETTINGS_KEY
from services.tracing.setting import Change

LOOK_EVERY_S = 0.5
LIVES_S = 3600

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


class FleetSettings:
    """The changed settings, as one process of the fleet knows them.

    Args:
        clients: clients of the Redis that all processes share.
        apply: called with what has changed, in this process.
    """

    def __init__(self, clients: RedisClients, apply: Callable[[Change], None]) -> None:
        self._redis = clients.open()
        self._apply = apply
        self._known: dict[str, str | float] = {}
        self._told = 0
        """Changes told here: what was read before one of them is out of date."""

    async def run(self) -> None:
        """Looks until cancelled; survives any fault of Redis."""
        await keep_looking(self._redis, self.look, LOOK_EVERY_S)

    async def look(self) -> None:
        """Looks once, and applies what is new.

        Raises:
            RedisError: Redis is out of reach.
        """
        told, trip = self._told, self._redis.trip()
        trip.add("HGETALL", SETTINGS_KEY)
        trip.add("EXPIRE", SETTINGS_KEY, LIVES_S)
        found, _ = await trip.execute()
        if told == self._told:
            self._learn(_checked(found))

    async def tell(self, change: Change) -> None:
        """Changes settings of all processes; of this one at once.

        Raises:
            QueueUnavailableError: Redis is out of reach.
        """
        trip = self._redis.trip()
        trip.add("HSET", SETTINGS_KEY, *(str(part) for item in change.items() for part in item))
        trip.add("EXPIRE", SETTINGS_KEY, LIVES_S)
        try:
            await trip.execute()
        except RedisError as error:
            raise QueueUnavailableError(
                f"the settings cannot be changed, for the queue is unreachable: {error}; try again"
            ) from error
        self._told += 1
        self._learn({**self._known, **change})

    def _learn(self, values: Change) -> None:
        new = {name: value for name, value in values.items() if self._known.get(name) != value}
        self._known = dict(values)
        if new:
            self._apply(new)


def _checked(found: Mapping[bytes, bytes]) -> Change:
    """Returns the settings in Redis that this version of the software knows."""
    values: dict[str, str | float] = {}
    level = found.get(b"log_level", b"").decode(errors="replace")
    if level in LEVELS:
        values["log_level"] = level
    with contextlib.suppress(ValueError):
        ratio = float(found.get(b"trace_ratio", b"none"))
        if 0 <= ratio <= 1:
            values["trace_ratio"] = ratio
    return values
