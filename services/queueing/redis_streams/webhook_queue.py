"""Queue of webhook deliveries, until each succeeded or its retries are exhausted.

In: the streams that `finish_job.lua` and `cancel_job.lua` write to. Out: the ids of jobs that are
due, each to one gateway at a time.

Rules: a delivery stays in its stream until it is confirmed, so another gateway repeats
it if this one dies; the more often it failed, the longer the pause before the next attempt.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from redis.exceptions import ResponseError

from services.queueing.redis_streams.clients import Commands
from services.queueing.redis_streams.keys import JobKeys

GROUP = "gateways"
PAUSES_S = (0, 15, 60, 120, 600, 1800, 3600, 7200, 14_400, 28_800)
"""Before the first try, the second, and so on: about fifteen hours in all. Source: the schedule
that the Standard Webhooks specification recommends, a little shortened; but a pause is counted
from when a try begins, and none is so short that a host which is slow to answer is called twice."""
LOOKED_AT = 100
"""Failed deliveries in one look; all of them are looked at."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """One webhook delivery that is due now."""

    job_id: str
    stream: str
    entry: bytes
    tries: int
    """This one included."""

    @property
    def is_last(self) -> bool:
        """True if no other try follows."""
        return self.tries >= len(PAUSES_S)


class WebhookQueue:
    """One gateway's consumer of the webhook deliveries.

    Args:
        redis: a client for commands that do not block.
        gateway: its name.
    """

    def __init__(self, redis: Commands, gateway: str) -> None:
        self._redis = redis
        self._gateway = gateway
        self._grouped: set[str] = set()

    async def due(self, models: Iterable[str], most: int) -> list[Delivery]:
        """Takes due deliveries of some models.

        Args:
            models: their names.
            most: largest number to take.

        Raises:
            RedisError: Redis is out of reach.
        """
        found: list[Delivery] = []
        for model in models:
            if len(found) == most:
                break
            stream = JobKeys(model).webhooks
            if not await self._redis.send("EXISTS", stream):
                self._grouped.discard(stream)
                continue
            try:
                await self._make_group(stream)
                found += await self._take(model, stream, most - len(found))
            except ResponseError:  # Redis has forgotten the group
                self._grouped.discard(stream)
        return found

    async def remove(self, delivery: Delivery) -> None:
        """Removes a delivery that succeeded or has no retries left.

        Raises:
            RedisError: Redis is out of reach.
        """
        trip = self._redis.trip()
        trip.add("XACK", delivery.stream, GROUP, delivery.entry)
        trip.add("XDEL", delivery.stream, delivery.entry)
        await trip.execute()

    async def close(self) -> None:
        """Closes the connection."""
        await self._redis.close()

    async def _take(self, model: str, stream: str, most: int) -> list[Delivery]:
        """Takes due deliveries of one model: failed ones, and new ones."""
        found = await self._again(model, stream, most)
        if len(found) == most:
            return found
        fresh = await self._redis.send(
            "XREADGROUP", "GROUP", GROUP, self._gateway, "COUNT", most - len(found),
            "STREAMS", stream, ">",
        )  # fmt: skip
        for _, entries in fresh or ():
            found += [_delivery(model, stream, entry, fields, 1) for entry, fields in entries]
        return found

    async def _again(self, model: str, stream: str, most: int) -> list[Delivery]:
        """Takes failed deliveries whose pause is over, of any gateway."""
        found: list[Delivery] = []
        after = "-"
        while True:
            pending = await self._redis.send(
                "XPENDING", stream, GROUP, "IDLE", PAUSES_S[1] * 1000, after, "+", LOOKED_AT,
                parse_detail=True,
            )  # fmt: skip
            for left in pending:
                if len(found) == most:
                    return found
                found += await self._claimed(model, stream, left)
            if len(pending) < LOOKED_AT:
                return found
            after = f"({pending[-1]['message_id'].decode()}"

    async def _claimed(self, model: str, stream: str, left: Mapping[str, Any]) -> list[Delivery]:
        """One that failed before, if its pause is over and no other gateway was quicker."""
        tries = left["times_delivered"]
        pause_ms = PAUSES_S[min(tries, len(PAUSES_S) - 1)] * 1000
        if left["time_since_delivered"] < pause_ms:
            return []
        claimed = await self._redis.send(
            "XCLAIM", stream, GROUP, self._gateway, pause_ms, left["message_id"]
        )
        return [
            _delivery(model, stream, entry, fields, tries + 1)
            for entry, fields in claimed
            if fields
        ]

    async def _make_group(self, stream: str) -> None:
        if stream in self._grouped:
            return
        try:
            await self._redis.send("XGROUP", "CREATE", stream, GROUP, "0")
        except ResponseError as error:
            if not str(error).startswith("BUSYGROUP"):
                raise
        self._grouped.add(stream)


def _delivery(
    model: str, stream: str, entry: bytes, fields: dict[bytes, bytes], tries: int
) -> Delivery:
    return Delivery(f"{model}.{fields[b'job'].decode()}", stream, entry, tries)
