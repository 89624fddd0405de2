"""Sends the steps of sequences to the workers that own them.

In: steps of one lane, one at a time for each sequence. Out: entries of the streams of single
workers, and errors of steps whose sequence has no owner any more.

Rules:
- the first step chooses a worker, which owns the sequence from then on, for every gateway;
- a first step whose worker is gone, or which Redis has lost, is sent once more and chooses again:
  nothing of its sequence exists elsewhere;
- a later step is never given to another worker, nor sent again: the state is in its owner. When the
  owner is gone, or Redis has lost the step, the request fails with `SequenceLostError`.
"""

import random
import time
from collections.abc import Iterable, Sequence

from redis.exceptions import NoScriptError

from services.errors import SequenceLostError
from services.queueing.memory_queue import Entry
from services.queueing.redis_streams.clients import Commands
from services.queueing.redis_streams.keys import REQUESTS_LIVE_S, LaneKeys
from services.queueing.redis_streams.scripts import Script

OWNED_FOR = 2
"""Time without a step after which a sequence has no owner, as a multiple of that after which its
owner forgets it."""
LOST_AFTER_MISSES = 2
"""An outcome on its way looks like a lost step."""


class StepSender:
    """The steps of one lane."""

    def __init__(self, keys: LaneKeys) -> None:
        self._keys = keys
        self._enqueue = Script("enqueue_step")

    async def send(
        self, redis: Commands, steps: Sequence[tuple[Entry, str, bytes]], most: int
    ) -> list[tuple[bytes, str] | bytes | Exception]:
        """Sends steps in one round trip.

        Args:
            redis: client of the workers' Redis.
            steps: each with its return address and its payload.
            most: most steps that wait for one worker.

        Returns:
            For each its id and its worker, or why it has none (`enqueue_step.lua`), or the error.

        Raises:
            RedisError: Redis is out of reach.
        """
        trip = redis.trip()
        calls = [self._call(*step, most) for step in steps]
        for keys, arguments in calls:
            self._enqueue.add(trip, keys, *arguments)
        found = await trip.execute(raise_on_error=False)
        for place, (keys, arguments) in enumerate(calls):
            if isinstance(found[place], NoScriptError):
                found[place] = await self._enqueue(redis, keys, *arguments)
        return [
            one
            if isinstance(one, Exception)
            else (one[0], one[1].decode())
            if len(one) == 2
            else one[0]
            for one in found
        ]

    def _call(
        self, entry: Entry, address: str, payload: bytes, most: int
    ) -> tuple[tuple[str, str], tuple[object, ...]]:
        request, keys = entry.request, self._keys
        step = request.sequence
        assert step is not None
        left_us = int((request.deadline - time.monotonic()) * 1e6)
        return (keys.workers, keys.owner(step.id)), (
            keys.steps(""), most, int(step.is_start), int(step.is_end),
            random.randrange(1_000_000),  # noqa: S311
            max(1, round(OWNED_FOR * step.idle_s)), REQUESTS_LIVE_S, left_us, address, payload,
        )  # fmt: skip

    async def lost(self, redis: Commands, steps: Iterable[tuple[str, bytes]]) -> list[bool]:
        """Returns for each step whether Redis has lost it, or its worker is gone.

        Args:
            redis: client of the workers' Redis.
            steps: the worker and the id of each.

        Raises:
            RedisError: Redis is out of reach.
        """
        asked = list(steps)
        trip = redis.trip()
        trip.add("TIME")
        for worker, stream_id in asked:
            trip.add("ZSCORE", self._keys.workers, worker)
            trip.add("XRANGE", self._keys.steps(worker), stream_id, stream_id)
        (seconds, micros), *found = await trip.execute()
        now_us = seconds * 1_000_000 + micros
        return [
            not entry or score is None or float(score) <= now_us
            for score, entry in zip(found[::2], found[1::2], strict=True)
        ]


def sequence_lost(entry: Entry) -> SequenceLostError:
    """Returns the error of a step whose sequence has no owner."""
    request = entry.request
    name = "" if request.sequence is None else request.sequence.id
    return SequenceLostError(
        f"sequence '{name:.200}' of model {request.lane} has no worker: it was not started, has "
        "ended, was idle for too long, or its worker is gone; start it again"
    )
