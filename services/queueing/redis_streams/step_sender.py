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
from collections.abc import Sequence

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
        self._enqueue, self._missing = Script("enqueue_steps"), Script("missing")

    async def send(
        self, redis: Commands, steps: Sequence[tuple[Entry, str, bytes]], most: int
    ) -> list[tuple[bytes, str] | bytes]:
        """Sends steps in one round trip.

        Args:
            redis: client of the workers' Redis.
            steps: each with its return address and its payload.
            most: most steps that wait for one worker.

        Returns:
            For each its id and its worker, or why it has none (`enqueue_steps.lua`).

        Raises:
            RedisError: Redis is out of reach, or has no memory left.
        """
        keys, now = [self._keys.workers], time.monotonic()
        arguments: list[object] = [
            self._keys.steps(""), most, random.randrange(1_000_000), REQUESTS_LIVE_S,  # noqa: S311
        ]  # fmt: skip
        for entry, address, payload in steps:
            step = entry.request.sequence
            assert step is not None
            keys.append(self._keys.owner(step.id))
            arguments += (
                int(step.is_start), int(step.is_end), max(1, round(OWNED_FOR * step.idle_s)),
                int((entry.request.deadline - now) * 1e6), address, payload,
            )  # fmt: skip
        found = await self._enqueue(redis, keys, *arguments)
        return [one if isinstance(one, bytes) else (one[0], one[1].decode()) for one in found]

    async def lost(self, redis: Commands, steps: Sequence[tuple[str, bytes]]) -> list[bool]:
        """Returns for each step whether Redis has lost it, or its worker is gone.

        Args:
            redis: client of the workers' Redis.
            steps: the worker and the id of each.

        Raises:
            RedisError: Redis is out of reach.
        """
        trip = redis.trip()
        trip.add("TIME")
        trip.add("ZRANGE", self._keys.workers, 0, -1, "WITHSCORES")
        (seconds, micros), flat = await trip.execute()
        now_us = seconds * 1_000_000 + micros
        until_us = zip(flat[::2], map(float, flat[1::2]), strict=True)
        alive = {name.decode() for name, counts_until_us in until_us if counts_until_us > now_us}
        workers = list(dict.fromkeys(worker for worker, _ in steps))
        places = [part for worker, found in steps for part in (workers.index(worker) + 1, found)]
        missing = await self._missing(redis, [self._keys.steps(one) for one in workers], *places)
        return [
            bool(is_missing) or worker not in alive
            for is_missing, (worker, _) in zip(missing, steps, strict=True)
        ]


def sequence_lost(entry: Entry) -> SequenceLostError:
    """Returns the error of a step whose sequence has no owner."""
    request = entry.request
    name = "" if request.sequence is None else request.sequence.id
    return SequenceLostError(
        f"sequence '{name:.200}' of model {request.lane} has no worker: it was not started, has "
        "ended, was idle for too long, or its worker is gone; start it again"
    )
