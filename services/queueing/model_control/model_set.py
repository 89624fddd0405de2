"""The models that callers have loaded, as a worker follows them.

In: the set of models in Redis, which gateways change. Out: loads and unloads here; an announcement
of those that are done.

Rules: a set has a revision, and the newest set counts: a worker that knows a newer one than Redis,
which may have lost its data, stores it there again. The first worker of a Redis brings the models
of its settings; those that come later follow the set. Redis keeps it for `LIVES_S` behind the last
look of any worker. While Redis is unreachable nothing changes.
"""

import asyncio
from collections.abc import Callable
from functools import partial

from services.errors import ServingError
from services.queueing.fleet import AnnouncedModels
from services.queueing.redis_streams.clients import RedisClients, keep_looking
from services.queueing.redis_streams.keys import MODELS_KEY
from services.queueing.redis_streams.scripts import Script

LOOK_EVERY_S = 0.5
LIVES_S = 3600
MAX_REASON = 500
"""Characters of a reason for which a model cannot be loaded, as it is announced."""
MAX_UNLOADED = 1000
"""Models of the store that are not loaded, in an announcement; it is sent every half a second."""
OWN = 1
"""Revision of the models of a worker's own settings."""

Begin = Callable[[str, str], "asyncio.Future[None]"]
"""Begins to `load` or `unload` a model, and returns the outcome."""


class ModelSet:
    """The set of models, as one worker knows it.

    Args:
        clients: clients of the Redis that all processes share.
        models: models of the worker's settings, which it loads at first.
        begin: loads and unloads models here.
        changed: called when the announcement has changed.
    """

    def __init__(
        self,
        clients: RedisClients,
        models: tuple[str, ...],
        begin: Begin,
        changed: Callable[[], None],
    ) -> None:
        self._redis = clients.open()
        self._begin, self._changed = begin, changed
        self._known = dict.fromkeys(models, OWN)
        """Revision of its load by model."""
        self._revision = 0
        self._pending: dict[str, asyncio.Future[None]] = {}
        self._refused: dict[str, tuple[str, str]] = {}
        self._offer = Script("offer", __package__)

    async def run(self) -> None:
        """Follows the set until cancelled; survives any fault of Redis."""
        await keep_looking(self._redis, self.look, LOOK_EVERY_S)

    async def look(self) -> None:
        """Looks once, and begins to load and unload what has changed.

        Raises:
            RedisError: Redis is out of reach.
        """
        trip = self._redis.trip()
        trip.add("HGET", MODELS_KEY, "")
        trip.add("EXPIRE", MODELS_KEY, LIVES_S)
        head, _ = await trip.execute()
        own = max(self._revision, OWN)
        if int(head or 0) < own:
            known = [part for item in self._known.items() for part in item]
            await self._offer(self._redis, (MODELS_KEY,), own, LIVES_S, *known)
        elif int(head) == self._revision:
            return
        found = await self._redis.send("HGETALL", MODELS_KEY)
        self._follow({name.decode(errors="replace"): int(at) for name, at in found.items()})

    def _follow(self, models: dict[str, int]) -> None:
        revision = models.pop("", 0)
        if revision < self._revision:  # another loss of data meanwhile
            return
        known, self._known, self._revision = self._known, models, revision
        for name in known.keys() - models.keys():
            self._act("unload", name)
        for name, at in models.items():
            if known.get(name) != at:
                self._act("load", name)
        self._changed()

    def _act(self, act: str, model: str) -> None:
        self._refused.pop(model, None)
        outcome = self._pending[model] = self._begin(act, model)
        outcome.add_done_callback(partial(self._ended, model))

    def _ended(self, model: str, outcome: "asyncio.Future[None]") -> None:
        if self._pending.get(model) is not outcome:  # a later act has replaced it
            return
        del self._pending[model]
        error = outcome.exception()
        if isinstance(error, ServingError):
            self._refused[model] = type(error).__name__, str(error)[:MAX_REASON]
        self._changed()

    def announced(self, unloaded: tuple[str, ...]) -> AnnouncedModels:
        """Returns the announcement of this worker.

        Args:
            unloaded: models of the store that it should not serve.
        """
        return AnnouncedModels(
            self._revision, tuple(self._pending), dict(self._refused), unloaded[:MAX_UNLOADED]
        )
