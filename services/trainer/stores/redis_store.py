"""Stores jobs in Redis or Valkey: for API and workers on several machines.

All keys share a hash tag, so that a cluster keeps them in one slot and one script may access them
all; the scripts in `lua/` document them. Times are those of Redis.
"""

import asyncio
import contextlib
from collections.abc import Iterator, Sequence

import msgspec
from redis.exceptions import RedisError

from services.errors import QueueUnavailableError
from services.queueing.redis_streams.clients import RedisClients
from services.queueing.redis_streams.scripts import Script
from services.trainer.records import STATES, JobEvent, State, TrainingJob
from services.trainer.stores.job_store import QUEUE, Bell, no_such_job

TAG = "flambeau:{training}"
CHANGED = f"{TAG}:changed"
"""Channel that announces the ids of changed jobs, and `QUEUE`."""
BY_TIME = f"{TAG}:jobs"
LOOK_EVERY_S = 5.0
"""Delay after a lost message; other messages arrive at once."""
RETRY_S = 0.2
_job = msgspec.json.Decoder(TrainingJob)
_event = msgspec.json.Decoder(JobEvent)
_encode = msgspec.json.Encoder().encode


class RedisJobStore:
    """Implements `JobStore`.

    Args:
        clients: clients of the Redis.
        max_events: number of newest events of a job to keep.
    """

    look_every_s = LOOK_EVERY_S

    def __init__(self, clients: RedisClients, max_events: int) -> None:
        self.bell = Bell()
        self._clients = clients
        self._redis = clients.open()
        self._max_events = max_events
        self._put = Script("put_job", "services.trainer")
        self._append = Script("append_events", "services.trainer")

    async def now(self) -> float:
        """See `JobStore.now`."""
        with _in_reach():
            seconds, micros = await self._redis.send("TIME")
        return float(seconds) + float(micros) / 1e6

    async def create(self, job: TrainingJob, events: Sequence[JobEvent]) -> bool:
        """See `JobStore.create`."""
        assert job.revision == 0, "a new job has no revision before it"
        return await self._write(job, job.state, events)

    async def find(self, job_id: str) -> TrainingJob:
        """See `JobStore.find`."""
        with _in_reach():
            document = await self._redis.send("HGET", _job_key(job_id), "document")
        if document is None:
            raise no_such_job(job_id)
        return _job.decode(document)

    async def swap(self, job: TrainingJob, events: Sequence[JobEvent]) -> bool:
        """See `JobStore.swap`."""
        with _in_reach():
            before = await self._redis.send("HGET", _job_key(job.id), "state")
        return before is not None and await self._write(job, before.decode(), events)

    async def append(self, job_id: str, holder: str, events: Sequence[JobEvent]) -> bool:
        """See `JobStore.append`."""
        with _in_reach():
            appended = await self._append(
                self._redis, (_job_key(job_id), _events_key(job_id)),
                job_id, holder, self._max_events, CHANGED, *map(_encode, events),
            )  # fmt: skip
        return bool(appended)

    async def events(self, job_id: str, after: int, limit: int) -> list[JobEvent]:
        """See `JobStore.events`."""
        with _in_reach():
            rows = await self._redis.send(
                "XRANGE", _events_key(job_id), f"{after + 1}-0", "+", "COUNT", limit
            )
        return [
            msgspec.structs.replace(_event.decode(fields[b"event"]), seq=int(name.split(b"-")[0]))
            for name, fields in rows
        ]

    async def newest(self, state: State | None, limit: int) -> list[TrainingJob]:
        """See `JobStore.newest`."""
        return await self._listed(_state_key(state) if state else BY_TIME, limit, "REV")

    async def oldest(self, state: State, limit: int, skip: int = 0) -> list[TrainingJob]:
        """See `JobStore.oldest`."""
        return await self._listed(_state_key(state), limit, skip=skip)

    async def counts(self) -> dict[State, int]:
        """See `JobStore.counts`."""
        with _in_reach():
            trip = self._redis.trip()
            for state in STATES:
                trip.add("ZCARD", _state_key(state))
            return dict(zip(STATES, await trip.execute(), strict=True))

    async def forget(self, job_id: str) -> None:
        """See `JobStore.forget`."""
        with _in_reach():
            trip = self._redis.trip()
            for key in (BY_TIME, *map(_state_key, STATES)):
                trip.add("ZREM", key, job_id)
            trip.add("UNLINK", _job_key(job_id), _events_key(job_id))
            await trip.execute()

    async def run(self) -> None:
        """See `JobStore.run`; reconnects after any error of Redis."""
        while True:
            try:
                async with self._clients.subscribed(CHANGED) as messages:
                    self.bell.ring_all()  # earlier messages were not received
                    async for _, topic in messages:
                        self.bell.ring(topic.decode())
            except RedisError:
                await asyncio.sleep(RETRY_S)

    async def close(self) -> None:
        """See `JobStore.close`."""
        await self._redis.close()

    async def _write(self, job: TrainingJob, before: str, events: Sequence[JobEvent]) -> bool:
        keys = (
            _job_key(job.id), _events_key(job.id), BY_TIME,
            _state_key(before), _state_key(job.state),
        )  # fmt: skip
        with _in_reach():
            swapped = await self._put(
                self._redis, keys, job.id, job.revision, job.state, job.holder,
                f"{job.created_at:.6f}", _encode(job), self._max_events, CHANGED,
                QUEUE if job.state == "queued" else "", *map(_encode, events),
            )  # fmt: skip
        return bool(swapped)

    async def _listed(self, key: str, limit: int, *order: str, skip: int = 0) -> list[TrainingJob]:
        with _in_reach():
            names = await self._redis.send("ZRANGE", key, skip, skip + limit - 1, *order)
            if not names:
                return []
            trip = self._redis.trip()
            for name in names:
                trip.add("HGET", _job_key(name.decode()), "document")
            found = await trip.execute()
        return [_job.decode(document) for document in found if document is not None]


def _job_key(job_id: str) -> str:
    return f"{TAG}:job:{job_id}"


def _events_key(job_id: str) -> str:
    return f"{TAG}:events:{job_id}"


def _state_key(state: str) -> str:
    return f"{TAG}:in:{state}"


@contextlib.contextmanager
def _in_reach() -> Iterator[None]:
    try:
        yield
    except RedisError as error:
        raise QueueUnavailableError(
            f"the Redis of the jobs is unreachable ({error}); retry later"
        ) from error
