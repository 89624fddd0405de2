"""Shares rates between processes, gateways and trainers, through Redis.

In: tokens that each bucket of this process has spent. Out: tokens left in it for all processes.

Rules: no request waits for Redis. Each process decides by its own bucket, and reports ten times a
second what it spent. So a tenant may use its burst once at each process; the excess is a debt that
all processes learn of, so that the rate holds over time. While Redis is unreachable, each process
uses its own bucket alone.
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
"""Buckets of one round trip; the next round trip follows at once."""


class SharedRates:
    """The buckets of this process that others share.

    Args:
        redis: the Redis that all processes use.
    """

    def __init__(self, redis: Commands) -> None:
        self._redis = redis
        self._script = Script("spend", "services.access")
        self._names: dict[Bucket, str] = {}
        """Names of the buckets that have spent since the last report."""
        self._reached = True

    def open_bucket(self, name: str, rate: float) -> Bucket:
        """Returns a bucket that other processes with the same name and rate share."""

        def spending(bucket: Bucket) -> None:
            self._names[bucket] = name

        return Bucket(rate, time.monotonic(), spending)

    async def run(self) -> None:
        """Reports spent tokens, until cancelled."""
        try:
            while True:
                await asyncio.sleep(TELL_EVERY_S)
                while self._names:
                    await self.tell()
        finally:
            await self._redis.close()

    async def tell(self) -> None:
        """Reports spent tokens, and reads the tokens left. A report that fails is dropped."""
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
                    "rates are not shared: each process limits by itself",
                    extra={"reason": str(error)},
                )
            self._reached = False


def _keys(name: str) -> tuple[str]:
    return (f"flambeau:rate:{{{name}}}",)
