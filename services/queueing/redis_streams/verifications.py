"""Verifications that a gateway delegates to a worker.

In, at a gateway: a model and a version. In, at a worker: requests of gateways, on a list of its
own. Out: the progress, on a list of the request's own, and in the end a certificate or an error.

Rules:
- a worker verifies one version at a time, and all who ask for the same one share it;
- while it does it says so every second: a gateway that hears nothing for `SILENT_S` takes the
  worker for dead, and says so (503); asked again, another worker does it;
- a list without a reader is not written to for ever, and expires.
"""

import asyncio
import contextlib
import logging
import random
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
from redis.exceptions import RedisError

from services.errors import (
    DeadlineExceededError,
    ModelNotReadyError,
    OverloadedError,
    QueueUnavailableError,
    ServingError,
    ShuttingDownError,
)
from services.queueing.directory import Directory
from services.queueing.redis_streams.clients import BLOCK_S, Commands, RedisClients
from services.queueing.redis_streams.keys import verification_replies_key, verifications_key
from services.queueing.redis_streams.wire import WireError, error_of_kind
from services.queueing.verification_records import Progress, Verified, Verify

logger = logging.getLogger("flambeau.verification")

SAY_EVERY_S = 1.0
SILENT_S = 5.0
"""Time without a message after which a worker counts as dead."""
RETRY_S = 0.2
"""Pause after a fault of Redis."""
REPLIES_LIVE_MS = 60_000
UNREAD = 64
"""Messages in a list that show that it has no reader any more."""


class _Asked(msgspec.Struct, array_like=True, frozen=True):
    model: str
    version: int | None
    replies: str
    """The list for what is to be said of it."""


class _Step(msgspec.Struct, array_like=True, frozen=True, tag=0):
    artifact: str = ""
    done: int = 0
    total: int = 0


class _Done(msgspec.Struct, array_like=True, frozen=True, tag=1):
    certificate: bytes
    recorded_as: str
    record_failure: str


class _Failed(msgspec.Struct, array_like=True, frozen=True, tag=2):
    kind: str
    message: str


_encode = msgspec.msgpack.Encoder().encode
_decode_asked = msgspec.msgpack.Decoder(_Asked).decode
_decode_said: Callable[[bytes], _Step | _Done | _Failed] = msgspec.msgpack.Decoder(
    _Step | _Done | _Failed
).decode


class FleetVerifier:
    """The gateway's side: delegates a verification to one of a model's workers.

    Args:
        clients: of the Redis that the workers read from.
        gateway: its name.
        directory: versions that the workers serve.
        timeout_s: the longest one verification may take.

    Attributes:
        workers: by model, who serves it.
    """

    def __init__(
        self, clients: RedisClients, gateway: str, directory: Directory, timeout_s: float
    ) -> None:
        self._clients = clients
        self._gateway = gateway
        self._directory = directory
        self._timeout_s = timeout_s
        self.workers: Mapping[str, Sequence[str]] = {}

    async def verify(self, model: str, version: int | None, progress: Progress) -> Verified:
        """Has a version certified and recorded by a worker, on its machine.

        Args:
            model: its name.
            version: None for the one in production, or else the newest.
            progress: called at every step.

        Raises:
            UnknownModelError, UnknownVersionError: no worker serves the model; no such version.
            ModelNotReadyError: the model's workers have gone.
            QueueUnavailableError: the worker died, or Redis is out of reach.
            OverloadedError: the worker verifies another version.
            DeadlineExceededError: it took too long.
            ServingError: whatever else the worker raises.
        """
        worker = self._worker_of(model)
        replies = verification_replies_key(self._gateway, uuid.uuid4().hex)
        redis = self._clients.open_blocking()
        try:
            async with asyncio.timeout(self._timeout_s):
                await _send(redis, verifications_key(worker), _Asked(model, version, replies))
                return await self._heard(redis, replies, worker, progress)
        except TimeoutError as error:
            raise DeadlineExceededError(
                f"the verification took longer than {self._timeout_s:g} s (verify_timeout_s), and "
                f"worker {worker} goes on with it; raise the limit, or look for its certificate"
            ) from error
        except RedisError as error:
            raise _lost(worker, str(error)) from error
        finally:
            with contextlib.suppress(RedisError):
                await redis.send("DEL", replies)
            await redis.close()

    def _worker_of(self, model: str) -> str:
        workers = self.workers.get(model)
        if not workers:
            self._directory.versions(model)  # raises where nobody ever served it
            raise ModelNotReadyError(f"no worker serves model '{model}' at present; try again")
        return random.choice(workers)  # noqa: S311

    async def _heard(
        self, redis: Commands, replies: str, worker: str, progress: Progress
    ) -> Verified:
        """Waits for the worker's result, and returns it."""
        heard_at, trouble = time.monotonic(), "it says nothing any more"
        while time.monotonic() < heard_at + SILENT_S:
            try:
                found = await redis.send("BLPOP", replies, BLOCK_S)
            except RedisError as error:
                trouble = str(error)
                await asyncio.sleep(RETRY_S)
                continue
            if found is None:
                continue
            heard_at, said = time.monotonic(), _said(found[1], worker)
            if isinstance(said, _Done):
                return Verified(
                    certificate=said.certificate,
                    recorded_as=said.recorded_as,
                    record_failure=said.record_failure,
                )
            if isinstance(said, _Failed):
                raise error_of_kind(said.kind, said.message)
            progress(said.artifact, said.done, said.total)
        raise _lost(worker, trouble)


@dataclass(slots=True, kw_only=True)
class _Running:
    """A running verification of a worker."""

    asked: tuple[str, int | None]
    replies: set[str]
    """The lists of all who asked for it."""
    step: _Step = field(default_factory=_Step)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when there is something to say before the next second."""


class VerificationReceiver:
    """The worker's side: runs the verifications that gateways request.

    Args:
        clients: of the Redis that the gateways write to.
        worker: its name.
        verify: proves a version on this machine.
    """

    def __init__(self, clients: RedisClients, worker: str, verify: Verify) -> None:
        self._redis, self._blocking = clients.open(), clients.open_blocking()
        self._worker = worker
        self._verify = verify
        self._running: _Running | None = None

    async def run(self) -> None:
        """Accepts verification requests until cancelled; survives any fault of Redis."""
        try:
            async with asyncio.TaskGroup() as tasks:
                while True:
                    try:
                        found = await self._blocking.send(
                            "BLPOP", verifications_key(self._worker), BLOCK_S
                        )
                    except RedisError:
                        await asyncio.sleep(RETRY_S)
                        continue
                    if found is not None:
                        await self._take(found[1], tasks)
        finally:
            await self._redis.close()
            await self._blocking.close()

    async def _take(self, data: bytes, tasks: asyncio.TaskGroup) -> None:
        try:
            asked = _decode_asked(data)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:  # it may be newer than this
            logger.error("a verification cannot be understood", extra={"reason": str(error)})
            return
        running, what = self._running, (asked.model, asked.version)
        if running is None:
            self._running = _Running(asked=what, replies={asked.replies})
            tasks.create_task(self._prove(self._running), name="verification")
        elif running.asked == what:
            running.replies.add(asked.replies)
            running.changed.set()
        else:
            name, number = running.asked
            busy = OverloadedError(
                f"worker {self._worker} verifies '{name}' version {number or 'in production'}; "
                "one at a time, so try again"
            )
            await self._say({asked.replies}, _failed(busy))

    async def _prove(self, running: _Running) -> None:
        """Verifies one version, and says how far it is."""
        outcome: _Done | _Failed = _failed(
            ShuttingDownError(f"worker {self._worker} shuts down; try again")
        )

        def progress(artifact: str, done: int, total: int) -> None:
            running.step = _Step(artifact, done, total)
            running.changed.set()

        work = asyncio.ensure_future(self._verify(*running.asked, progress))
        work.add_done_callback(lambda _: running.changed.set())
        try:
            while not work.done():
                await self._say(running.replies, running.step)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(SAY_EVERY_S):
                        await running.changed.wait()
                running.changed.clear()
            outcome = _outcome(work)
        finally:
            work.cancel()
            self._running = None
            await self._say_last(running.replies, outcome)

    async def _say(self, lists: set[str], what: _Step | _Failed) -> None:
        """Says it as far as Redis can be reached, and no more to those who do not listen."""
        with contextlib.suppress(RedisError):
            for replies in list(lists):
                if await _send(self._redis, replies, what) > UNREAD:
                    lists.discard(replies)

    async def _say_last(self, lists: set[str], what: _Done | _Failed) -> None:
        """Says it, for as long as gateways may still listen."""
        give_up_at = time.monotonic() + SILENT_S
        while lists and time.monotonic() < give_up_at:
            try:
                await _send(self._redis, next(iter(lists)), what)
                lists.pop()
            except RedisError:
                await asyncio.sleep(RETRY_S)


async def _send(redis: Commands, key: str, what: msgspec.Struct) -> int:
    """Puts a message on a list that is soon forgotten; returns how many are there."""
    trip = redis.trip()
    trip.add("RPUSH", key, _encode(what))
    trip.add("PEXPIRE", key, REPLIES_LIVE_MS)
    return int((await trip.execute())[0])


def _said(data: bytes, worker: str) -> _Step | _Done | _Failed:
    try:
        return _decode_said(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise WireError(f"what worker {worker} says cannot be read: {error}") from error


def _outcome(work: "asyncio.Future[Verified]") -> _Done | _Failed:
    try:
        found = work.result()
    except ServingError as error:
        return _failed(error)
    except Exception:
        logger.exception("a verification failed")
        return _failed(ServingError("the verification failed in the worker; see its log"))
    return _Done(found.certificate, found.recorded_as, found.record_failure)


def _failed(error: ServingError) -> _Failed:
    return _Failed(type(error).__name__, str(error))


def _lost(worker: str, trouble: str) -> QueueUnavailableError:
    return QueueUnavailableError(
        f"worker {worker} was verifying and cannot be heard ({trouble}); it may have died, so try "
        "again"
    )
