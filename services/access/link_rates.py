"""Shares rates between the edges of one server, through its model process.

In: tokens that each bucket of an edge has spent. Out: tokens left in it for all edges. The rules
are those of `shared_rates.py`, with the model process in place of Redis: no request waits, and a
tenant may use its burst once at each edge.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable

from services.access.rates import Bucket

TELL_EVERY_S = 0.1
MAX_BUCKETS = 20_000
"""Buckets that the model process remembers; the oldest is forgotten, which fills it."""

Tokens = list[tuple[str, float, float]]
"""Name of a bucket, its tokens a second, and how many were spent or are left."""


class LinkRates:
    """The buckets of one edge.

    Args:
        tell: sends what was spent to the model process.
    """

    def __init__(self, tell: Callable[[Tokens], None]) -> None:
        self._tell = tell
        self._names: dict[Bucket, str] = {}
        """Names of the buckets that have spent since the last report."""
        self._told: dict[tuple[str, float], Bucket] = {}
        """Buckets whose rest has not come back."""

    def open_bucket(self, name: str, rate: float) -> Bucket:
        """Returns a bucket that other edges with the same name and rate share."""

        def spending(bucket: Bucket) -> None:
            self._names[bucket] = name

        return Bucket(rate, time.monotonic(), spending)

    async def run(self) -> None:
        """Reports spent tokens, until cancelled."""
        while True:
            await asyncio.sleep(TELL_EVERY_S)
            self.tell()

    def tell(self) -> None:
        """Reports spent tokens."""
        names, self._names = self._names, {}
        self._told.update({(name, bucket.rate): bucket for bucket, name in names.items()})
        if names:
            self._tell([(name, bucket.rate, bucket.take_spent()) for bucket, name in names.items()])

    def learn(self, left: Tokens) -> None:
        """Applies the tokens that are left for all edges."""
        for name, rate, tokens in left:
            bucket = self._told.pop((name, rate), None)
            if bucket is not None:
                bucket.learn(tokens)


class SpentRates:
    """The buckets of all edges, in the model process."""

    def __init__(self) -> None:
        self._buckets: OrderedDict[tuple[str, float], Bucket] = OrderedDict()

    def spend(self, name: str, rate: float, tokens: float) -> float:
        """Takes tokens that an edge has spent; returns those that are left, below 0 a debt."""
        now = time.monotonic()
        bucket = self._buckets.get((name, rate))
        if bucket is None:
            bucket = self._buckets[name, rate] = Bucket(rate, now)
            if len(self._buckets) > MAX_BUCKETS:
                self._buckets.popitem(last=False)
        return bucket.spend(tokens, now)
