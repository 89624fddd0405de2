"""Rates that several processes share, gateways and trainers, by way of Redis.

In: what each bucket of this process has spent. Out: what is left of it for all.

Rules kept here: no request waits for Redis: each process decides by its own bucket, and tells the
others ten times a second what it spent. So a tenant may have its burst once at each process, and
what was too much is a debt that all of them learn of: over time the rate holds. While Redis is
away, each process goes by its own bucket alone.
"""

import asyncio
import logging
import time

from redis.exceptions import NoScriptError, RedisError

from services.access.rates import Bucket
from services.queueing.redis_streams.clients import Commands
from services.queueing.redis_streams.scripts import Script

logger = logging.getLogger("flambeau.access")

TELL_EVERY_S = 0.1
MAX_AT_ONCE = 1000
"""Buckets of one trip; the others follow at once."""


class SharedRates:
    """The buckets of this process that others share.

    Args:
        redis: where they meet.
    """

    def __init__(self, redis: Commands) -> None:
        self._redis = redis
        self._script = Script("spend", "services.access")
        self._names: dict[Bucket, str] = {}
        """Of those that have spent."""
        self._reached = True

    def open_bucket(self, name: str, rate: float) -> Bucket:
        """A bucket that others with the same name and rate share."""

        def spending(bucket: Bucket) -> None:
            self._names[bucket] = name

        return Bucket(rate, time.monotonic(), spending)

    async def run(self) -> None:
        """Tells what was spent, until cancelled."""
        try:
            while True:
                await asyncio.sleep(TELL_EVERY_S)
                while self._names:
                    await self.tell()
        finally:
            await self._redis.close()

    async def tell(self) -> None:
        """Tells what was spent, and learns what is left. What cannot be told is forgotten."""
        told = []
        trip = self._redis.trip()
        for bucket, name in list(self._names.items())[:MAX_AT_ONCE]:
            del self._names[bucket]
            words = (bucket.rate, bucket.burst, bucket.take_spent())
            told.append((bucket, _keys(name), words))
            self._script.add(trip, _keys(name), *words)
        try:
            answers = await trip.execute(raise_on_error=False)
            for (bucket, keys, words), answer in zip(told, answers, strict=True):
                if isinstance(answer, NoScriptError):
                    answer = await self._script(self._redis, keys, *words)
                if isinstance(answer, Exception):
                    raise answer
                bucket.learn(float(answer))
            self._reached = True
        except (RedisError, OSError) as error:
            if self._reached:
                logger.warning(
                    "rates are not shared: each process goes by its own",
                    extra={"reason": str(error)},
                )
            self._reached = False


def _keys(name: str) -> tuple[str]:
    return (f"flambeau:rate:{{{name}}}",)
