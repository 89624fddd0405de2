"""Jobs: asynchronous requests. They outlive every process but Redis.

In: a checked request, or the number of a job. Out: the record of the job, and its outcome once it
is over.

A job is an entry of its lane's job stream, as a request is one of a lane's other streams; its
return address says that the outcome is kept (`finish_job.lua`) and not sent. It may run twice, and
is over once.
"""

import asyncio
import contextlib
import re
import secrets
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import msgspec
from redis.exceptions import OutOfMemoryError, RedisError

from services.errors import (
    ConflictError,
    QueueFullError,
    UnknownJobError,
)
from services.queueing.job_records import OVER, Job, State
from services.queueing.memory_queue import Outcome
from services.queueing.records import InferReply, InferRequest, Lane
from services.queueing.redis_streams.clients import RedisClients
from services.queueing.redis_streams.keys import (
    FINISHED_CHANNELS,
    GROUP,
    JOB,
    JobKeys,
    LaneKeys,
    lane_of,
    version_text,
)
from services.queueing.redis_streams.large_records import (
    TransferLimit,
    length_of,
    load_outcome,
    push_to,
    write_pieces,
)
from services.queueing.redis_streams.outage import unreachable
from services.queueing.redis_streams.scripts import Script
from services.queueing.redis_streams.sending_lane import PAYLOAD_GRACE_S
from services.queueing.redis_streams.wire import (
    Piece,
    Reference,
    bytes_of,
    decode_outcome,
    encode_reference,
    encode_request,
    is_large,
    request_pieces,
)

if TYPE_CHECKING:
    from hashlib import _Hash as Hash

LISTED_AT_ONCE = 100
LOOKS_AT_ONCE = 32
"""Each takes a connection, and many may wait for their jobs."""
REMEMBERED = 1000
"""Number of a model's newest jobs that a list considers; others are found only by their ids."""
_DIGITS = re.compile("[0-9a-f]{16}")
_LISTED = (b"version", b"state", b"created", b"deadline", b"entry", b"finished", b"webhook")
LONGEST_ID = 256
"""No name of a model is so long."""
RETRY_S = 0.2
Reserve = Callable[[int], object]
"""Asked for so many bytes before they are held."""


@dataclass(frozen=True, slots=True)
class JobLimits:
    """Limits of a gateway for jobs."""

    max_waiting: int
    """Jobs that may wait for one version."""
    result_ttl_s: int
    """Retention of a result."""


class Jobs:
    """All jobs of one Redis."""

    def __init__(self, clients: RedisClients, limits: JobLimits) -> None:
        self._clients = clients
        self._limits = limits
        self._redis = clients.open()
        self._submit, self._cancel = Script("submit_job"), Script("cancel_job")
        self._waiting: dict[tuple[str, str], set[asyncio.Event]] = defaultdict(set)
        """Events of waits for jobs, by the channel and the number that will name the job."""
        self._may_wait = True
        self._looks = asyncio.Semaphore(LOOKS_AT_ONCE)
        self._writing, self._reading = TransferLimit(), TransferLimit()

    async def submit(
        self,
        request: InferRequest,
        timeout_s: float,
        *,
        asked_for: str = "",
        idempotency_key: str = "",
        webhook: str = "",
    ) -> tuple[str, bool]:
        """Submits a job.

        Args:
            request: checked; its own deadline does not count.
            timeout_s: timeout of the job.
            asked_for: the version its caller named, and the artifact; empty for none.
            idempotency_key: the caller's; a job with the same one is the same job.
            webhook: URL to call when it is over; empty for none.

        Returns:
            The job's id, and True if it is new.

        Raises:
            ConflictError: the key was used for something else.
            QueueFullError: too many wait, or Redis has no memory left.
            QueueUnavailableError: Redis is out of reach.
        """
        lane, number = request.lane, secrets.randbits(64)
        job, keys = JobKeys(lane.model), LaneKeys(lane, jobs=True)
        large_key = keys.job_payload(number) if is_large(request.inputs) else ""
        try:
            payload, digest = await self._payload(request, large_key, timeout_s)
            digest.update(f"{asked_for} {webhook}".encode())
            same = job.same(idempotency_key or f"{number:016x}")
            became, found = await self._submit(
                self._redis, (job.job(number), same, keys.streams[0], job.by_time),
                f"{number:016x}", digest.hexdigest(), int(timeout_s * 1e6), f"{JOB} {number}",
                payload, webhook,
                version_text(lane), self._limits.result_ttl_s, self._limits.max_waiting, REMEMBERED,
            )  # fmt: skip
        except OutOfMemoryError as error:
            if large_key:
                await self._forget(large_key)
            raise QueueFullError(f"the queue has no memory left ({error}); retry later") from error
        except RedisError as error:
            raise unreachable(str(error)) from error
        if large_key and became != b"new":
            await self._forget(large_key)
        if became == b"full":
            raise QueueFullError(
                f"{self._limits.max_waiting} jobs wait for model {lane}, the limit "
                "(max_waiting_jobs); retry later or add workers"
            )
        job_id = f"{lane.model}.{found.decode()}"
        if became == b"conflict":
            raise ConflictError(
                f"the idempotency key '{idempotency_key[:128]}' belongs to job '{job_id}', which "
                "is a different request; use another key"
            )
        return job_id, became == b"new"

    async def _payload(
        self, request: InferRequest, large_key: str, timeout_s: float
    ) -> tuple[bytes, "Hash"]:
        """Returns the payload of a request, and a digest of its content without its id.

        Args:
            request: of the job.
            large_key: key for its tensors, if it is large.
            timeout_s: of the job.
        """
        digest = sha256()
        nameless = msgspec.structs.replace(request, request_id="")
        if not large_key:
            digest.update(encode_request(nameless))
            return encode_request(request), digest
        pieces = _digested_but_last(request_pieces(request), digest)
        async with self._writing.of(bytes_of(request.inputs)):
            lives_ms = int((timeout_s + PAYLOAD_GRACE_S) * 1000)
            await write_pieces(pieces, lives_ms, push_to(self._redis, large_key))
        shapes = [(name, one.shape, one.dtype) for name, one in request.inputs.items()]
        digest.update(repr(shapes).encode())
        digest.update(encode_request(msgspec.structs.replace(nameless, inputs={})))
        return encode_reference(large_key), digest

    async def find(self, job_id: str, reserve: Reserve | None = int) -> Job:
        """Returns the record of a job.

        Args:
            job_id: of it.
            reserve: reservation of memory for a large outcome; None to omit the outcome.

        Raises:
            UnknownJobError: there is none, or its result is no longer kept.
            QueueUnavailableError: Redis is out of reach.
            ServingError: `reserve` refuses the outcome.
        """
        model, number = _parts(job_id)
        with _in_reach():
            time_us, flat = await self._look("HGETALL", JobKeys(model).job(number))
            if not flat:
                raise UnknownJobError(f"job '{job_id}' does not exist, or has expired")
            return await self._job(job_id, flat, time_us, reserve)

    async def wait(self, job_id: str, timeout_s: float, reserve: Reserve = int) -> Job:
        """Returns the same, once the job is over or the timeout has passed.

        Raises:
            UnknownJobError, QueueUnavailableError, ServingError: as `find`.
        """
        model, number = _parts(job_id)
        name = (JobKeys(model).finished, f"{number:016x}")
        over = asyncio.Event()
        self._waiting[name].add(over)
        try:
            # Asked after the event is there, so that none is missed in between.
            job = await self.find(job_id, reserve)
            if job.state in OVER or not self._may_wait:
                return job
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await over.wait()
            return await self.find(job_id, reserve)
        finally:
            self._waiting[name].discard(over)
            if not self._waiting[name]:
                del self._waiting[name]

    def stop_waiting(self) -> None:
        """Answers all waits for jobs at once with the current record, from now on."""
        self._may_wait = False
        self._wake_all()

    async def cancel(self, job_id: str, reserve: Reserve = int) -> Job:
        """Cancels a job that is not over; a finished one is unchanged.

        Raises:
            UnknownJobError, QueueUnavailableError, ServingError: as `find`.
        """
        job = await self.find(job_id, None)
        number, keys = _parts(job_id)[1], LaneKeys(job.lane, jobs=True)
        of_model = JobKeys(job.lane.model)
        with _in_reach():
            await self._cancel(
                self._redis,
                (of_model.job(number), keys.streams[0], of_model.webhooks,
                 keys.job_payload(number)),
                f"{number:016x}", of_model.finished, keys.notices, f"{JOB} {number}",
            )  # fmt: skip
        return await self.find(job_id, reserve)

    async def of_model(self, model: str) -> list[Job]:
        """Returns a model's jobs, newest first, at most `LISTED_AT_ONCE`; without outcomes.

        Raises:
            QueueUnavailableError: Redis is out of reach.
        """
        keys, jobs = JobKeys(model), []
        with _in_reach():
            for name in await self._redis.send("ZRANGE", keys.by_time, 0, -1, "REV"):
                time_us, values = await self._look("HMGET", keys.job(int(name, 16)), *_LISTED)
                if values[0] is None:
                    await self._redis.send("ZREM", keys.by_time, name)
                    continue
                flat = {
                    key: value
                    for key, value in zip(_LISTED, values, strict=True)
                    if value is not None
                }
                jobs.append(await self._job(f"{model}.{name.decode()}", flat, time_us, None))
                if len(jobs) == LISTED_AT_ONCE:
                    break
        return jobs

    async def run(self) -> None:
        """Listens for finished jobs until cancelled; survives any fault of Redis."""
        try:
            while True:
                try:
                    async with self._clients.subscribed(FINISHED_CHANNELS) as messages:
                        self._wake_all()  # what was said before was not heard
                        async for channel, number in messages:
                            for over in self._waiting.get((channel, number.decode()), ()):
                                over.set()
                except RedisError:
                    await asyncio.sleep(RETRY_S)
        finally:
            await self._redis.close()

    def _wake_all(self) -> None:
        for waiting in self._waiting.values():
            for over in waiting:
                over.set()

    async def _forget(self, key: str) -> None:
        """Deletes the payload of a job that was not taken in."""
        with contextlib.suppress(RedisError):  # then it lies there until its time is over
            await self._redis.send("UNLINK", key)

    async def _look(self, *command: Any) -> tuple[int, Any]:
        """Redis' time in microseconds, and what a command gives."""
        async with self._looks:
            trip = self._redis.trip()
            trip.add("TIME")
            trip.add(*command)
            (seconds, micros), found = await trip.execute()
        return seconds * 1_000_000 + micros, found

    async def _job(
        self, job_id: str, fields: dict[bytes, bytes], time_us: int, reserve: Reserve | None
    ) -> Job:
        """A job by its fields in Redis."""
        lane = lane_of(_parts(job_id)[0], fields[b"version"].decode())
        data, finished = fields.get(b"outcome"), fields.get(b"finished")
        outcome = decode_outcome(data, lane) if data is not None else None
        if isinstance(outcome, Reference):
            outcome = await self._load(job_id, outcome.key, lane, reserve)
        if isinstance(outcome, InferReply) and lane.artifact:
            outcome = msgspec.structs.replace(outcome, artifact=lane.artifact)
        return Job(
            id=job_id,
            lane=lane,
            state=await self._state(lane, fields, time_us),
            created_at=int(fields[b"created"]) / 1e6,
            deadline=int(fields[b"deadline"]) / 1e6,
            finished_at=int(finished) / 1e6 if finished is not None else None,
            outcome=outcome,
            webhook=fields[b"webhook"].decode(),
        )

    async def _load(
        self, job_id: str, key: str, lane: Lane, reserve: Reserve | None
    ) -> Outcome | None:
        if reserve is None:
            return None
        async with self._reading.of(await length_of(self._redis, key)):
            outcome = await load_outcome(self._redis, key, lane, reserve)
        if outcome is None:
            raise UnknownJobError(f"the result of job '{job_id}' has expired")
        return outcome

    async def _state(self, lane: Lane, fields: dict[bytes, bytes], time_us: int) -> State:
        state = fields[b"state"].decode()
        if state != "queued":
            return state  # type: ignore[return-value]
        if time_us > int(fields[b"deadline"]):
            return "expired"
        entry, stream = fields[b"entry"], LaneKeys(lane, jobs=True).streams[0]
        try:
            taken = await self._redis.send(
                "XPENDING", stream, GROUP, entry, entry, 1, parse_detail=True
            )
        except RedisError:  # the group is not there: no worker has been
            return "queued"
        return "running" if taken else "queued"


def _digested_but_last(pieces: Iterator[Piece], digest: "Hash") -> Iterator[Piece]:
    """Yields pieces as they are, and adds all but the last to a digest."""
    before: Piece = b""
    for piece in pieces:
        digest.update(before)
        before = piece
        yield piece


def _parts(job_id: str) -> tuple[str, int]:
    """The model and the number in a job's id."""
    model, dot, digits = job_id.rpartition(".")
    if not dot or len(job_id) > LONGEST_ID or not _DIGITS.fullmatch(digits):
        raise UnknownJobError(f"'{job_id[:200]}' is not a job id, such as MODEL.0123456789abcdef")
    return model, int(digits, 16)


@contextlib.contextmanager
def _in_reach() -> Iterator[None]:
    try:
        yield
    except RedisError as error:
        raise unreachable(str(error)) from error
