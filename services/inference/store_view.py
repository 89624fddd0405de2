"""The listing of the store that a process serves, or at its start the last known one.

In: a store, and the time. Out: versions and pointer generations of every model.

Rules: a store that fails, or does not answer within `AWAY_AFTER_S`, is away. Until it has been
listed once, what the cache knows of it is served, and the store is asked again meanwhile. After
that, a store that fails changes nothing: the loaded versions stay.
"""

import asyncio
import logging
from datetime import UTC, datetime
from pathlib import Path

from prometheus_client import Counter

from model_store.cache.cached_store import CachedStore
from model_store.cache.file_cache import Outcome
from model_store.listing import ModelListing
from model_store.storage.storage import MissingFileError, folder_of
from model_store.store import ModelStore
from services.inference.config import InferenceSettings
from services.inference.loading.model_failure import in_thread, reason_of
from services.telemetry.metrics import Metrics

logger = logging.getLogger("flambeau.reconciler")

AWAY_AFTER_S = 10.0
"""Seconds without an answer after which a start goes on from the cache: a bucket of 100,000 files
is listed within them, and obstore repeats a failed request for minutes."""
MEBIBYTE = 2**20

Listings = dict[str, ModelListing]


def serving_store(config: InferenceSettings, store: ModelStore, metrics: Metrics) -> ModelStore:
    """Returns the store that a process serves from: with a cache if it is a bucket.

    Args:
        config: settings of the process.
        store: its store.
        metrics: counters of reads of the cache.

    Raises:
        StorageError: as `ModelStore`.
    """
    if not config.store_cache or folder_of(config.store):
        return store
    reads: Counter = metrics.store_cache_reads

    def count(outcome: Outcome) -> None:
        reads.labels(outcome).inc()

    folder = Path(config.store_cache).expanduser().absolute()
    return CachedStore(config.store, folder, config.store_cache_mib * MEBIBYTE, count)


class StoreView:
    """Lists a store for one process; called from the event loop.

    Args:
        store: the store.
        metrics: gauges of a store that is away, and of a cache that stands in for it.

    Attributes:
        notice: why the cache stands in, for readiness; empty if it does not.
        asked: task that lists the store; None if none does.
    """

    def __init__(self, store: ModelStore, metrics: Metrics) -> None:
        self.notice = ""
        self._store = store
        self._away, self._gauge = metrics.store_away, metrics.served_from_cache
        self._is_away = False
        self.asked: asyncio.Task[Listings | Exception] | None = None
        self._recalled: Listings | None = None
        self._has_returned = False
        self._is_listed = not isinstance(store, CachedStore)

    async def listings(self, tasks: asyncio.TaskGroup) -> Listings:
        """Lists the store; returns the last known listing while it is away at the start.

        Args:
            tasks: group of the task that asks the store meanwhile.

        Raises:
            Exception: it cannot be listed, and nothing is known of it.
        """
        try:
            found = await self._listings(tasks)
        except Exception:
            self._show(is_away=True)
            raise
        self._show(is_away=bool(self.notice))
        return found

    def _show(self, *, is_away: bool) -> None:
        if self._is_away and not is_away:
            logger.info("store is back; following it again")
        self._is_away = is_away
        self._away.set(is_away)

    async def _listings(self, tasks: asyncio.TaskGroup) -> Listings:
        store = self._store
        if self._is_listed or not isinstance(store, CachedStore):
            return await in_thread(store.listing)
        if self.asked is None:
            self.asked = tasks.create_task(_listed(store), name="listing")
        await asyncio.wait([self.asked], timeout=0 if self._recalled else AWAY_AFTER_S)
        why = "" if self.asked.done() else f"no answer within {AWAY_AFTER_S:g} s"
        recalled = self._recalled
        if not why or not (recalled := recalled or await in_thread(store.last_listing)):
            found, self.asked = await self.asked, None
            if not isinstance(found, Exception):
                self._follow(store)
                return found
            recalled = recalled or await in_thread(store.last_listing)
            if not recalled or isinstance(found, MissingFileError):
                raise found
            why = reason_of(found)
        self._serve_from_cache(store, recalled, why)
        return recalled

    def take_return(self) -> bool:
        """Returns True once after the store has come back: failed versions are due again."""
        returned, self._has_returned = self._has_returned, False
        return returned

    def _serve_from_cache(self, store: CachedStore, recalled: Listings, why: str) -> None:
        if self._recalled is None:
            since = datetime.fromtimestamp(store.listed_s(), UTC).isoformat(timespec="seconds")
            self.notice = f"serving from the cache; the store has been away since {since}"
            self._gauge.set(1)
            extra = {"reason": why, "since": since}
            logger.warning("store is away; serving from the cache", extra=extra)
        self._recalled = recalled

    def _follow(self, store: CachedStore) -> None:
        self._is_listed = True
        store.follow()
        if self._recalled is not None:
            self._recalled, self.notice, self._has_returned = None, "", True
            self._gauge.set(0)


async def _listed(store: ModelStore) -> Listings | Exception:
    try:
        return await in_thread(store.listing)
    except Exception as error:
        return error
